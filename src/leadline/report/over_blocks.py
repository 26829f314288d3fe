"""Pictures with the blocks along their x axis: one line per model, models of any depth on one axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from leadline.report import svg
from leadline.report.lines import Axis, Band, LinePicture, Panel, Point, Series, numbers_of
from leadline.report.pictures import Entry, Picture, PictureSpec
from leadline.report.words import fixed, listed, plain, significant


def by_block(values: Iterable[float | None]) -> list[Point]:
    """(block, value), the blocks counted from 0."""
    return [(float(i), value) for i, value in enumerate(values)]


def by_sublayer(values: Iterable[float | None]) -> list[Point]:
    """Two places a block: attention at the whole number, MLP at the half; a readout may follow at the next one."""
    return [(i / 2, value) for i, value in enumerate(values)]


def between(low: Iterable[float | None], high: Iterable[float | None]) -> Band:
    """(block, low, high) where both are there, for the shade of a line that comes from `by_block`."""
    ends = enumerate(zip(low, high, strict=False))
    return [(float(i), a, b) for i, (a, b) in ends if a is not None and b is not None]


def series(entry: Entry, points: Sequence[Point], band: Band = ()) -> Series:
    """The entry's line."""
    return Series(index=entry.index, name=entry.name, key=entry.short, points=points, band=band)


def over_blocks(panels: Sequence[Panel], spec: PictureSpec) -> Picture | None:
    """A picture with the blocks along its x axis; None where no line has values.

    Args:
        panels: of lines that come from `by_block`, or from `by_sublayer` where `spec.sublayers`.
    """
    drawn = [_kept(panel, spec.log) for panel in panels]
    lines = [line for panel in drawn for line in panel.series]
    if not lines:
        return None
    everything = [v for line in lines for v in line.extent]
    low, high = svg.limits(everything, log=spec.log, zero=spec.zero, linear=spec.linear)
    if spec.rule:
        low, high = min(low, spec.rule[0]), max(high, spec.rule[0])
    first = min(place for line in lines for place, _ in line.points)
    last = max(place for line in lines for place, _ in line.points)

    def shown(value: float | None) -> str:
        return significant(value) if spec.decimals is None else fixed(value, spec.decimals)

    picture = LinePicture(
        label=f"{spec.label}, for {listed([line.name for line in drawn[0].series])}.",
        x=Axis(
            label="block",
            low=first,
            high=max(last, first + 1e-6),
            at=_ticks(int(first), last, 12 if len(drawn) == 1 else 5, spec.sublayers),
        ),
        y=Axis(label=spec.y, low=low, high=high, log=spec.log, linear=spec.linear),
        panels=drawn,
        rule=spec.rule,
        tip=lambda who, x, y: spec.tip.format(name=who, x=plain(x), y=shown(y), part=place_of(x, last)),
    )
    several = len(drawn) > 1
    numbers = numbers_of(
        lines,
        "sublayer" if spec.sublayers else "block",
        (lambda x: place_of(x, last)) if spec.sublayers else plain,
        shown,
        [f"{line.name}, {panel.title}" if several else line.name for panel in drawn for line in panel.series],
    )
    return spec.picture(picture.draw(), numbers)


def linear_below(values: Iterable[float]) -> float:
    """Up to where the signed axis of what leaving a block out costs is linear: 0.001, or less where all is small."""
    return min(0.001, max([1e-6, *(abs(v) for v in values)]) / 100)


def signed_note(linear: float) -> str:
    """What a reader must know of such an axis."""
    return (
        f"The axis is logarithmic on both sides of zero and linear from −{plain(linear)} to {plain(linear)}. Below "
        "zero the model is better without the block."
    )


def place_of(x: float, last: float | None = None) -> str:
    """The sublayer at place x on the block axis: `block 3 attention`; the readout where x is the whole `last`."""
    if x == last and x == int(x):
        return "readout"
    return f"block {int(x)} {'attention' if x == int(x) else 'MLP'}"


def _ticks(first: int, last: float, about: int, sublayers: bool) -> list[tuple[float, str]]:
    # The last place of a picture by sublayers is the readout's.
    whole = svg.whole_ticks(first, max(int(last) - sublayers, first), about)
    return [(float(v), str(v)) for v in whole] + ([(last, "out")] if sublayers else [])


def _kept(panel: Panel, positive: bool) -> Panel:
    """The panel without lines that have no values; on a plain logarithmic axis only `positive` values are values."""
    lines = [_positive(line) for line in panel.series] if positive else panel.series
    return Panel(title=panel.title, series=[line for line in lines if line.values])


def _positive(line: Series) -> Series:
    points = [(x, y if y is not None and y > 0 else None) for x, y in line.points]
    return dataclasses.replace(line, points=points, band=[ends for ends in line.band if ends[1] > 0])
