"""Scatter pictures: one thing against another, a colour per model, and in words how far they go together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from leadline.report import svg
from leadline.report.lines import Axis
from leadline.report.pictures import Entry, Numbers, Picture, PictureSpec
from leadline.report.svg import Scale, tag
from leadline.report.words import fixed, listed, significant

_LETTER = 6.6
"""Width of a letter of a label."""

Box = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """The points of one entry.

    Attributes:
        points: (x, y, label); labels are short, a block's number say.
        words: how far x and y go together, in words (`together` makes them).
    """

    entry: Entry
    points: Sequence[tuple[float, float, str]]
    words: str = ""


@dataclass(frozen=True, kw_only=True)
class _Drawing:
    label: str
    x: Axis
    y: Axis
    clouds: Sequence[Cloud]
    tip: Callable[[str, str, float, float], str]

    def draw(self) -> Markup:
        """Both drawings; the page shows the one that fits."""
        wide = self._drawing(800.0, 430.0, 60.0, 30.0, "wide", 8)
        return wide + self._drawing(360.0, 300.0, 42.0, 12.0, "narrow", 4)

    def _drawing(self, width: float, height: float, left: float, right: float, class_: str, about: int) -> Markup:
        top, bottom = 26.0, height - 46.0
        x = self.x.scale(left, width - right)
        y = self.y.scale(bottom, top)
        drawn = []
        for value, text in self.y.ticks(5):
            drawn.append(svg.line(left, y(value), width - right, y(value), "grid"))
            drawn.append(svg.words(text, left - 8, y(value) + 4, "tick", "end"))
        for value, text in self.x.ticks(about):
            drawn.append(svg.line(x(value), bottom, x(value), bottom + 4, "grid"))
            drawn.append(svg.words(text, x(value), bottom + 17, "tick", "middle"))
        drawn.append(svg.line(left, bottom, width - right, bottom, "base"))
        drawn += self._points(x, y, (left, top - 12, width - right + 16, bottom))
        drawn.append(svg.words(self.y.label, 0.0, 13.0, "axis-label"))
        drawn.append(svg.words(self.x.label, left, height - 6.0, "axis-label"))
        return svg.picture(width, height, self.label, drawn, class_)

    def _points(self, x: Scale, y: Scale, frame: Box) -> list[Markup]:
        places = [[(x(a), y(b)) for a, b, _ in cloud.points] for cloud in self.clouds]
        taken = [(px - 5, py - 5, px + 5, py + 5) for cloud in places for px, py in cloud]
        drawn = []
        for cloud, at in zip(self.clouds, places, strict=True):
            marks = []
            for (px, py), (a, b, label) in zip(at, cloud.points, strict=True):
                title = tag("title", self.tip(cloud.entry.name, label, a, b))
                marks.append(tag("circle", title, cx=px, cy=py, r=4.2, class_="dot"))
                if (beside := _beside(px, py, label, taken, frame)) is not None:
                    taken.append(beside)
                    marks.append(svg.words(label, beside[0] + 1, beside[3] - 2.5, "point-label"))
            drawn.append(svg.group(marks, class_=f"series d{cloud.entry.index}"))
        return drawn


def scatter(
    clouds: Sequence[Cloud],
    spec: PictureSpec,
    *,
    y_shown: Callable[[float], str] = significant,
) -> Picture | None:
    """A scatter picture with its numbers and what they say of the two; None where there are no points.

    Args:
        spec: of its axes; points that have no place on them are left out of the drawing.
        y_shown: how values of y are written.
    """
    kept = [cloud for cloud in clouds if cloud.points]
    x_least, y_least = (0.0 if log else -math.inf for log in (spec.x_log, spec.log))
    placed = [replace(cloud, points=[p for p in cloud.points if p[0] > x_least and p[1] > y_least]) for cloud in kept]
    xs = [a for cloud in placed for a, _, _ in cloud.points]
    ys = [b for cloud in placed for _, b, _ in cloud.points]
    if not xs:
        return None
    x_low, x_high = svg.limits(xs, log=spec.x_log, pad=0.05)
    y_low, y_high = svg.limits(ys, log=spec.log, pad=0.06, linear=spec.linear)
    point = spec.head or "block"
    picture = _Drawing(
        label=f"{spec.label}, for {listed([cloud.entry.name for cloud in placed])}.",
        x=Axis(label=spec.x, low=x_low, high=x_high, log=spec.x_log),
        y=Axis(label=spec.y, low=y_low, high=y_high, log=spec.log, linear=spec.linear),
        clouds=placed,
        tip=lambda who, what, a, b: f"{who}, {point} {what}: {spec.x} {significant(a)}, {spec.y} {y_shown(b)}",
    )
    several = len(kept) > 1
    numbers = Numbers(
        head=point,
        columns=[spec.x, spec.y],
        rows=[
            (f"{cloud.entry.name}, {what}" if several else what, [significant(a), y_shown(b)])
            for cloud in kept
            for a, b, what in cloud.points
        ],
    )
    return spec.picture(_said(kept) + picture.draw(), numbers)


def together(name: str, value: float | None, low: float | None, high: float | None, reason: str | None = None) -> str:
    """A correlation with its 95 % interval in words: `Spearman 0.81 (0.62 to 0.93): they rise together`.

    `reason` says why there is no value.
    """
    if value is None:
        return f"{name} is not defined: {reason or 'one of the two does not vary'}"
    if low is None or high is None:
        return f"{name} {fixed(value, 2)}, without an interval"
    if low <= 0 <= high:
        says = "no order beyond chance"
    else:
        says = "they rise together" if value > 0 else "one falls where the other rises"
    return f"{name} {fixed(value, 2)} ({fixed(low, 2)} to {fixed(high, 2)}): {says}"


def _said(clouds: Sequence[Cloud]) -> Markup:
    """The words of the entries, each with its colour; nothing where none has any."""
    swatch = tag("span", "", class_="swatch")
    named = [(cloud.entry, cloud.words) for cloud in clouds if cloud.words]
    said = [tag("li", swatch, f"{entry.name}: {words}", class_=f"d{entry.index}") for entry, words in named]
    return tag("ul", *said, class_="said") if said else Markup("")


def _beside(x: float, y: float, label: str, taken: Sequence[Box], frame: Box) -> Box | None:
    """A free place for the label, close to its point; None where there is none. The point's tip has it anyhow."""
    wide, high = _LETTER * len(label) + 2, 12.0
    for left, top in ((x + 6, y - 6), (x - 6 - wide, y - 6), (x - wide / 2, y - 18), (x - wide / 2, y + 6)):
        box = (left, top, left + wide, top + high)
        inside = frame[0] <= box[0] and frame[1] <= box[1] and box[2] <= frame[2] and box[3] <= frame[3]
        if inside and all(box[2] <= a or c <= box[0] or box[3] <= b or d <= box[1] for a, b, c, d in taken):
            return box
    return None
