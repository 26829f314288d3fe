"""`leadline bench models`: forward and backward of whole decoders, as multiples of PreNorm in the same round."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.bench import targets
from leadline.bench.checks import disagreement, errors
from leadline.bench.memory import parameter_bytes, peak_bytes, saved_for_backward
from leadline.bench.results import Result, Row, Verdict
from leadline.bench.rounds import Candidate, Say, what_is_timed
from leadline.bench.running import TWO_PHASES, Options, Run, time_verdict
from leadline.bench.shapes import VOCABULARY, BenchShape
from leadline.choices import Backend
from leadline.connections import Additive
from leadline.connections.inversion import tape_bytes
from leadline.designs import check_two_phase, resolve
from leadline.errors import UsageError
from leadline.models import Decoder, DecoderConfig
from leadline.norms import BHyT, Derf, DyT
from leadline.ops import use_backend
from leadline.ops.choice import BACKENDS, why_not

BASELINE = "prenorm"
DESIGNS = ("attnres", "attnres-block", "mgr", "mgr(memory=invert)", "hc", "mhc-lite", "mhc", "bhyt", "peri-ln")
START = 0.02
"""The spread of what is added to a connection's own parameters, so that queries aren't zero."""
TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3, torch.bfloat16: 0.1}
"""How far a gradient may be from the reference backend's, relative to its length."""
TIMES_PLAIN = 2.0
"""In low precision a backend may be this much further from the truth than plain PyTorch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderOptions(Options):
    """What to measure of whole decoders; see `leadline bench models --help` and `bench decode --help`."""

    designs: tuple[str, ...]
    shape: BenchShape
    two_phase: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions(DecoderOptions):
    """Of `bench models`."""

    designs: tuple[str, ...] = DESIGNS
    shape_name: str | None = None
    rounds: int = 9
    warm: int = 1

    @property
    def as_targeted(self) -> bool:
        """Whether there are targets for this shape."""
        return self.shape_name is not None and super().as_targeted

    def plain(self) -> dict[str, Any]:
        """As the JSON file keeps them."""
        return {**super().plain(), "hidden": self.shape.hidden, "vocabulary": VOCABULARY}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A model on a backend, which reads in one phase or in two."""

    design: str
    backend: Backend
    model: Decoder
    two_phase: bool = False

    @property
    def label(self) -> str:
        """The design, and whether it reads in two phases."""
        return f"{self.design}{TWO_PHASES if self.two_phase else ''}"

    @property
    def name(self) -> str:
        """Unique in the run."""
        return self.label if self.backend == "auto" else f"{self.label} {self.backend}"

    def row(self, failed: str) -> Row:
        """What stands in the table once it is checked."""
        backend = self.backend if has_operators(self.model.config) else "-"
        return Row(name=self.name, label=self.label, backend=backend, failed=failed)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The model runs as this subject inside the block."""
        self.model.prefetch = self.two_phase
        with use_backend(self.backend):
            yield
        self.model.prefetch = False


def bench_models(
    options: ModelOptions,
    machine: Mapping[str, Any],
    say: Say = lambda text: None,
    until: Callable[[], bool] = lambda: False,
) -> Result:
    """Checks, counts and times every design on every backend that can run here.

    Raises:
        UsageError: a design that doesn't fit the shape, or a backend that can't run here.
    """
    subjects, notes = subjects_for(options, options.shape, training=True)
    batch = batch_of(options.shape, options.device)
    run = Run(options, notes, say, until)
    with run.keeping():
        for row in _checked(subjects, batch, options, say):
            run.rows[row.name] = row
            if until():
                notes.append(f"what follows {row.name} is left out: there was no time left")
                break
        if not options.check_only:
            sound = [subject for subject in subjects if subject.name in run.rows and not run.rows[subject.name].failed]
            for subject in sound:
                say(f"{subject.name}: memory")
                counted = _memory(subject, batch, options.device)
                run.rows[subject.name] = dataclasses.replace(run.rows[subject.name], numbers=counted)
            run.time(_candidate(subject, batch) for subject in sound)
    rows = run.timed(BASELINE)
    return run.result(
        {name: _judged(row, rows.get(BASELINE), options) for name, row in rows.items()},
        "shapes a and b",
        bench="models",
        title=f"forward and backward of a decoder: {options.shape}, {options.where}",
        method=f"{what_is_timed(options.device, options.clock)}, no optimiser; interleaved rounds, medians with "
        "distribution-free intervals, ratios within a round; nothing is flushed. Bytes saved are the storages that "
        "autograd keeps, without parameters. Peak is parameters, gradients and all tensors alive at the worst moment.",
        baseline=BASELINE,
        machine=machine,
    )


def subjects_for(options: DecoderOptions, shape: BenchShape, *, training: bool) -> tuple[list[Subject], list[str]]:
    """PreNorm first, then every design on every backend; and what was left out, in words.

    A design without depth operators runs once. All backends of a design share one model, and so do one phase and two.

    Raises:
        UsageError: two phases are asked for, and no design has them.
    """
    chosen, notes = usable_backends(options.backends, options.device, training=training)
    resolved = {design.expression: design for design in map(resolve, (BASELINE, *options.designs))}
    subjects = []
    for expression, design in resolved.items():
        config = design.decoder(shape.config, VOCABULARY)
        model = Decoder(config, device=options.device, dtype=options.dtype)
        stir(model)
        plain: tuple[Backend, ...] = ("auto",)
        for backend in chosen if has_operators(config) else plain:
            for two_phase in (False, True) if options.two_phase and config.connection.two_phase else (False,):
                subjects.append(Subject(design=expression, backend=backend, model=model, two_phase=two_phase))
    if options.two_phase and not any(subject.two_phase for subject in subjects):
        check_two_phase(subjects[-1].model.config.connection)
    return subjects, notes


def usable_backends(
    asked: Sequence[Backend], device: torch.device, *, training: bool = True
) -> tuple[tuple[Backend, ...], list[str]]:
    """The backends to measure, and what was left out, in words.

    Without a wish: in training lean and compiled on a CPU, lean and triton on a GPU, as far as they run; in
    generation what "auto" takes.

    Raises:
        UsageError: a backend asked for by name can't run here.
    """
    for name in asked:
        if name not in BACKENDS:
            raise UsageError(f"--backend {name} is not known; {', '.join(BACKENDS)} work")
        reason = why_not(name, device.type)
        if reason is not None:
            raise UsageError(f"--backend {name} can't run here: {reason}; lean and reference run everywhere")
    if asked:
        return tuple(dict.fromkeys(asked)), []
    if not training:
        return ("auto",), []
    wanted: tuple[Backend, ...] = ("lean", "compiled") if device.type == "cpu" else ("lean", "triton")
    reasons = {name: why_not(name, device.type) for name in wanted}
    notes = [f"backend {name} is left out: {reason}" for name, reason in reasons.items() if reason]
    return tuple(name for name in wanted if reasons[name] is None), notes


def has_operators(config: DecoderConfig) -> bool:
    """Whether a backend makes a difference: anything but a plain stream with norms that PyTorch has itself."""
    norms = {
        type(norm)
        for layer in config.layers
        for norm in (layer.attention_norm, layer.mlp_norm, layer.attention_output_norm)
    }
    return not isinstance(config.connection, Additive) or bool(norms & {BHyT, DyT, Derf})


@torch.no_grad()
def stir(model: Decoder) -> None:
    """Moves a connection's parameters a little off their start: zero queries would leave half of the work unseen."""
    generator = torch.Generator().manual_seed(1)
    for module in (*model.sites(), model.readout):
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            parameter.add_(START * noise)


def batch_of(shape: BenchShape, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens and targets, (B, T) each, the same for every model."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(VOCABULARY, (shape.batch, shape.context + 1), generator=generator).to(device)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def loss_of(model: Decoder, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy of the next token, in nats."""
    return F.cross_entropy(model(batch[0]).flatten(0, 1).float(), batch[1].flatten())


def _checked(
    subjects: Sequence[Subject], batch: tuple[Tensor, Tensor], options: ModelOptions, say: Say
) -> Iterator[Row]:
    """Rows that say whether loss and gradients are the reference backend's. The first warm-up, too: bodies compile."""
    for _, group in itertools.groupby(subjects, key=lambda subject: subject.design):
        expected: tuple[list[Tensor | None], list[float]] | None = None
        for subject in group:
            say(f"{subject.name}: check")
            failed = ""
            if (subject.backend != "reference" or subject.two_phase) and has_operators(subject.model.config):
                names = ["loss", *(f"the gradient of {name}" for name, _ in subject.model.named_parameters())]
                expected = expected or expectation(subject, batch, options.dtype)
                truth, tolerance = expected
                found = gradients(subject, batch)
                failed = disagreement(found, truth, names, tolerance)
            yield subject.row(failed)


def expectation(
    subject: Subject, batch: tuple[Tensor, Tensor], dtype: torch.dtype
) -> tuple[list[Tensor | None], list[float]]:
    """What loss and gradients should be, by the reference backend in one phase, and how far they may be off.

    In low precision the truth is the same model in float32, and twice the reference backend's own error is allowed.
    """
    plain = dataclasses.replace(subject, backend="reference", two_phase=False)
    usual = gradients(plain, batch)
    if dtype.itemsize >= 4:
        return usual, [TOLERANCE[dtype]] * len(usual)
    truth = gradients(dataclasses.replace(plain, model=copy.deepcopy(plain.model).float()), batch)
    return truth, [max(TIMES_PLAIN * error, TOLERANCE[dtype]) for error in errors(usual, truth)]


def gradients(subject: Subject, batch: tuple[Tensor, Tensor]) -> list[Tensor | None]:
    """The loss and every parameter's gradient, which the model does not keep."""
    model = subject.model
    with subject.running():
        loss = loss_of(model, batch)
        loss.backward()
    found = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
    model.zero_grad(set_to_none=True)
    return found


def _candidate(subject: Subject, batch: tuple[Tensor, Tensor]) -> Candidate:
    def step() -> None:
        with subject.running():
            loss_of(subject.model, batch).backward()

    return Candidate(name=subject.name, call=step, after=lambda: subject.model.zero_grad(set_to_none=True))


def _memory(subject: Subject, batch: tuple[Tensor, Tensor], device: torch.device) -> dict[str, float]:
    model = subject.model
    with subject.running():
        saved = saved_for_backward(lambda: loss_of(model, batch), model.parameters(), tape_bytes)
        peak = peak_bytes(lambda: loss_of(model, batch).backward(), device) + parameter_bytes(model.parameters())
    model.zero_grad(set_to_none=True)
    return {"saved_bytes": float(saved), "peak_bytes": float(peak)}


def _judged(row: Row, base: Row | None, options: ModelOptions) -> Row:
    """The row with its ratios of bytes and with the targets of its design at this shape."""
    numbers = dict(row.numbers)
    if base is not None and base.numbers and numbers:
        for key in ("saved", "peak"):
            numbers[f"{key}_ratio"] = numbers[f"{key}_bytes"] / base.numbers[f"{key}_bytes"]
    stated = targets.MODELS[options.shape_name] if options.as_targeted and options.shape_name else {}
    target = stated.get(row.label)
    verdicts = []
    if target is not None and row.ratio is not None:
        verdicts.append(time_verdict(row.ratio, target.time))
    if target is not None and target.saved is not None and "saved_ratio" in numbers:
        met = targets.bytes_at_most(numbers["saved_ratio"], target.saved)
        verdicts.append(Verdict(what="saved", target=target.saved, met=met, by_median=met))
    return dataclasses.replace(row, numbers=numbers, verdicts=tuple(verdicts))
