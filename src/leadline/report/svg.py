"""The little SVG that the pictures need: elements whose text is escaped, scales, and ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape


def tag(name: str, *children: str | Markup, **attributes: object) -> Markup:
    """An element. Text is escaped; `class_` is class; underscores in names become hyphens; None is left out."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not children:
        return Markup(f"<{name}{shown}/>")
    return Markup(f"<{name}{shown}>{''.join(escape(child) for child in children)}</{name}>")


def group(children: Sequence[Markup], **attributes: object) -> Markup:
    """A <g>; an empty one where there are no children."""
    return tag("g", *children, **attributes)


def picture(width: float, height: float, label: str, children: Sequence[Markup], class_: str) -> Markup:
    """The outermost <svg>, named for screen readers."""
    view = f"0 0 {_value(width)} {_value(height)}"
    return tag("svg", *children, viewBox=view, role="img", aria_label=label, class_=class_)


def words(text: str, x: float, y: float, class_: str, anchor: str | None = None) -> Markup:
    """A line of text."""
    return tag("text", text, x=x, y=y, class_=class_, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return tag("path", d=f"M{_value(x1)} {_value(y1)}L{_value(x2)} {_value(y2)}", class_=class_)


def path(pieces: Sequence[Sequence[tuple[float, float]]]) -> str:
    """Path data for polylines, one per piece. A piece of one point is drawn as a dot (round caps)."""
    parts = []
    for piece in pieces:
        points = [f"{_value(x)} {_value(y)}" for x, y in piece]
        parts.append("M" + "L".join(points if len(points) > 1 else points * 2))
    return "".join(parts)


@dataclass(frozen=True)
class Scale:
    """Values to places. Those outside the limits lie outside the range.

    With `linear` the scale is a signed logarithm, asinh(value / linear): linear up to about that size, logarithmic
    beyond it on both sides of zero.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    linear: float | None = None

    def __call__(self, value: float) -> float:
        low, high, value = (self._bent(v) for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def _bent(self, value: float) -> float:
        if self.linear is not None:
            return math.asinh(value / self.linear)
        return math.log(max(value, 1e-300)) if self.log else value


def limits(
    values: Sequence[float], log: bool = False, zero: bool = False, pad: float = 0.04, linear: float | None = None
) -> tuple[float, float]:
    """Limits around the values with a little room; `zero` keeps zero inside. Never empty. For `linear` see `Scale`."""
    if linear is not None:
        low, high = limits([math.asinh(v / linear) for v in values], zero=zero, pad=pad)
        return linear * math.sinh(low), linear * math.sinh(high)
    kept = [v for v in values if v > 0] if log else list(values)
    if not kept:
        return (0.1, 10.0) if log else (0.0, 1.0)
    if log:
        low, high = math.log(min(kept)), math.log(max(kept))
        room = max((high - low) * pad, 0.05)
        return math.exp(low - room), math.exp(high + room)
    low, high = min(kept), max(kept)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
        if low == high:
            return 0.0, 1.0
    room = (high - low) * pad or max(abs(high), 1e-6) * 0.1
    return (low if zero and low == 0 else low - room, high if zero and high == 0 else high + room)


def ticks(low: float, high: float, log: bool = False, about: int = 5, linear: float | None = None) -> list[float]:
    """Round numbers within the limits: about `about` of them; on a log axis 1, 2, 5 or powers of ten.

    With `linear` (see `Scale`) zero and powers of ten on both of its sides.
    """
    if linear is not None:
        return _signed_ticks(low, high, linear, about)
    if log:
        return _log_ticks(low, high, about)
    raw = (high - low) / max(about, 1)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    found = [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]
    return [0.0 if abs(v) < step * 1e-6 else v for v in found]


def whole_ticks(low: int, high: int, about: int = 8) -> list[int]:
    """Whole numbers for counting blocks: the first, the last, and round ones between that keep their distance."""
    span = max(high - low, 1)
    step = next((s for s in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 25, 32, 50, 64, 100) if span / s <= about), span)
    inner = [v for v in range(low + 1, high) if v % step == 0 and v - low >= step * 0.6 and high - v >= step * 0.6]
    return sorted({low, *inner, high})


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Moves places apart until neighbours are `gap` apart, as little as possible, within low … high.

    Where there is no room the gap shrinks.
    """
    count = len(places)
    if count < 2:
        return [min(max(p, low), high) for p in places]
    gap = min(gap, (high - low) / (count - 1))
    order = sorted(range(count), key=lambda i: places[i])
    clusters: list[list[float]] = []  # [sum of wanted first places, members]; a cluster stands shoulder to shoulder
    for i in order:
        clusters.append([min(max(places[i], low), high), 1])
        while len(clusters) > 1 and _first(clusters[-1], gap, low, high) < (
            _first(clusters[-2], gap, low, high) + clusters[-2][1] * gap
        ):
            total, members = clusters.pop()
            before, standing = clusters.pop()
            clusters.append([before + total - members * standing * gap, standing + members])
    result = [0.0] * count
    position = iter(order)
    for cluster in clusters:
        first = _first(cluster, gap, low, high)
        for k in range(int(cluster[1])):
            result[next(position)] = first + k * gap
    return result


def _first(cluster: list[float], gap: float, low: float, high: float) -> float:
    total, members = cluster
    return min(max(total / members, low), high - (members - 1) * gap)


def _signed_ticks(low: float, high: float, linear: float, about: int) -> list[float]:
    most = max(-low, high)
    powers = [10.0**p for p in range(math.floor(math.log10(most)), math.ceil(math.log10(linear) - 1e-9) - 1, -1)]
    kept = powers[:: max(1, math.ceil(len(powers) * (1 if low > -linear else 2) / (about + 2)))]
    found = [0.0, *(sign * power for power in kept for sign in (1.0, -1.0))]
    return sorted(value for value in found if low <= value <= high)


def _log_ticks(low: float, high: float, about: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    best: list[float] = []
    for digits in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)):
        found = [d * 10.0**p for p in powers for d in digits if low <= d * 10.0**p <= high]
        if len(found) <= about + 2:
            best = found
        if len(found) >= max(3, about - 1):
            break
    if len(best) >= 2:
        if len(best) > about + 2:
            return best[:: math.ceil(len(best) / about)]
        return best
    if high / low < 10:
        return ticks(low, high, about=about)
    every = math.ceil(len(powers) / about)
    return [10.0**p for p in powers if p % every == 0 and low <= 10.0**p <= high]


def _value(value: object) -> str:
    if isinstance(value, float):
        text = f"{value:.1f}"
        return text[:-2] if text.endswith(".0") else text
    return str(value)
