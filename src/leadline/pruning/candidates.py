"""What can be cut: each block or sublayer once, also where it runs several times in a pass."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from leadline.errors import UsageError
from leadline.models import Decoder
from leadline.stacks import Stack, Unit

KINDS = ("block", "sublayer")


@dataclass(frozen=True)
class Candidates:
    """The units of a stack that can be cut on their own.

    A block that runs several times with the same parameters is one candidate: it is named by its first run, counts
    once, has one score, and goes or stays with all its runs.

    Attributes:
        kind: "block" or "sublayer".
        runs: by each candidate's first run, all its runs, in the order in which they run.
    """

    kind: str
    runs: dict[Unit, tuple[Unit, ...]]

    @property
    def units(self) -> list[Unit]:
        """The candidates by their first runs, in order."""
        return list(self.runs)

    @property
    def repeats(self) -> bool:
        """Whether any of them runs more than once."""
        return any(len(runs) > 1 for runs in self.runs.values())

    def first(self, unit: Unit) -> Unit:
        """The candidate that a unit is a run of."""
        return next(first for first, runs in self.runs.items() if unit in runs)

    def expand(self, units: Iterable[Unit]) -> list[Unit]:
        """All runs of some candidates."""
        return sorted((run for unit in units for run in self.runs[unit]), key=lambda u: (u.block, u.sublayer or ""))

    def kept(self, cut: Collection[Unit]) -> list[Unit]:
        """The candidates that are not cut."""
        return [unit for unit in self.runs if unit not in cut]


def candidates(stack: Stack, kind: str) -> Candidates:
    """What of a stack can be cut.

    Raises:
        UsageError: an unknown kind, a model whose sublayers can't be told apart, or a block whose parameters
            are all another's, in a model that isn't Leadline's.
    """
    if kind not in KINDS:
        raise UsageError(f"--unit {kind} is not known; {' and '.join(KINDS)} work")
    model = stack.model
    layers = model.config.block_layers if isinstance(model, Decoder) else tuple(range(stack.blocks))
    found: dict[tuple[int, str | None], list[Unit]] = {}
    if not stack.units(kind):
        raise UsageError("--unit sublayer: the sublayers of this model can't be told apart; --unit block works")
    for unit in stack.units(kind):
        found.setdefault((layers[unit.block], unit.sublayer), []).append(unit)
    for runs in found.values():
        if not stack.parameters_of(runs[0]):
            raise UsageError(
                f"{kind} {runs[0]} has no parameters of its own; which block it shares them with can't be told, so it "
                "can't be cut"
            )
    return Candidates(kind, {runs[0]: tuple(runs) for runs in found.values()})
