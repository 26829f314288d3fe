"""What can be cut, how many units of it, and which: candidates, amounts, explicit lists, protected ends.

Blocks are numbered from 0, and ranges hold both their ends: `8..10` is blocks 8, 9 and 10.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from leadline.errors import UsageError
from leadline.models import Decoder
from leadline.stacks import Stack, Unit

_ENTRY = re.compile(r"(\d+)(?:\.\.(\d+)|\.([a-z]+))?")


@dataclass(frozen=True, kw_only=True)
class Amount:
    """How much is cut. Exactly one of `ratio`, `count` and `blocks` is given.

    Attributes:
        ratio: a share of all units, rounded to the nearest number of units, halves up.
        count: a number of units.
        blocks: the units themselves: `3,5,8..10`, or `3.mlp` for a sublayer.
        protect_first: blocks from the start that stay.
        protect_last: blocks from the end that stay.

    Raises:
        UsageError: none or several of the three, or a number out of range.
    """

    ratio: float | None = None
    count: int | None = None
    blocks: str | None = None
    protect_first: int = 0
    protect_last: int = 0

    def __post_init__(self) -> None:
        given = [f"--{name}" for name in ("ratio", "count", "blocks") if getattr(self, name) is not None]
        if len(given) != 1:
            said = " and ".join(given) + " are given" if given else "nothing says how much to cut"
            raise UsageError(f"{said}; give one of --ratio 0.25, --count 6 and --blocks 3,5,8..10")
        if self.ratio is not None and not 0 <= self.ratio < 1:
            raise UsageError(f"--ratio {self.ratio:g} is out of range; it is the share to cut, from 0 to less than 1")
        if self.count is not None and self.count < 0:
            raise UsageError(f"--count {self.count} is negative; 0 or more work")
        for name in ("protect_first", "protect_last"):
            if getattr(self, name) < 0:
                raise UsageError(f"--{name.replace('_', '-')} {getattr(self, name)} is negative; 0 or more work")


def number_to_cut(amount: Amount, units: int, free: int, kind: str, option: str = "--ratio") -> int:
    """How many of `units` units are cut, of which `free` are not protected. `option` names the ratio in errors.

    Raises:
        UsageError: all would go, more than are free, or a ratio that is less than half a unit.
    """
    if amount.ratio is not None:
        wanted = _nearest(amount.ratio, units)
        if wanted == 0 and amount.ratio > 0:
            raise UsageError(f"{option} {amount.ratio:g} of {units} {kind}s is none; {1 / units:.2g} is one of them")
        said = f"{option} {amount.ratio:g} is {wanted} of {units} {kind}s"
    else:
        wanted = amount.count or 0
        said = f"--count {wanted} of {units} {kind}s"
    largest = min(free, units - 1)
    most = f"{largest} is the most"
    if amount.ratio is not None:
        most = f"{option} {_ratio_of(largest, units)} is {largest}, the most"
    if wanted >= units:
        raise UsageError(f"{said}, which leaves nothing; {most}")
    if wanted > free:
        raise UsageError(
            f"{said}, but --protect-first {amount.protect_first} and --protect-last {amount.protect_last} leave "
            f"{free} to choose from; {most}"
        )
    return wanted


def _nearest(ratio: float, units: int) -> int:
    """A share of the units, halves up: of the ratio as it is written, since 0.58 as a float is less than 0.58."""
    return math.floor(Fraction(str(ratio)) * units + Fraction(1, 2))


def _ratio_of(count: int, units: int) -> str:
    """The shortest ratio of two or more digits that is so many units."""
    written = (f"{count / units:.{digits}g}" for digits in range(2, 17))
    return next(ratio for ratio in written if _nearest(float(ratio), units) == count)


def free_units(found: Candidates, blocks: int, amount: Amount) -> list[Unit]:
    """The candidates that may be cut: all but those that run in a protected block.

    Args:
        blocks: of the stack.

    Raises:
        UsageError: every block is protected.
    """
    first, last = amount.protect_first, blocks - amount.protect_last
    free = [unit for unit, runs in found.runs.items() if all(first <= run.block < last for run in runs)]
    if not free:
        raise UsageError(
            f"--protect-first {amount.protect_first} and --protect-last {amount.protect_last} protect all of {blocks} "
            f"blocks; together {blocks - 1} is the most"
        )
    return free


def parse_blocks(text: str, stack: Stack, found: Candidates) -> list[Unit]:
    """The candidates that `3,5,8..10` or `3.mlp,5.attention` names, in the order in which they run.

    Ranges hold both ends. Where the unit is the sublayer, a block alone means all its sublayers. Of a block that runs
    several times, any of its runs names it.

    Raises:
        UsageError: something that is not a block of this model, a range the wrong way round, or a block named twice.
    """
    named: list[Unit] = []
    for entry in text.replace(" ", "").split(","):
        for unit in _entry(entry, stack, found.kind):
            if unit in named:
                raise UsageError(f"--blocks {text} names {found.kind} {unit} twice")
            named.append(unit)
    wanted = {found.first(unit) for unit in named}
    return [unit for unit in found.units if unit in wanted]


def _entry(entry: str, stack: Stack, kind: str) -> list[Unit]:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise UsageError(f"--blocks has {entry!r}; blocks are numbers from 0, and ranges hold both ends: 3,5,8..10")
    first, last, sublayer = match.groups()
    if sublayer is not None:
        if kind == "block":
            raise UsageError(f"--blocks has {entry}, which is a sublayer; that needs --unit sublayer")
        unit = Unit(int(first), sublayer)
        stack.check([unit])
        return [unit]
    begin, end = int(first), int(last or first)
    if end < begin:
        raise UsageError(f"--blocks has {entry}, which runs backwards; {end}..{begin} works")
    if end >= stack.blocks:
        raise UsageError(f"--blocks has {entry}, and this model has blocks 0 to {stack.blocks - 1}")
    return [unit for unit in stack.units(kind) if begin <= unit.block <= end]


def explicit(amount: Amount, stack: Stack, found: Candidates) -> list[Unit]:
    """The candidates that `amount.blocks` names, none of them protected.

    Raises:
        UsageError: as `parse_blocks`; a protected block, or all of them.
    """
    units = parse_blocks(amount.blocks or "", stack, found)
    free = free_units(found, stack.blocks, amount)
    for unit in units:
        if unit not in free:
            raise UsageError(f"--blocks names {unit}, which --protect-first or --protect-last protects")
    if len(units) == len(found.units):
        raise UsageError(f"--blocks {amount.blocks} names every {found.kind}, which leaves nothing")
    return units


def lowest(units: Sequence[Unit], scores: Sequence[float], free: Collection[Unit], count: int) -> list[Unit]:
    """The `count` free units of the lowest scores, in the order in which they run; of equals the deeper goes first."""
    order = [i for i in range(len(units)) if units[i] in free]
    order.sort(key=lambda i: (scores[i], -i))
    return [units[i] for i in sorted(order[:count])]


def lowest_window(distances: Sequence[float], size: int, free: Collection[Unit]) -> list[Unit]:
    """The `size` contiguous free blocks of the smallest distance; of equals the deeper window.

    Args:
        distances: by the window's first block.

    Raises:
        UsageError: the protected ends leave no window that long.
    """
    if size == 0:
        return []
    blocks = {unit.block for unit in free}
    fits = [start for start in range(len(distances)) if all(b in blocks for b in range(start, start + size))]
    if not fits:
        raise UsageError(f"the protected blocks leave no {size} contiguous blocks to cut")
    start = min(fits, key=lambda i: (distances[i], -i))
    return [Unit(block) for block in range(start, start + size)]


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
