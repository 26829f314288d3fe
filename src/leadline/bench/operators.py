"""`leadline bench ops`: every operator alone, forward and backward, on every backend and against public peers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from leadline.bench import targets
from leadline.bench.cases import CASES, Case, Inputs, Maker, Sizes, Work
from leadline.bench.checks import disagreement
from leadline.bench.models import TWO_PHASES, one_phase_notes, usable_backends
from leadline.bench.peers import PEERS, PeerCase
from leadline.bench.results import Result, Row, Verdict, timed
from leadline.bench.rounds import Candidate, Clock, Say, Timings, calls_for, run_rounds, timer_for, what_is_timed
from leadline.choices import Backend
from leadline.errors import UsageError, did_you_mean
from leadline.statistics import median_of, ratios

REFERENCE = "reference"
CHECK_TOKENS = 33
TOLERANCE = 1e-9
TURN_SECONDS = 0.03
"""A turn repeats a quick operator until it lasts about this long."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorOptions:
    """What to measure, and how; see `leadline bench ops --help`."""

    cases: tuple[str, ...] = ()
    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    backends: tuple[Backend, ...] = ()
    rounds: int = 15
    warm: int = 2
    dtype: torch.dtype = torch.float32
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cpu"))
    clock: Clock = "wall"
    peers: bool = True
    check_only: bool = False

    def __post_init__(self) -> None:
        for option, value in dataclasses.asdict(self.sizes).items():
            if value < 1:
                raise UsageError(f"--{option} {value} is too small; 1 or more work")
        for name in self.cases:
            if name not in CASES:
                raise UsageError(f"operator {name!r} is not known; {', '.join(CASES)} work.{did_you_mean(name, CASES)}")

    @property
    def as_targeted(self) -> bool:
        """Whether the targets are stated for these sizes."""
        return self.sizes == Sizes() and self.dtype == torch.float32 and self.device.type == "cpu"

    def plain(self) -> dict[str, Any]:
        """As the JSON file keeps them."""
        return {
            **dataclasses.asdict(self),
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "threads": torch.get_num_threads(),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A way to do an operator's work.

    Attributes:
        truth: what its outputs should be; the tolerance is relative.
    """

    case: str
    label: str
    backend: str
    make: Callable[[Maker], Inputs]
    work: Callable[[Inputs], Sequence[Tensor]]
    truth: Callable[[Inputs], Sequence[Tensor]]
    tolerance: float

    @property
    def name(self) -> str:
        """Unique in the run."""
        return f"{self.case}: {self.label}"


def bench_operators(
    options: OperatorOptions,
    machine: Mapping[str, Any],
    say: Say = lambda text: None,
    until: Callable[[], bool] = lambda: False,
) -> Result:
    """Checks and times every operator on every backend and its peers.

    Raises:
        UsageError: a backend asked for by name can't run here.
    """
    backends, notes = usable_backends(options.backends, options.device)
    rows: dict[str, Row] = {}
    timings = Timings({})
    try:
        for name in options.cases or tuple(CASES):
            if rows and until():
                notes.append(f"{name} and what follows are left out: there was no time left")
                break
            subjects, more = subjects_of(CASES[name], backends, options)
            notes += more
            sound = []
            for subject in subjects:
                say(f"{subject.name}: check")
                failed = check(subject, options)
                rows[subject.name] = Row(
                    name=subject.name,
                    group=subject.case,
                    label=subject.label,
                    backend=subject.backend,
                    failed=failed,
                )
                if not failed:
                    sound.append(subject)
            if not options.check_only:
                found = _time(sound, options, say, until)
                timings = _joined(timings, found)
                if found.interrupted:
                    break
    except KeyboardInterrupt:
        timings = dataclasses.replace(timings, interrupted=True)
    if not options.as_targeted:
        notes.append("targets are stated for 4 sources or streams, D=512, 1,024 tokens, in float32 on a CPU")
    judged = {name: _judged(row, rows, timings, options.as_targeted) for name, row in rows.items()}
    return Result(
        bench="ops",
        title=f"operators alone: {options.sizes.count} sources or streams, D={options.sizes.dim}, "
        f"{options.sizes.tokens:,} tokens, {options.plain()['dtype']} on {options.device}",
        method=f"{what_is_timed(options.device, options.clock)}, forward and backward; the candidates of an operator "
        "in interleaved rounds, medians with distribution-free intervals, ratios within a round; nothing is "
        "flushed. Values and gradients are checked in float64 first.",
        baseline="the operator's reference",
        options=options.plain(),
        machine=machine,
        rows=tuple(judged.values()),
        notes=tuple(dict.fromkeys([*notes, *one_phase_notes(judged)])),
        interrupted=timings.interrupted,
        rounds=timings.rounds,
    )


def subjects_of(case: Case, backends: Sequence[Backend], options: OperatorOptions) -> tuple[list[Subject], list[str]]:
    """The reference, every backend and every peer that is there; and what was left out, in words."""
    chosen = dict.fromkeys((REFERENCE, *backends))
    subjects = [_on_backend(case, backend, case.work) for backend in chosen]
    if case.two_phase is not None:
        subjects += [_on_backend(case, backend, case.two_phase, TWO_PHASES) for backend in chosen]
    notes = []
    for peer in PEERS if options.peers else ():
        if peer.case == case.name:
            reason = peer.why_not(options.device)
            if reason and options.device.type in peer.devices:
                notes.append(f"{peer.name} is left out: {reason}")
            elif not reason:
                subjects.append(_of_peer(peer, case))
    return subjects, notes


def _on_backend(case: Case, backend: Any, work: Work, suffix: str = "") -> Subject:
    return Subject(
        case=case.name,
        label=f"{backend}{suffix}",
        backend=backend,
        make=case.make,
        work=lambda inputs: work(inputs, backend),
        truth=lambda inputs: case.work(inputs, "reference"),
        tolerance=TOLERANCE,
    )


def _of_peer(peer: PeerCase, case: Case) -> Subject:
    return Subject(
        case=case.name,
        label=peer.name,
        backend="peer",
        make=peer.make or case.make,
        work=peer.work,
        truth=peer.truth or (lambda inputs: case.work(inputs, "reference")),
        tolerance=peer.tolerance,
    )


def check(subject: Subject, options: OperatorOptions) -> str:
    """What is wrong with the values or gradients in float64; empty where nothing is.

    Whatever the work raises counts as a failed check.
    """
    if subject.label == REFERENCE:
        return ""
    sizes = dataclasses.replace(options.sizes, tokens=min(options.sizes.tokens, CHECK_TOKENS))
    inputs = subject.make(Maker(sizes, torch.float64, options.device))
    try:
        found, names = values_and_gradients(subject.work, inputs)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    truth, _ = values_and_gradients(subject.truth, inputs)
    return disagreement(found, truth, names, subject.tolerance)


def values_and_gradients(
    work: Callable[[Inputs], Sequence[Tensor]], inputs: Inputs
) -> tuple[list[Tensor | None], list[str]]:
    """Outputs and gradients of all leaves for a fixed gradient of the outputs, and their names."""
    leaves = inputs.leaves()
    outputs = [output for output in work(inputs) if output.is_floating_point()]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), upstream(outputs), allow_unused=True)
    names = [f"output {number}" for number in range(len(outputs))]
    return [*outputs, *gradients], [*names, *(f"the gradient of {name}" for name in leaves)]


def upstream(outputs: Sequence[Tensor]) -> list[Tensor]:
    """A fixed random gradient for every output."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output) for output in outputs]


def step_of(work: Callable[[Inputs], Sequence[Tensor]], inputs: Inputs) -> Callable[[], object]:
    """Forward and backward as one call, with the gradient of the outputs made beforehand."""
    leaves = list(inputs.leaves().values())
    given: list[Tensor] = []

    def step() -> object:
        outputs = list(work(inputs))
        if not given:
            given.extend(upstream(outputs))
        return torch.autograd.grad(outputs, leaves, given, allow_unused=True)

    return step


def _time(subjects: Sequence[Subject], options: OperatorOptions, say: Say, until: Callable[[], bool]) -> Timings:
    timer = timer_for(options.device, options.clock)
    candidates = []
    for subject in subjects:
        say(f"{subject.name}: warm-up")
        step = step_of(subject.work, subject.make(Maker(options.sizes, options.dtype, options.device)))
        step()
        calls = calls_for(step, timer, TURN_SECONDS)
        candidates.append(Candidate(name=subject.name, call=step, calls=calls))
    return run_rounds(candidates, options.rounds, timer, warm=options.warm, say=say, until=until)


def _joined(one: Timings, two: Timings) -> Timings:
    return Timings({**one.seconds, **two.seconds}, interrupted=two.interrupted)


def _judged(row: Row, rows: Mapping[str, Row], timings: Timings, targeted: bool) -> Row:
    """The row with its times, its ratio to the reference, and the targets of its operator."""
    group = {name: timings.seconds[name] for name in timings.seconds if name.startswith(f"{row.group}: ")}
    done = Timings(group)
    row = timed(row, done, f"{row.group}: {REFERENCE}")
    if row.time is None or row.backend in ("peer", REFERENCE) or not targeted:
        return row
    verdicts = []
    for target in targets.OPERATORS.get(row.group, ()):
        other = f"{row.group}: {target.over}"
        if other in rows and not rows[other].failed and group.get(other):
            faster = median_of(ratios(group[other][: done.rounds], row.seconds))
            verdicts.append(
                Verdict(
                    what=f"faster than {target.over}",
                    target=target.factor,
                    met=targets.at_least(faster, target.factor),
                    by_median=faster.median >= target.factor,
                    found=faster,
                )
            )
    return dataclasses.replace(row, verdicts=tuple(verdicts))
