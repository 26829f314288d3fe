"""The table of the first screen: what every design reached, against the baseline, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from leadline.experiments.compare.report.values import DesignValues, Estimate, ReportValues
from leadline.report import svg
from leadline.report.reading import some
from leadline.report.svg import Scale, tag
from leadline.report.words import count, fixed, interval, memory, significant, times


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table, as text.

    Attributes:
        verdict: whether the difference is beyond noise, in words; `tone` is better, worse or plain.
        forest: the difference as a dot with its interval, on one scale for all rows.
        remark: what a reader must know of this row (`2 of 3 seeds`).
    """

    index: int
    key: str
    name: str
    remark: str
    failed: bool
    bits: str
    bits_interval: str
    loss: str
    loss_interval: str
    difference: str
    difference_interval: str
    forest: Markup
    verdict: str
    tone: str
    speed: str
    time: str
    memory: str
    parameters: str
    flops: str
    depth_flops: str


def lines(report: ReportValues) -> list[Line]:
    """The rows: lowest bits per byte first, designs without a result last."""
    order = sorted(report.designs, key=lambda d: (d.bits.mean is None, d.bits.mean or 0.0, d.index))
    reach = _reach(order)
    return [_line(d, report, reach) for d in order]


def _line(design: DesignValues, report: ReportValues, reach: float) -> Line:
    verdict, tone = _verdict(design, report)
    difference = design.difference or Estimate()
    return Line(
        index=design.index,
        key=design.key,
        name=design.name,
        remark=_remark(design, len(report.seeds)),
        failed=design.failed,
        bits=fixed(design.bits.mean),
        bits_interval=_interval(design.bits),
        loss=fixed(design.loss.mean),
        loss_interval=_interval(design.loss),
        difference="baseline" if design.baseline and not design.failed else fixed(difference.mean, sign=True),
        difference_interval=_interval(difference),
        forest=_forest(design, reach),
        verdict=verdict,
        tone=tone,
        speed=significant(design.tokens_per_second),
        time=times(design.step_time),
        memory=memory(design.peak_memory),
        parameters=count(design.parameters, 4),
        flops=count(design.flops),
        depth_flops=count(design.depth_flops),
    )


def _verdict(design: DesignValues, report: ReportValues) -> tuple[str, str]:
    if design.failed:
        return "failed", "worse"
    if design.baseline:
        return "–", "plain"
    if design.difference is None or design.difference.mean is None:
        return "–", "plain"
    if design.too_little_text:
        return "too little text", "plain"
    if design.beyond_noise is None:
        pairs = len(some(design.difference.values))
        why = "one seed" if len(report.seeds) <= 1 else "one pair" if pairs == 1 else "too few seeds"
        return f"{why}: unknown", "plain"
    if not design.beyond_noise:
        clear = (design.difference.low or 0.0) > 0 or (design.difference.high or 0.0) < 0
        return "no, as one of several" if clear else "no", "plain"
    if not design.matters:
        return "yes, but small", "plain"
    return ("yes, better", "better") if design.difference.mean < 0 else ("yes, worse", "worse")


def _remark(design: DesignValues, seeds: int) -> str:
    if design.failed:
        return "baseline" if design.baseline else ""
    done = len(some(design.bits.values))
    if design.status == "partial" or 0 < done < seeds:
        return f"{done} of {seeds} seeds"
    return "baseline" if design.baseline else ""


def _reach(designs: Sequence[DesignValues]) -> float:
    """How far the axis of differences goes to both sides."""
    ends = [
        abs(v)
        for d in designs
        if d.difference
        for v in (d.difference.mean, d.difference.low, d.difference.high, *d.difference.values)
        if v is not None
    ]
    means = [abs(d.difference.mean) for d in designs if d.difference and d.difference.mean is not None]
    # One wild interval must not press all others flat.
    return min(max(ends, default=0.0), 2.5 * max(means, default=0.0) or 1.0) * 1.08 or 1.0


def _forest(design: DesignValues, reach: float) -> Markup:
    width, height = 132.0, 22.0
    x = Scale(-reach, reach, 3.0, width - 3)
    drawn = [svg.line(x(0.0), 0.0, x(0.0), height, "zero")]
    label = f"{design.name}: the line that the others are compared with"
    difference = design.difference
    if difference and difference.mean is not None:
        ends = [v for v in (difference.low, difference.high) if v is not None]
        if len(ends) == 2:
            low, high = (min(max(x(v), 0.0), width) for v in ends)
            drawn.append(svg.line(low, height / 2, high, height / 2, "whisker"))
        if len(some(difference.values)) > 1:
            drawn += [svg.line(x(v), height / 2 - 4, x(v), height / 2 + 4, "pair") for v in some(difference.values)]
        drawn.append(tag("circle", cx=x(difference.mean), cy=height / 2, r=4.2, class_="mean"))
        label = f"{design.name}: {fixed(difference.mean, sign=True)} {_interval(difference)}bits per byte"
    elif not design.baseline:
        return Markup("")
    return svg.picture(width, height, label, [tag("title", label), *drawn], f"forest d{design.index}")


def _interval(estimate: Estimate) -> str:
    return interval(estimate.mean, estimate.low, estimate.high)
