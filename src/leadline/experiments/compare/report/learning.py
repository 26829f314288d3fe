"""The pictures of how the designs learn, and of how that depends on the learning rate."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from leadline.experiments.compare.report.pictures import line_of, names
from leadline.experiments.compare.report.values import DesignValues, ReportValues, Sweep
from leadline.report import svg
from leadline.report.lines import Axis, LinePicture, Panel, Series
from leadline.report.pictures import Numbers, Picture
from leadline.report.words import count, fixed, listed, plain


def learning(report: ReportValues) -> list[Picture]:
    """Held-out loss over training, and its distance to the baseline's."""
    shown = [d for d in report.designs if d.curve]
    return [p for p in (_curves(shown), _distance(shown, report.baseline)) if p is not None]


def settings(report: ReportValues) -> list[Picture]:
    """How each design's loss depends on the learning rate."""
    picture = _learning_rates(report)
    return [picture] if picture else []


def _curves(designs: Sequence[DesignValues]) -> Picture | None:
    if not designs:
        return None
    everything = [y for d in designs for _, y in d.curve]
    last = max(x for d in designs for x, _ in d.curve)
    ends = [d.curve[-1][1] for d in designs]
    settled = [y for d in designs for x, y in d.curve if x >= 0.2 * last] or everything
    low, high = svg.limits([*settled, *ends])
    cut = max(everything) > high
    picture = LinePicture(
        label=f"Held-out bits per byte over training, for {names(designs)}.",
        x=_tokens_axis(last),
        y=Axis(label="held-out bits per byte", low=low, high=high if cut else svg.limits(everything)[1]),
        panels=[Panel(title="", series=[line_of(d, d.curve) for d in designs])],
        tip=lambda name, x, y: f"{name}: {fixed(y)} bits per byte after {count(x)} tokens",
    )
    return Picture(
        name="learning-curves",
        heading="Learning curves",
        reading="Each line is one design's loss on text it never trained on, so lower is better, "
        "and a line that gets low further left learns from fewer tokens.",
        note="The first steps lie above the picture." if cut else "",
        body=picture.draw(),
        numbers=_curve_numbers(designs),
    )


def _distance(designs: Sequence[DesignValues], baseline: DesignValues | None) -> Picture | None:
    if baseline is None or not baseline.curve or len(designs) < 2:
        return None
    lines = {d.index: [(x, y - b) for x, y in d.curve if (b := _at(baseline.curve, x)) is not None] for d in designs}
    others = [d for d in designs if not d.baseline and lines[d.index]]
    if not others:
        return None
    last = max(x for d in others for x, _ in lines[d.index])
    settled = [y for d in others for x, y in lines[d.index] if x >= 0.2 * last]
    low, high = svg.limits(settled or [0.0], zero=True)
    room = 0.06 * (high - low)
    picture = LinePicture(
        label=f"Bits per byte minus the baseline's over training, for {names(others)}.",
        x=_tokens_axis(last),
        y=Axis(label=f"bits per byte minus {baseline.name}'s", low=low - room, high=high + room, shown=_signed),
        panels=[Panel(title="", series=[line_of(d, lines[d.index]) for d in others])],
        rule=(0.0, f"{baseline.name} = 0"),
        tip=lambda name, x, y: f"{name}: {fixed(y, sign=True)} after {count(x)} tokens",
    )
    return Picture(
        name="distance",
        heading="Distance to the baseline",
        reading=f"The same losses with {baseline.name}'s taken off at the same number of tokens, so a line below zero "
        "is ahead of the baseline at that moment, and its slope says whether the lead grows.",
        body=picture.draw(),
    )


def _learning_rates(report: ReportValues) -> Picture | None:
    place = {d.name: d for d in report.designs}
    sweeps = [s for s in report.sweeps if s.points and s.design in place]
    if not sweeps:
        return None
    rates = sorted({x for s in sweeps for x, _ in s.points})
    values = sorted(y for s in sweeps for _, y in s.points)
    best = min(values)
    usual = max(min(y for _, y in s.points) for s in sweeps)
    top = usual + 1.5 * max(usual - best, 0.1)
    cut = values[-1] > top * 1.02
    low, high = svg.limits([v for v in values if v <= top] if cut else values, pad=0.07)
    x_low, x_high = svg.limits(rates, log=True)
    picture = LinePicture(
        label=f"Held-out bits per byte against the learning rate, for {listed([s.design for s in sweeps])}.",
        x=Axis(
            label="learning rate (logarithmic)", low=x_low, high=x_high, log=True, at=[(r, plain(r)) for r in rates]
        ),
        y=Axis(label="held-out bits per byte", low=low, high=high),
        panels=[Panel(title="", series=[_sweep_line(s, place[s.design]) for s in sweeps])],
        tip=lambda name, x, y: f"{name} at {plain(x)}: {fixed(y)} bits per byte",
        dots=True,
    )
    sources = list(dict.fromkeys(s.source for s in sweeps if s.source))
    at = [dict(s.points) for s in sweeps]
    return Picture(
        name="learning-rates",
        heading="Sensitivity to the learning rate",
        reading="The rings mark the learning rates used here; a flat line forgives a wrong choice, a steep one "
        "does not.",
        note=" ".join(
            [
                f"Points from: {listed(sources)}." if sources else "",
                "Runs beyond the upper edge diverged or nearly so." if cut else "",
            ]
        ).strip(),
        body=picture.draw(),
        numbers=Numbers(
            head="learning rate",
            columns=[s.design for s in sweeps],
            rows=[(plain(r), [fixed(a.get(r)) for a in at]) for r in rates],
        ),
    )


def _sweep_line(sweep: Sweep, design: DesignValues) -> Series:
    ring = next(((x, y) for x, y in sweep.points if sweep.chosen and abs(x / sweep.chosen - 1) < 1e-6), None)
    return Series(index=design.index, name=design.name, key=design.key, points=sweep.points, ring=ring)


def _curve_numbers(designs: Sequence[DesignValues]) -> Numbers:
    at = [dict(d.curve) for d in designs]
    places = sorted({x for values in at for x in values})
    return Numbers(
        head="tokens",
        columns=[d.name for d in designs],
        rows=[(f"{x:,.0f}", [fixed(values.get(x)) for values in at]) for x in places],
    )


def _tokens_axis(last: float) -> Axis:
    return Axis(label="tokens trained on", low=0.0, high=last or 1.0, shown=lambda v: count(v, 2) if v else "0")


def _signed(value: float) -> str:
    return "0" if value == 0 else ("+" if value > 0 else "") + plain(value)


def _at(curve: Sequence[tuple[float, float]], x: float) -> float | None:
    """The curve's value at x by straight lines between its points; None outside of them."""
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return curve[0][1] if len(curve) == 1 and curve[0][0] == x else None
