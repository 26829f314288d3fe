"""What the pictures of a comparison share."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from leadline.compare.report.values import DesignValues
from leadline.drawing.lines import Point, Series
from leadline.drawing.words import listed


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
