"""Line pictures: several designs on one axis, drawn once for wide pages and once for phones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from leadline.report import svg
from leadline.report.pictures import Numbers
from leadline.report.svg import Scale, tag
from leadline.report.words import plain, shortened

COLUMNS = 3
"""Panels side by side on a wide page; more go on in the next row."""
GAP = 22.0
"""Between panels side by side."""

Point = tuple[float, float | None]
Band = Sequence[tuple[float, float, float]]
"""(x, low, high)."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One design's line.

    Attributes:
        index: the design's number, which gives the line its class and thereby its colour.
        key: what small pictures write at the line's end.
        points: (x, y); a y of None is a gap.
        band: (x, low, high) drawn as a shade behind the line.
        ring: a point to mark.
    """

    index: int
    name: str
    key: str
    points: Sequence[Point]
    band: Band = ()
    ring: tuple[float, float] | None = None

    @property
    def values(self) -> list[float]:
        return [y for _, y in self.points if y is not None]

    @property
    def extent(self) -> list[float]:
        """The values and the ends of the band."""
        return self.values + [end for _, *ends in self.band for end in ends]


def numbers_of(
    lines: Sequence[Series],
    head: str,
    place: Callable[[float], str],
    shown: Callable[[float | None], str],
    columns: Sequence[str] | None = None,
) -> Numbers:
    """The values of lines within the ends of their bands: a row for every x.

    Args:
        head: what the rows are.
        place, shown: how an x and a value are written.
        columns: what the lines are called, where not by their names.
    """
    at = [(dict(line.points), {x: ends for x, *ends in line.band}) for line in lines]

    def cell(values: Mapping[float, float | None], bands: Mapping[float, Sequence[float]], x: float) -> str:
        value = values.get(x)
        if value is None or x not in bands:
            return shown(value)
        return f"{shown(value)} ({' to '.join(map(shown, bands[x]))})"

    return Numbers(
        head=head,
        columns=[line.name for line in lines] if columns is None else columns,
        rows=[
            (place(x), [cell(values, bands, x) for values, bands in at])
            for x in sorted({x for values, _ in at for x in values})
        ],
    )


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis: its label, its limits, how it is bent (see `Scale`), and how its ticks and its values are written."""

    label: str
    low: float
    high: float
    log: bool = False
    linear: float | None = None
    at: Sequence[tuple[float, str]] | None = None
    shown: Callable[[float], str] = plain

    def ticks(self, about: int) -> list[tuple[float, str]]:
        if self.at is not None:
            return [(v, t) for v, t in self.at if self.low <= v <= self.high]
        return [(v, self.shown(v)) for v in svg.ticks(self.low, self.high, self.log, about, self.linear)]

    def scale(self, start: float, end: float) -> Scale:
        """Its values to places from `start` to `end`."""
        return Scale(self.low, self.high, start, end, self.log, self.linear)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One plot of a picture; the panels of a picture share their axes."""

    title: str
    series: Sequence[Series]


@dataclass(frozen=True, kw_only=True)
class LinePicture:
    """A picture of lines.

    Attributes:
        label: what screen readers say.
        rule: a value on the y axis to draw a line at, and its words.
        tip: the words of a point: (name, x, y) to text.
        dots: whether every point is shown, not only where the mouse is.
        named: whether lines have their names at their ends; panels whose titles name them need none.
    """

    label: str
    x: Axis
    y: Axis
    panels: Sequence[Panel]
    rule: tuple[float, str] | None = None
    tip: Callable[[str, float, float], str] = field(default=lambda name, x, y: f"{name}: {plain(x)}, {plain(y, 4)}")
    dots: bool = False
    named: bool = True

    def draw(self) -> Markup:
        """Both drawings; the page shows the one that fits."""
        top = 40.0 if any(p.title for p in self.panels) else 24.0
        columns = min(len(self.panels), COLUMNS)
        tall = 314.0 - top if columns == len(self.panels) else 150.0
        longest = max((len(shortened(s.name, 24)) for p in self.panels for s in p.series), default=0)
        right = 34.0 + 6.9 * longest if self.named else 8.0
        wide = self._drawing(Layout("wide", 800.0, 54.0, right, top + 2, tall, 48.0, columns))
        return wide + self._drawing(Layout("narrow", 360.0, 40.0, 26.0, top, 208.0, 36.0, 1))

    def _drawing(self, page: Layout) -> Markup:
        each = (page.width - page.left - page.right - GAP * (page.columns - 1)) / page.columns
        wide, height = page.class_ == "wide", page.top
        drawn = []
        for i, panel in enumerate(self.panels):
            row, column = divmod(i, page.columns)
            start, above = page.left + column * (each + GAP), page.top + row * (page.tall + page.between)
            height = above + page.tall + 44.0
            last = panel is self.panels[-1] or (wide and column == page.columns - 1)
            frame = Frame(start, start + each, above, above + page.tall, wide, column == 0, last)
            drawn.append(self._panel(panel, frame))
        drawn.append(svg.words(self.y.label, 0.0, 13.0 if wide else 12.0, "axis-label"))
        drawn.append(svg.words(self.x.label, page.left, height - 6.0, "axis-label"))
        return svg.picture(page.width, height, self.label, drawn, page.class_)

    def _panel(self, panel: Panel, frame: Frame) -> Markup:
        x = self.x.scale(frame.left, frame.right)
        y = self.y.scale(frame.bottom, frame.top)
        drawn = self._grid(panel, frame, x, y)
        lines = sorted(panel.series, key=lambda s: -s.index)
        drawn += [_series(s, x, y, frame, self) for s in lines if s.values]
        if self.rule and self.rule[1] and self.y.low <= self.rule[0] <= self.y.high:
            drawn.append(svg.words(self.rule[1], frame.right - 6, y(self.rule[0]) - 6, "rule-label", "end"))
        if self.named:
            drawn.append(_end_labels(panel.series, x, y, frame))
        return svg.group(drawn)

    def _grid(self, panel: Panel, frame: Frame, x: Scale, y: Scale) -> list[Markup]:
        drawn = []
        for value, text in self.y.ticks(5 if frame.wide else 4):
            at = y(value)
            drawn.append(svg.line(frame.left, at, frame.right, at, "grid"))
            if frame.first:
                drawn.append(svg.words(text, frame.left - 8, at + 4, "tick", "end"))
        if frame.last or frame.wide:
            room = (frame.right - frame.left) / (58 if frame.wide else 48)
            for value, text in _thinned(self.x.ticks(max(3, int(room))), x):
                drawn.append(svg.line(x(value), frame.bottom, x(value), frame.bottom + 4, "grid"))
                drawn.append(svg.words(text, x(value), frame.bottom + 17, "tick", "middle"))
        drawn.append(svg.line(frame.left, frame.bottom, frame.right, frame.bottom, "base"))
        if self.rule and self.y.low <= self.rule[0] <= self.y.high:
            at = y(self.rule[0])
            drawn.append(svg.line(frame.left, at, frame.right, at, "rule"))
        if panel.title:
            drawn.append(svg.words(panel.title, frame.left, frame.top - 9, "panel-title"))
        return drawn


@dataclass(frozen=True)
class Layout:
    """Where the panels of a drawing lie: the margins, how tall each is, and what lies between their rows."""

    class_: str
    width: float
    left: float
    right: float
    top: float
    tall: float
    between: float
    columns: int


@dataclass(frozen=True)
class Frame:
    """Where a panel lies in its picture."""

    left: float
    right: float
    top: float
    bottom: float
    wide: bool
    first: bool
    last: bool


def _series(series: Series, x: Scale, y: Scale, frame: Frame, picture: LinePicture) -> Markup:
    kept: list[list[tuple[float, float]]] = []
    for there, piece in itertools.groupby(series.points, lambda point: point[1] is not None):
        if there:
            kept += clipped([(x(px), y(py)) for px, py in piece if py is not None], frame.top, frame.bottom)
    drawn = []
    if series.band:
        around = [(x(a), y(high)) for a, _, high in series.band] + [
            (x(a), y(low)) for a, low, _ in reversed(series.band)
        ]
        around = [(a, min(max(b, frame.top), frame.bottom)) for a, b in around]
        drawn.append(tag("path", d=svg.path([around]) + "Z", class_="band"))
    drawn.append(tag("path", d=svg.path(kept), class_="line"))
    drawn += _outside(series, x, y, frame, picture)
    if frame.wide or picture.dots:
        visible = "dot" if picture.dots else "hit"
        for px, py in series.points:
            if py is not None and frame.top - 0.5 <= y(py) <= frame.bottom + 0.5:
                tip = tag("title", picture.tip(series.name, px, py))
                drawn.append(tag("circle", tip, cx=x(px), cy=y(py), r=3 if picture.dots else 4, class_=visible))
    if series.ring:
        drawn.append(tag("circle", cx=x(series.ring[0]), cy=y(series.ring[1]), r=7, class_="ring"))
    return svg.group(drawn, class_=f"series d{series.index}")


def _outside(series: Series, x: Scale, y: Scale, frame: Frame, picture: LinePicture) -> list[Markup]:
    """A small triangle on the edge for every point beyond it, except where a whole line comes in from above."""
    beyond = [(px, py) for px, py in series.points if py is not None and y(py) < frame.top - 0.5]
    drawn = []
    for px, py in beyond if len(beyond) <= 3 else []:
        at, top = x(px), frame.top
        shape = f"M{at - 5:.1f} {top:.1f}L{at + 5:.1f} {top:.1f}L{at:.1f} {top - 8:.1f}Z"
        drawn.append(tag("path", tag("title", picture.tip(series.name, px, py)), d=shape, class_="beyond"))
    return drawn


def _end_labels(series: Sequence[Series], x: Scale, y: Scale, frame: Frame) -> Markup:
    """The names beside the ends of the lines, moved apart and tied to them: all of them on wide pages' last panel."""
    if frame.wide and not frame.last:
        return Markup("")
    ends = []
    for s in series:
        present = [(px, py) for px, py in s.points if py is not None]
        if present:
            px, py = present[-1]
            ends.append((s, x(px), min(max(y(py), frame.top), frame.bottom)))
    gap = 16.0 if frame.wide else 12.0
    places = svg.spread([e[2] for e in ends], gap, frame.top - 6, frame.bottom - 2)
    reach = 20.0 if frame.wide else 9.0
    drawn = []
    for (s, at, height), place in zip(ends, places, strict=True):
        tied = f"M{at:.1f} {height:.1f}L{frame.right + 3:.1f} {height:.1f}L{frame.right + reach:.1f} {place:.1f}"
        name = shortened(s.name, 24) if frame.wide else s.key
        named = tag("text", tag("title", s.name), name, x=frame.right + reach + 4, y=place + 4, class_="end-label")
        # A line that ends early is not drawn on to the edge as if it went on.
        tie = "tie far" if frame.right - at > 24 else "tie"
        drawn.append(svg.group([tag("path", d=tied, class_=tie), named], class_=f"ends d{s.index}"))
    return svg.group(drawn)


def clipped(piece: Sequence[tuple[float, float]], top: float, bottom: float) -> list[list[tuple[float, float]]]:
    """The parts of a polyline between two heights, cut where it crosses them."""
    cut = list(piece[:1])
    for before, point in itertools.pairwise(piece):
        cut += [*_crossings(before, point, top, bottom), point]
    return [list(part) for inside, part in itertools.groupby(cut, lambda at: top <= at[1] <= bottom) if inside]


def _crossings(a: tuple[float, float], b: tuple[float, float], top: float, bottom: float) -> list[tuple[float, float]]:
    """Where the line from a to b crosses the two heights, in its order."""
    found = []
    for edge in (top, bottom):
        if (a[1] - edge) * (b[1] - edge) < 0:
            share = (edge - a[1]) / (b[1] - a[1])
            found.append((share, (a[0] + share * (b[0] - a[0]), edge)))
    return [place for _, place in sorted(found)]


def _thinned(found: list[tuple[float, str]], x: Scale) -> list[tuple[float, str]]:
    """Ticks whose words do not touch; the first and the last stay."""
    kept: list[tuple[float, str]] = []
    for value, text in found:
        if kept and x(value) - x(kept[-1][0]) < 3.4 * (len(text) + len(kept[-1][1])) + 6:
            if value == found[-1][0] and len(kept) > 1:
                kept[-1] = (value, text)
            continue
        kept.append((value, text))
    return kept
