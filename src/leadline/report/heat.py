"""Heat maps: triangles, ragged rows, strips and rows of small matrices, with the bar that explains their colours."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from leadline.report import svg
from leadline.report.colours import LEVELS, LEVELS_BELOW
from leadline.report.pictures import Row
from leadline.report.svg import tag
from leadline.report.words import plain

Tip = Callable[[int, int, float], str]


@dataclass(frozen=True, kw_only=True)
class Shades:
    """Values to colours, by the root of the value's share of `high` where `root`, so that small values show.

    Values below zero have their own colours down to `low`.
    """

    high: float
    low: float = 0.0
    root: bool = False

    @classmethod
    def of(cls, values: Sequence[float], *, root: bool = False, high: float | None = None) -> Shades:
        found = max(values, default=0.0) if high is None else high
        return cls(high=found if found > 0 else 1.0, low=min([0.0, *values]), root=root)

    def share(self, value: float, end: float | None = None) -> float:
        """The part of the way from zero to `end`, the highest value unless given, as colours have it."""
        part = min(max(value / (end or self.high), 0.0), 1.0)
        return part**0.5 if self.root else part

    def class_(self, value: float) -> str:
        if value < 0 and self.low < 0:
            return f"b{round(self.share(value, self.low) * (LEVELS_BELOW - 1))}"
        return f"h{round(self.share(value) * (LEVELS - 1))}"

    def bar(self, label: str) -> Markup:
        """The colour bar with its ticks."""
        width, left, height = 240.0, 4.0, 34.0
        below = self.low < 0
        middle = left + (width * 0.3 if below else 0.0)
        right = left + width
        step, step_below = (right - middle) / LEVELS, (middle - left) / LEVELS_BELOW
        ramps = [(middle + i * step, step, f"h{i}") for i in range(LEVELS)]
        if below:
            ramps += [(middle - (i + 1) * step_below, step_below, f"b{i}") for i in range(LEVELS_BELOW)]
        drawn = [tag("rect", x=x, y=0, width=wide + 0.4, height=11, class_=class_) for x, wide, class_ in ramps]
        if below:
            drawn.append(svg.words(plain(self.low, 2), left, 26.0, "tick"))
        last = middle - 99.0
        logarithmic = [0.0, *svg.ticks(self.high / 300, self.high, log=True, about=8)] if self.root else []
        for value in logarithmic or svg.ticks(0.0, self.high, about=5):
            at = middle + self.share(value) * (right - middle)
            if at - last >= 30 and at < right + 2:
                anchor = "start" if value == 0 and not below else "middle"
                drawn.append(svg.words(plain(value, 2), at, 26.0, "tick", anchor))
                last = at
        bar = svg.picture(width + 8, height, f"Colours: {label}", drawn, "bar")
        return tag("div", tag("span", label), bar, class_="colours")


def cells(
    values: Sequence[Row], shades: Shades, width: float, height: float, tip: Tip | None, x: float = 0.0, y: float = 0.0
) -> Markup:
    """One coloured cell per value; None leaves a hole. With `tip` each has its words, without it cells share paths."""
    drawn = []
    shared: dict[str, list[str]] = {}
    for i, one in enumerate(values):
        levels = [None if value is None else shades.class_(value) for value in one]
        for level, run in itertools.groupby(range(len(one)), levels.__getitem__):
            places = list(run)
            if level is None:
                continue
            if tip:
                for j in places:
                    title = tag("title", tip(i, j, one[j] or 0.0))
                    drawn.append(tag("path", title, d=f"M{j} {i}h1v1h-1z", class_=level))
            else:
                shared.setdefault(level, []).append(f"M{places[0]} {i}h{len(places)}v1h-{len(places)}z")
    drawn += [tag("path", d="".join(outlines), class_=level) for level, outlines in sorted(shared.items())]
    return svg.group(drawn, class_="cells", transform=f"translate({x:.5g} {y:.5g}) scale({width:.5g} {height:.5g})")


def triangle(values: Sequence[Row], shades: Shades, label: str, tip: Tip | None) -> Markup:
    """A symmetric matrix, below its diagonal, with the blocks counted from 0 along two sides."""
    size = len(values)
    cell = 200.0 / max(size, 1)
    lower = [[v if j < i else None for j, v in enumerate(one)] for i, one in enumerate(values)]
    drawn = [cells(lower, shades, cell, cell, tip, x=28.0, y=2.0)]
    for block in svg.whole_ticks(0, max(size - 2, 0), 4):
        middle = (block + 0.5) * cell
        drawn.append(svg.words(str(block), 23.0, 2 + middle + 5, "tick", "end"))
        drawn.append(svg.words(str(block), 28.0 + middle, 219.0, "tick", "middle"))
    return svg.picture(232.0, 223.0, label, drawn, "square")


def ragged(values: Sequence[Row], shades: Shades, label: str, tip: Tip | None, rows: tuple[str, str]) -> Markup:
    """Rows of growing length, top first: a read per row, a source per column."""
    columns = max((len(one) for one in values), default=1)
    width, height, left, top = 330.0, 330.0, 34.0, 16.0
    cell = (width / max(columns, 1), height / max(len(values), 1))
    drawn = [
        tag("rect", x=left, y=top, width=width, height=height, class_="hollow"),
        cells(values, shades, *cell, tip, x=left, y=top),
    ]
    blocks = max((len(values) - 1) // 2, 1)
    for block in svg.whole_ticks(0, blocks - 1, 5):
        drawn.append(svg.words(str(block), left - 6, top + (2 * block + 1) * cell[1] + 4, "tick", "end"))
    if len(values) > 2:
        drawn.append(svg.words("out", left - 6, top + height + 3, "tick", "end"))
    drawn.append(svg.words(rows[0], left, 10.0, "tick"))
    drawn.append(svg.words(rows[1], left, top + height + 16, "tick"))
    if columns > 1:
        drawn.append(svg.words(f"source {columns - 1} →", left + width, top + height + 16, "tick", "end"))
    return svg.picture(left + width + 6, top + height + 22, label, drawn, "square")


def strip(values: Sequence[Row], shades: Shades, label: str, tip: Tip) -> Markup:
    """One column per sublayer, one row per stream: wide, and for phones."""
    streams = max((len(one) for one in values), default=0)
    turned: list[Row] = [[one[s] if s < len(one) else None for one in values] for s in range(streams)]
    both = []
    for full, left, cell, class_, titles in ((800.0, 54.0, 18.0, "wide", True), (360.0, 26.0, 14.0, "narrow", False)):
        width = full - left - 10
        each = width / max(len(values), 1)
        drawn = [cells(turned, shades, each, cell, (lambda s, i, v: tip(i, s, v)) if titles else None, x=left, y=2.0)]
        for s in range(streams):
            drawn.append(svg.words(str(s), left - 6, 2 + (s + 0.5) * cell + 4, "tick", "end"))
        for block in svg.whole_ticks(0, max(len(values) // 2 - 1, 0), 8 if full > 500 else 5):
            drawn.append(svg.words(str(block), left + (2 * block + 1) * each, cell * streams + 16, "tick", "middle"))
        both.append(svg.picture(full, cell * streams + 22, label, drawn, class_))
    return both[0] + both[1]


def matrices(values: Sequence[Sequence[Row]], shades: Shades, label: str, tip: Callable[[int], Tip]) -> Markup:
    """A small matrix per sublayer, a column of them per block: attention above, MLP below."""
    blocks = (len(values) + 1) // 2
    both = []
    for full, most, left, class_, titles in ((800.0, 24, 42.0, "wide", True), (360.0, 8, 34.0, "narrow", False)):
        columns = min(blocks, most) or 1
        pitch = (full - left - 4) / max(columns, 12 if full > 500 else 6)
        side = pitch * 0.86
        drawn = []
        lines = (blocks + columns - 1) // columns
        for i, matrix in enumerate(values):
            block, part = divmod(i, 2)
            line, column = divmod(block, columns)
            x, y = left + column * pitch, 16 + line * (2 * pitch + 22) + part * pitch
            size = max(len(matrix), 1)
            drawn.append(cells(matrix, shades, side / size, side / size, tip(i) if titles else None, x=x, y=y))
            if part == 0:
                drawn.append(svg.words(str(block), x + side / 2, y - 5, "tick", "middle"))
            if column == 0:
                drawn.append(svg.words("MLP" if part else "attn", left - 6, y + side / 2 + 4, "tick", "end"))
        both.append(svg.picture(full, 16 + lines * (2 * pitch + 22) - 14, label, drawn, class_))
    return both[0] + both[1]
