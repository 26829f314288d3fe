"""Tapers: how wide each layer is, as shares of the widths that a shape gives (CascadeFormer, arXiv 2606.26538).

The model's width stays; what lies inside a layer shrinks. Attention tapers in steps of whole heads of one width, so
that rotary embeddings are shared; the MLP tapers linearly. That is the paper's; its schedules are not known, so all
numbers here are ours. Layers are counted from 1.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from leadline.designs.presets import PRESETS, ShapeConfig
from leadline.errors import UsageError

WIDEST = 8
"""The largest share: a layer of eight times the shape's width."""
ROUNDED_TO = 8
"""MLP widths are rounded to multiples of this, but where the share is 1. [ours]"""
_SHARE = re.compile(r"\d{1,9}(?:\.\d{1,9})?|\.\d{1,9}|\d{1,9}/\d{1,9}")
_NEAR = Fraction(1, 2000)
_SIMPLE = 12


class Widths(NamedTuple):
    """The widths of one layer."""

    heads: int
    kv_heads: int
    hidden: int


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A share for every layer.

    Attributes:
        shares: of equal steps, or the first and the last layer's where it is linear.
        linear: whether the shares lie on a line.
    """

    shares: tuple[Fraction, ...]
    linear: bool = False

    def at(self, number: int, layers: int) -> Fraction:
        """The share of layer `number`, from 1. Earlier steps are a layer longer where steps can't be equal."""
        if not self.linear:
            return self.shares[(number - 1) * len(self.shares) // layers]
        first, last = self.shares
        return first + (last - first) * Fraction(number - 1, max(1, layers - 1))

    @property
    def uniform(self) -> bool:
        """Whether every layer has the whole width."""
        return set(self.shares) == {Fraction(1)}

    def __str__(self) -> str:
        if self.uniform:
            return "1"
        return ("~" if self.linear else ":").join(str(share) for share in self.shares)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taper:
    """How widths change over depth.

    Attributes:
        heads: steps of equal length, `1:2/3:1/3`, of the attention heads.
        mlp: a line from the first to the last layer, `1~1/2`, or steps, of the MLP's width.

    Raises:
        UsageError: a schedule that can't be read.
    """

    heads: str = "1"
    mlp: str = "1"

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", str(read_schedule(self.heads, "heads", linear=False)))
        object.__setattr__(self, "mlp", str(read_schedule(self.mlp, "mlp", linear=True)))

    @property
    def uniform(self) -> bool:
        """Whether there is no taper at all."""
        return self.heads == "1" and self.mlp == "1"

    def widths(self, shape: ShapeConfig) -> tuple[Widths, ...]:
        """The widths of every layer of a shape.

        Key and value heads follow the query heads: the largest divisor of a layer's heads that is no more than its
        share of them. [ours]

        Raises:
            UsageError: a layer's share of the heads is not a whole number; names the layer and what works.
        """
        heads, mlp = read_schedule(self.heads, "heads", linear=False), read_schedule(self.mlp, "mlp", linear=True)
        found = []
        for number in range(1, shape.blocks + 1):
            share = heads.at(number, shape.blocks)
            queries = share * shape.heads
            if queries.denominator != 1:
                raise UsageError(_no_whole_heads(self, heads, shape, number))
            keys = _largest_divisor(int(queries), share * shape.kv_heads)
            found.append(Widths(int(queries), keys, _mlp_width(shape.hidden, mlp.at(number, shape.blocks))))
        return tuple(found)

    def levelled(self, shape: ShapeConfig) -> Taper:
        """The uniform taper with this one's mean widths: the nearest whole number of heads, and the nearest multiple
        of 8 of the MLP's width. Whether it costs the same has to be counted. [ours]

        Raises:
            UsageError: as `widths`.
        """
        widths = self.widths(shape)
        heads = Fraction(sum(width.heads for width in widths), len(widths))
        hidden = Fraction(sum(width.hidden for width in widths), len(widths) * shape.hidden)
        return Taper(
            heads=str(Fraction(max(1, round(heads)), shape.heads)),
            mlp=str(Fraction(_mlp_width(shape.hidden, hidden), shape.hidden)),
        )

    def notes(self, shape: ShapeConfig) -> list[str]:
        """What someone who runs this taper at this shape should know."""
        if self.uniform:
            return []
        widths = self.widths(shape)
        notes = []
        if self.heads != "1":
            notes.append(f"heads by layer: {spans([width.heads for width in widths])}")
            groups = {width.heads // width.kv_heads for width in widths}
            if groups != {shape.heads // shape.kv_heads}:
                keys = spans([width.kv_heads for width in widths])
                notes.append(f"key and value heads by layer: {keys}, the most that divide a layer's heads in its share")
        if self.mlp != "1":
            notes.append(f"MLP width by layer: {spans([width.hidden for width in widths])}")
        for name, schedule in (("heads", self.heads), ("mlp", self.mlp)):
            if schedule.count(":") >= shape.blocks:
                notes.append(f"{name}={schedule} has more steps than the stack has layers: some are left out")
        notes.append(
            "layers differ in size: compare their gradient shares in the form that is divided by √parameters "
            "(share_per_parameter)"
        )
        return notes


def read_schedule(text: str, option: str, *, linear: bool) -> Schedule:
    """A schedule from `1:2/3:1/3` (steps) or `1~1/2` (a line).

    A share is a fraction or a decimal. A decimal within 0.0005 of a fraction with a denominator up to 12 is taken as
    this fraction: 0.667 is 2/3.

    Args:
        linear: whether a line is allowed.

    Raises:
        UsageError: it can't be read, or a share is out of range.
    """
    examples = "1:2/3:1/3 (steps) and 1~1/2 (a line) work" if linear else "1:2/3:1/3 (steps of equal length) works"
    if "~" in text and not linear:
        raise UsageError(f"taper({option}={text}): heads taper in steps, not on a line; {examples}")
    parts = text.split("~") if "~" in text else text.split(":")
    if "~" in text and len(parts) != 2:
        raise UsageError(f"taper({option}={text}): a line has two ends; {examples}")
    shares = tuple(_read_share(part.strip(), text, option, examples) for part in parts)
    if len(set(shares)) == 1:
        return Schedule(shares[:1])
    return Schedule(shares, linear="~" in text)


def spans(values: Sequence[int]) -> str:
    """Values by layer in words: `6 in 1–5, 4 in 6–10, 2 in 11–15`; the ends alone where they change all the time."""
    runs, last = [], 0
    for value, same in itertools.groupby(values):
        first, last = last + 1, last + len(list(same))
        runs.append((value, first, last))
    if len(runs) > 6:
        return f"{values[0]} in layer 1 to {values[-1]} in layer {len(values)}, {len(set(values))} widths in all"
    return ", ".join(f"{value} in {first}" + (f"–{last}" if last > first else "") for value, first, last in runs)


def _read_share(text: str, whole: str, option: str, examples: str) -> Fraction:
    if _SHARE.fullmatch(text) is None or re.search(r"/0+$", text):
        raise UsageError(f"taper({option}={whole}): {text!r} is not a share; {examples}")
    share = Fraction(text)
    if "." in text and abs(share.limit_denominator(_SIMPLE) - share) <= _NEAR:
        share = share.limit_denominator(_SIMPLE)
    if not 0 < share <= WIDEST:
        raise UsageError(
            f"taper({option}={whole}): {text} is out of range; shares are more than 0 and {WIDEST} at most"
        )
    return share


def _largest_divisor(heads: int, most: Fraction) -> int:
    return next(count for count in range(max(1, math.floor(most)), 0, -1) if heads % count == 0)


def _mlp_width(hidden: int, share: Fraction) -> int:
    if share == 1:
        return hidden
    rounded = max(ROUNDED_TO, ROUNDED_TO * math.floor(hidden * share / ROUNDED_TO + Fraction(1, 2)))
    return min(hidden, rounded) if share < 1 else rounded


def _no_whole_heads(taper: Taper, schedule: Schedule, shape: ShapeConfig, number: int) -> str:
    share = schedule.at(number, shape.blocks)
    unit = math.lcm(*(part.denominator for part in schedule.shares))
    below, above = shape.heads // unit * unit, (shape.heads // unit + 1) * unit
    heads = " and ".join(str(count) for count in (below, above) if count > 0)
    presets = [preset.name for preset in PRESETS.values() if preset.heads % unit == 0]
    parts = [str(Fraction(count, shape.heads)) for count in range(shape.heads, 0, -1)]
    shown = ", ".join(parts if len(parts) <= 4 else [*parts[:2], "…", parts[-1]])
    fitting = f", as in preset {', '.join(presets)}" if presets else ""
    return (
        f"layer {number} of {shape.blocks}: {shape.heads} heads × {share} = {float(share * shape.heads):.4g} is "
        f"not a whole number of heads (heads={taper.heads}). Multiples of {unit} heads work, such as {heads}{fitting}; "
        f"or, with {shape.heads} heads, shares of {shown} in taper(heads=…)"
    )


UNTAPERED = Taper()
"""Every layer as wide as the shape says."""
