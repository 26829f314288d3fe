"""What a picture on the page is, and what all of them share."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from leadline.compare.report.lines import Point, Series
from leadline.compare.report.values import DesignValues
from leadline.compare.report.words import listed


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The values of a picture as a table: a heading for the rows, the columns, and the rows by their first cell."""

    head: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture on the page.

    Attributes:
        name: its place in the address: `#name`.
        reading: one sentence on how to read it.
        note: what else a reader must know, if anything.
    """

    name: str
    heading: str
    reading: str
    body: Markup
    note: str = ""
    numbers: Numbers | None = None


def line_of(design: DesignValues, points: Sequence[Point]) -> Series:
    return Series(index=design.index, name=design.name, key=design.key, points=points)


def names(designs: Sequence[DesignValues]) -> str:
    return listed([d.name for d in designs])


def sublayer(x: float, last: float) -> str:
    """The sublayer at place x on the block axis: `block 3 attention`; the readout where x is the whole `last`."""
    if x == last and x == int(x):
        return "readout"
    return f"block {int(x)} {'attention' if x == int(x) else 'MLP'}"


def middle(values: Sequence[float]) -> float | None:
    """The mean, or None for nothing."""
    return statistics.fmean(values) if values else None
