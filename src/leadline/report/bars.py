"""Bars: a row per thing that is compared, a bar per model in it, with its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from leadline.report import svg
from leadline.report.lines import Axis
from leadline.report.pictures import Entry, Numbers, Picture, PictureSpec
from leadline.report.svg import Scale, tag
from leadline.report.words import listed, shortened, significant

_LETTER = 6.6


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One value.

    Attributes:
        low, high: its interval, where there is one.
        expected: what a theory says it is, where one does; drawn as a mark across the bar.
    """

    entry: Entry
    value: float | None
    low: float | None = None
    high: float | None = None
    expected: float | None = None


Group = tuple[str, Sequence[Bar]]
"""The name of a row and its bars."""


def bars(
    groups: Sequence[Group],
    spec: PictureSpec,
    *,
    shown: Callable[[float | None], str] = significant,
) -> Picture | None:
    """A picture of bars from zero with their numbers; None where there are no values.

    Args:
        shown: how a value is written.
    """
    kept = [(row, [bar for bar in group if bar.value is not None]) for row, group in groups]
    kept = [(row, group) for row, group in kept if group]
    if not kept:
        return None
    found = [(bar.value, bar.low, bar.high, bar.expected) for _, group in kept for bar in group]
    ends = [end for of_bar in found for end in of_bar if end is not None]
    low, high = svg.limits([*ends, *([spec.rule[0]] if spec.rule else [])], zero=True)
    drawn = _Drawing(spec, Axis(label=spec.y, low=low, high=high), kept, shown)
    entries = {bar.entry.index: bar.entry for _, group in groups for bar in group}
    numbers = Numbers(
        head=spec.head,
        columns=[entry.name for entry in entries.values()],
        rows=[(row, [_written(group, index, shown) for index in entries]) for row, group in groups],
    )
    return spec.picture(drawn.draw(), numbers)


@dataclass(frozen=True)
class _Drawing:
    spec: PictureSpec
    axis: Axis
    groups: Sequence[Group]
    shown: Callable[[float | None], str]

    def draw(self) -> Markup:
        """Both drawings; the page shows the one that fits."""
        return self._one(800.0, 210.0, "wide") + self._one(360.0, 120.0, "narrow")

    def _one(self, width: float, most: float, class_: str) -> Markup:
        left = min(max(len(row) for row, _ in self.groups) * _LETTER + 14, most)
        x = Scale(self.axis.low, self.axis.high, left, width - 16)
        thick, top = 11.0, 22.0 if self.spec.rule and self.spec.rule[1] else 6.0
        y = top
        rows = []
        for row, group in self.groups:
            middle = y + len(group) * thick / 2
            rows.append(svg.words(shortened(row, int((left - 14) / _LETTER)), left - 10, middle + 4, "tick", "end"))
            for bar in group:
                rows.append(self._bar(bar, row, x, y, thick))
                y += thick
            y += 9.0
        drawn = [*self._scale(x, top, y, left, width - 16), *rows]
        drawn.append(svg.line(x(0.0), top - 4, x(0.0), y, "zero"))
        drawn.append(svg.words(self.axis.label, left, y + 36, "axis-label"))
        label = f"{self.spec.label}, for {listed([row for row, _ in self.groups])}."
        return svg.picture(width, y + 42, label, drawn, class_)

    def _bar(self, bar: Bar, row: str, x: Scale, y: float, thick: float) -> Markup:
        value = bar.value or 0.0
        start, end = sorted((x(0.0), x(value)))
        title = tag("title", f"{bar.entry.name}, {row}: {_shown(bar, self.shown)}")
        parts = [tag("rect", title, x=start, y=y + 1, width=max(end - start, 0.8), height=thick - 2, class_="bar-fill")]
        if bar.low is not None and bar.high is not None:
            parts.append(svg.line(x(bar.low), y + thick / 2, x(bar.high), y + thick / 2, "bar-interval"))
        if bar.expected is not None:
            parts.append(svg.line(x(bar.expected), y - 1, x(bar.expected), y + thick + 1, "bar-expected"))
        return svg.group(parts, class_=f"series d{bar.entry.index}")

    def _scale(self, x: Scale, top: float, bottom: float, left: float, right: float) -> list[Markup]:
        drawn = []
        for value, text in self.axis.ticks(max(3, int((right - left) / 90))):
            drawn.append(svg.line(x(value), top - 4, x(value), bottom, "grid"))
            drawn.append(svg.words(text, x(value), bottom + 17, "tick", "middle"))
        if self.spec.rule:
            at, said = self.spec.rule
            drawn.append(svg.line(x(at), top - 6, x(at), bottom, "rule"))
            drawn.append(svg.words(said, x(at), 11.0, "rule-label", "middle"))
        return drawn


def _shown(bar: Bar, shown: Callable[[float | None], str]) -> str:
    expected = "" if bar.expected is None else f", expected {shown(bar.expected)}"
    if bar.value is None or bar.low is None or bar.high is None:
        return f"{shown(bar.value)}{expected}"
    return f"{shown(bar.value)} ({shown(bar.low)} to {shown(bar.high)}){expected}"


def _written(group: Sequence[Bar], index: int, shown: Callable[[float | None], str]) -> str:
    return next((_shown(bar, shown) for bar in group if bar.entry.index == index), shown(None))
