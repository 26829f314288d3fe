"""What the pictures of a comparison share."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.experiments.compare.report.values import DesignValues
from leadline.report.lines import Point, Series
from leadline.report.words import listed


def line_of(design: DesignValues, points: Sequence[Point]) -> Series:
    return Series(index=design.index, name=design.name, key=design.key, points=points)


def names(designs: Sequence[DesignValues]) -> str:
    return listed([d.name for d in designs])
