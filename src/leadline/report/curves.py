"""Curves over a dial, such as perplexity over the ratio that was cut: a mean over seeds within a shade."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leadline.report import svg
from leadline.report.lines import Axis, LinePicture, Panel, Series, numbers_of
from leadline.report.over_blocks import series
from leadline.report.pictures import Entry, Picture, PictureSpec
from leadline.report.words import listed, plain, significant


@dataclass(frozen=True, kw_only=True)
class Value:
    """What came out at one setting of the dial; low and high are None where there is no interval."""

    x: float
    mean: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One entry's values."""

    entry: Entry
    values: Sequence[Value]


def curves(
    found: Sequence[Curve],
    spec: PictureSpec,
    *,
    top: float | None = None,
    x_shown: Callable[[float], str] = plain,
    y_shown: Callable[[float | None], str] = significant,
) -> Picture | None:
    """A picture of curves with their shades and numbers; None where no curve has values.

    Args:
        top: where the y axis ends; what lies above is marked on the edge.
        x_shown, y_shown: how values are written.
    """
    lines = [line for line in (_line(curve, spec.log) for curve in found) if line.values]
    if not lines:
        return None
    everything = [value for line in lines for value in line.extent]
    low, high = svg.limits([*everything, *([spec.rule[0]] if spec.rule else [])], log=spec.log)
    if top is not None and high > top > low:
        high = top
    places = sorted({x for line in lines for x, _ in line.points})
    room = 0.02 * (places[-1] - places[0]) or 0.5
    at = [(value, x_shown(value)) for value in places]
    picture = LinePicture(
        label=f"{spec.label}, for {listed([line.name for line in lines])}.",
        x=Axis(label=spec.x, low=places[0] - room, high=places[-1] + room, at=at),
        y=Axis(label=spec.y, low=low, high=high, log=spec.log),
        panels=[Panel(title="", series=lines)],
        rule=spec.rule,
        dots=True,
        tip=lambda who, at, value: f"{who} at {x_shown(at)}: {y_shown(value)}",
    )
    return spec.picture(picture.draw(), numbers_of([_line(curve) for curve in found], spec.x, x_shown, y_shown))


def _line(curve: Curve, positive: bool | None = None) -> Series:
    """All values, or those that are drawn: on a logarithmic axis the `positive` ones."""
    values = curve.values if positive is None else [value for value in curve.values if _drawn(value, positive)]
    return series(
        curve.entry,
        [(v.x, v.mean) for v in values],
        [(v.x, v.low, v.high) for v in values if v.low is not None and v.high is not None],
    )


def _drawn(value: Value, log: bool) -> bool:
    if value.mean is None:
        return False
    return not log or (value.mean > 0 and (value.low is None or value.low > 0))
