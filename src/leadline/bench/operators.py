"""`leadline bench ops`: every operator alone, forward and backward, on every backend and against public peers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from leadline.bench import targets
from leadline.bench.cases import CASES, Case, Inputs, Maker, Sizes, Work
from leadline.bench.checks import disagreement
from leadline.bench.models import usable_backends
from leadline.bench.peers import PEERS
from leadline.bench.results import Result, Row, Verdict, timed
from leadline.bench.rounds import Candidate, Say, Timings, calls_for, what_is_timed
from leadline.bench.running import TWO_PHASES, Options, Run
from leadline.choices import Backend
from leadline.errors import UsageError, did_you_mean
from leadline.statistics import median_of, ratios

REFERENCE: Backend = "reference"
CHECK_TOKENS = 33
TOLERANCE = 1e-9
TURN_SECONDS = 0.03
"""A turn repeats a quick operator until it lasts about this long."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorOptions(Options):
    """What to measure, and how; see `leadline bench ops --help`."""

    cases: tuple[str, ...] = ()
    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    rounds: int = 15
    warm: int = 2
    peers: bool = True

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
        return self.sizes == Sizes() and super().as_targeted


@dataclasses.dataclass(frozen=True)
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

    def row(self, failed: str) -> Row:
        """What stands in the table once it is checked."""
        return Row(name=self.name, group=self.case, label=self.label, backend=self.backend, failed=failed)


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
    run = Run(options, notes, say, until)
    with run.keeping():
        for name in options.cases or tuple(CASES):
            if run.rows and until():
                notes.append(f"{name} and what follows are left out: there was no time left")
                break
            subjects, more = subjects_of(CASES[name], backends, options)
            notes += more
            for subject in subjects:
                say(f"{subject.name}: check")
                run.rows[subject.name] = subject.row(check(subject, options))
            if not options.check_only:
                sound = [subject for subject in subjects if not run.rows[subject.name].failed]
                run.time(_candidate(subject, run, options) for subject in sound)
                if run.timings.interrupted:
                    break
    return run.result(
        {name: _judged(row, run) for name, row in run.rows.items()},
        "4 sources or streams, D=512, 1,024 tokens",
        bench="ops",
        title=f"operators alone: {options.sizes.count} sources or streams, D={options.sizes.dim}, "
        f"{options.sizes.tokens:,} tokens, {options.where}",
        method=f"{what_is_timed(options.device, options.clock)}, forward and backward; the candidates of an operator "
        "in interleaved rounds, medians with distribution-free intervals, ratios within a round; nothing is "
        "flushed. Values and gradients are checked in float64 first.",
        baseline="the operator's reference",
        machine=machine,
    )


def subjects_of(case: Case, backends: Sequence[Backend], options: OperatorOptions) -> tuple[list[Subject], list[str]]:
    """The reference, every backend and every peer that is there; and what was left out, in words."""

    def truth(inputs: Inputs) -> Sequence[Tensor]:
        return case.work(inputs, REFERENCE)

    subjects = []
    phases = [("", case.work)] if case.two_phase is None else [("", case.work), (TWO_PHASES, case.two_phase)]
    for suffix, work in phases:
        for backend in dict.fromkeys((REFERENCE, *backends)):
            bound = functools.partial(_on_backend, work, backend)
            subjects.append(Subject(case.name, f"{backend}{suffix}", backend, case.make, bound, truth, TOLERANCE))
    notes = []
    for peer in PEERS if options.peers else ():
        if peer.case == case.name:
            reason = peer.why_not(options.device)
            if reason and options.device.type in peer.devices:
                notes.append(f"{peer.name} is left out: {reason}")
            elif not reason:
                made, true = peer.make or case.make, peer.truth or truth
                subjects.append(Subject(case.name, peer.name, "peer", made, peer.work, true, peer.tolerance))
    return subjects, notes


def _on_backend(work: Work, backend: Backend, inputs: Inputs) -> Sequence[Tensor]:
    return work(inputs, backend)


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


def _candidate(subject: Subject, run: Run, options: OperatorOptions) -> Candidate:
    run.say(f"{subject.name}: warm-up")
    step = step_of(subject.work, subject.make(Maker(options.sizes, options.dtype, options.device)))
    step()
    return Candidate(name=subject.name, call=step, calls=calls_for(step, run.timer, TURN_SECONDS))


def _judged(row: Row, run: Run) -> Row:
    """The row with its times, its ratio to the reference, and the targets of its operator."""
    prefix = f"{row.group}: "
    group = {name: seconds for name, seconds in run.timings.seconds.items() if name.startswith(prefix)}
    done = Timings(group)
    row = timed(row, done, f"{prefix}{REFERENCE}")
    if row.time is None or row.backend in ("peer", REFERENCE) or not run.options.as_targeted:
        return row
    verdicts = []
    for target in targets.OPERATORS.get(row.group, ()):
        other = f"{prefix}{target.over}"
        if other in run.rows and not run.rows[other].failed and group.get(other):
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
