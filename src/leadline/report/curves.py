"""Curves over a dial, such as perplexity over the ratio that was cut: a mean over seeds within a shade."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leadline.report import svg
from leadline.report.lines import Axis, LinePicture, Panel
from leadline.report.over_blocks import series
from leadline.report.pictures import Entry, Numbers, Picture, PictureSpec
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
    kept = [(curve, [v for v in curve.values if _drawn(v, spec.log)]) for curve in found]
    kept = [(curve, values) for curve, values in kept if values]
    if not kept:
        return None
    means = [v.mean for _, values in kept for v in values if v.mean is not None]
    ends = [end for _, values in kept for v in values for end in (v.low, v.high) if end is not None]
    low, high = svg.limits([*means, *ends, *([spec.rule[0]] if spec.rule else [])], log=spec.log)
    if top is not None and high > top > low:
        high = top
    places = sorted({v.x for _, values in kept for v in values})
    room = 0.02 * (places[-1] - places[0]) or 0.5
    picture = LinePicture(
        label=f"{spec.label}, for {listed([curve.entry.name for curve, _ in kept])}.",
        x=Axis(
            label=spec.x, low=places[0] - room, high=places[-1] + room, at=[(value, x_shown(value)) for value in places]
        ),
        y=Axis(label=spec.y, low=low, high=high, log=spec.log),
        panels=[
            Panel(
                title="",
                series=[
                    series(
                        curve.entry,
                        [(v.x, v.mean) for v in values],
                        [(v.x, v.low, v.high) for v in values if v.low is not None and v.high is not None],
                    )
                    for curve, values in kept
                ],
            )
        ],
        rule=spec.rule,
        dots=True,
        tip=lambda who, at, value: f"{who} at {x_shown(at)}: {y_shown(value)}",
    )
    return spec.picture(
        picture.draw(),
        Numbers(
            head=spec.x,
            columns=[curve.entry.name for curve in found],
            rows=[
                (x_shown(at), [_written(curve, at, y_shown) for curve in found])
                for at in sorted({v.x for curve in found for v in curve.values})
            ],
        ),
    )


def _drawn(value: Value, log: bool) -> bool:
    if value.mean is None:
        return False
    return not log or (value.mean > 0 and (value.low is None or value.low > 0))


def _written(curve: Curve, at: float, shown: Callable[[float | None], str]) -> str:
    value = next((v for v in curve.values if v.x == at), None)
    if value is None or value.mean is None:
        return shown(None)
    if value.low is None or value.high is None:
        return shown(value.mean)
    return f"{shown(value.mean)} ({shown(value.low)} to {shown(value.high)})"
