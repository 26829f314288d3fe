"""The pictures of `leadline study gfa`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from leadline.experiments.gradient_fan_in.verdict_fan_in import DECIDES
from leadline.report import svg
from leadline.report.bars import Bar, bars
from leadline.report.lines import Axis, LinePicture, Panel, Series
from leadline.report.over_blocks import between, by_block, over_blocks, series, signed_note
from leadline.report.pictures import Entry, Numbers, Picture, PictureSpec, Row, Section
from leadline.report.scatter import Cloud, scatter, together
from leadline.report.specs import Specs
from leadline.report.words import count, fixed, significant

SPECS = Specs("leadline.experiments.gradient_fan_in")

Arm = Mapping[str, Any]
Shown = Sequence[tuple[Entry, Arm]]

DELTA_FLOOR = 1e-4
"""Nats; what costs less than this, or does the model good, lies on the lower edge."""


def sections(arms: Shown, results: Mapping[str, Any]) -> list[Section]:
    """The pictures: gradient, importance, both together, late importance, learning."""

    def lines(name: str, of_run: Callable[[Mapping[str, Any]], Row | None]) -> Picture | None:
        return _lines(arms, lambda arm: over_runs(arm, of_run), SPECS(name))

    signed = signed_note(DELTA_FLOOR)
    delta = SPECS("delta", note=f"{signed} A repeated block is left out in all of its places.", linear=DELTA_FLOOR)
    return [
        SPECS.section(
            "gradient",
            [
                lines("share", itemgetter("share")),
                _phases(arms),
                lines("fan-in", _relative_fan_in),
                lines("rank", itemgetter("effective_rank")),
                lines("diversity", itemgetter("cosine")),
            ],
        ),
        SPECS.section(
            "importance",
            [
                _lines(arms, delta_over_runs, delta),
                _bars(arms, _late_rows(arms, results, ""), SPECS("late")),
                _bars(arms, _late_rows(arms, results, "_rest"), SPECS("late-rest")),
            ],
        ),
        SPECS.section(
            "correlation",
            [
                _scatter(arms, "fan_in", SPECS("share-fan-in")),
                _scatter(arms, "delta", SPECS("share-delta", linear=DELTA_FLOOR, note=signed)),
            ],
        ),
        SPECS.section("learning", [_curves(arms)]),
    ]


def over_runs(arm: Arm, of_run: Callable[[Mapping[str, Any]], Row | None]) -> tuple[Row, Row, Row]:
    """Mean, smallest and largest by block over the arm's runs; None where a block has no value."""
    rows = [row for run in arm["runs"] if run is not None and (row := of_run(run)) is not None]
    means: Row = []
    lows: Row = []
    highs: Row = []
    for values in zip(*rows, strict=True):
        known = [value for value in values if value is not None]
        means.append(sum(known) / len(known) if known else None)
        lows.append(min(known) if len(known) > 1 else None)
        highs.append(max(known) if len(known) > 1 else None)
    return means, lows, highs


def delta_over_runs(arm: Arm) -> tuple[Row, Row, Row]:
    """ΔM by block: of several runs as `over_runs`, of one with its interval over sequences."""
    runs = [run for run in arm["runs"] if run is not None]
    if len(runs) == 1:
        delta = runs[0]["delta"]
        return delta["nats"], delta["low"], delta["high"]
    return over_runs(arm, lambda run: run["delta"]["nats"])


def _phase_share(number: int, run: Mapping[str, Any]) -> Row:
    share: Row = run["phases"][number]["share"]
    return share


def _phases(arms: Shown) -> Picture | None:
    panels = []
    for number in range(max((len(arm["phases"]) for _, arm in arms), default=0)):
        drawn = []
        for entry, arm in arms:
            if len(arm["phases"]) > number:
                mean, low, high = over_runs(arm, partial(_phase_share, number))
                drawn.append(series(entry, by_block(mean), between(low, high)))
        panels.append(Panel(title=("the first tenth of the steps", "the rest")[number], series=drawn))
    return over_blocks(panels, SPECS("phases"))


def _relative_fan_in(run: Mapping[str, Any]) -> Row:
    total = sum(run["fan_in"])
    return [value / total for value in run["fan_in"]]


def _lines(
    arms: Shown,
    rows: Callable[[Arm], tuple[Row, Row, Row]],
    spec: PictureSpec,
) -> Picture | None:
    drawn = []
    for entry, arm in arms:
        mean, low, high = rows(arm)
        if any(value is not None for value in mean):
            drawn.append(series(entry, by_block(mean), between(low, high)))
    return over_blocks([Panel(title="", series=drawn)], spec)


def _late_rows(arms: Shown, results: Mapping[str, Any], rest: str) -> dict[str, str]:
    last = results["last_blocks"]
    if all(arm["late_blocks"] == last for _, arm in arms):
        return {f"last{rest}": f"the last {last}"}
    return {f"third{rest}": "the last third", f"last{rest}": f"the last {last}"}


def _bars(arms: Shown, rows: Mapping[str, str], spec: PictureSpec) -> Picture | None:
    by_name = {arm["name"]: arm for _, arm in arms}
    groups = []
    for part, words in rows.items():
        group = []
        for entry, arm in arms:
            found = (arm["late"] or {}).get(part)
            if found:
                expected = _expected(arm, by_name.get(arm["control"]), part)
                bar = Bar(entry=entry, value=found["mean"], low=found["low"], high=found["high"], expected=expected)
                group.append(bar)
        groups.append((words, group))
    return bars(groups, spec, shown=lambda value: fixed(value, 2))


def _expected(arm: Arm, control: Arm | None, part: str) -> float | None:
    """Where φ would put the late importance of repeated blocks."""
    start = ((control or {}).get("late") or {}).get(part)
    rise = ((arm["against"] or {}).get("predicted") or {}).get(part)
    return start["mean"] + rise if arm["role"] == "repeat" and start and rise is not None else None


def _scatter(arms: Shown, pair: str, spec: PictureSpec) -> Picture | None:
    clouds = []
    for entry, arm in arms:
        if arm["correlations"]:
            share = over_runs(arm, itemgetter("share"))[0]
            if pair == "delta":
                clouds.append(_cloud_of(entry, arm, share, delta_over_runs(arm)[0], pair))
            else:
                clouds.append(_cloud_of(entry, arm, over_runs(arm, itemgetter(pair))[0], share, pair))
    return scatter(clouds, spec)


def _cloud_of(entry: Entry, arm: Arm, x: Row, y: Row, pair: str) -> Cloud:
    found = arm["correlations"][f"share_{pair}"]
    rho = found[DECIDES]
    said = together("Spearman", rho["value"], rho["low"], rho["high"], rho["reason"])
    if found["over"] == "blocks" and rho["low"] is not None:
        said += " (over blocks alone)"
    points = [
        (a, b, str(block)) for block, (a, b) in enumerate(zip(x, y, strict=True)) if a is not None and b is not None
    ]
    return Cloud(entry=entry, points=points, words=said)


def _curves(arms: Shown) -> Picture | None:
    lines = []
    for entry, arm in arms:
        curve = arm["curve"]
        if curve and curve["tokens"] and arm["loss_per"] == "byte":
            points = list(zip(curve["tokens"], curve["bits_per_byte"], strict=True))
            lines.append(Series(index=entry.index, name=entry.name, key=entry.short, points=points))
    if not lines:
        return None
    last = max(x for line in lines for x, _ in line.points)
    low, high = svg.limits([value for line in lines for value in line.values])
    picture = LinePicture(
        label="Held-out bits per byte over training tokens.",
        x=Axis(label="training tokens", low=0.0, high=last, shown=count),
        y=Axis(label="held-out bits per byte", low=low, high=high),
        panels=[Panel(title="", series=lines)],
        tip=lambda name, x, y: f"{name}: {fixed(y)} bits per byte after {count(x)} tokens",
        dots=True,
    )
    return SPECS("curves").picture(
        picture.draw(),
        numbers=Numbers(
            head="arm",
            columns=["tokens", "bits per byte"],
            rows=[
                (arm["name"], [f"{arm['tokens']:,}", significant(arm["bits_per_byte"]["mean"], 4)])
                for _, arm in arms
                if arm["bits_per_byte"] and arm["loss_per"] == "byte"
            ],
        ),
    )
