"""The pictures of `leadline study gfa`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from leadline.experiments.gradient_fan_in.verdict_fan_in import DECIDES
from leadline.report import svg
from leadline.report.bars import Bar, bars
from leadline.report.lines import Axis, LinePicture, Panel, Series
from leadline.report.over_blocks import between, by_block, over_blocks, series, signed_note
from leadline.report.pictures import Entry, Numbers, Picture, Row, Section
from leadline.report.scatter import Cloud, scatter, together
from leadline.report.words import count, fixed, significant

Arm = Mapping[str, Any]
Shown = Sequence[tuple[Entry, Arm]]

DELTA_FLOOR = 1e-4
"""Nats; what costs less than this, or does the model good, lies on the lower edge."""


def sections(arms: Shown, results: Mapping[str, Any]) -> list[Section]:
    """The pictures: gradient, importance, both together, late importance, learning."""
    return [
        Section(
            name="gradient",
            heading="Where the gradient goes",
            opening="How much of the gradient every block got over training, and what fan-in predicts.",
            pictures=_there(_share(arms), _phases(arms), _fan_in(arms), _rank(arms), _cosine(arms)),
        ),
        Section(
            name="importance",
            heading="What blocks are worth",
            opening="The held-out loss without a block minus the loss with it, after training.",
            pictures=_there(_delta(arms), _late(arms, results), _late_rest(arms, results)),
        ),
        Section(
            name="correlation",
            heading="Whether they go together",
            opening="A point is a block, its values averaged over seeds; the words below are over blocks and seeds.",
            pictures=_there(_share_fan_in(arms), _share_delta(arms)),
        ),
        Section(
            name="learning",
            heading="How they learn",
            opening="All arms of a seed start alike and see the same text in the same order.",
            pictures=_there(_curves(arms)),
        ),
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


def _share(arms: Shown) -> Picture | None:
    return _lines(
        arms,
        lambda arm: over_runs(arm, lambda run: run["share"]),
        name="share",
        heading="Gradient share by block",
        label="The accumulated gradient share of every block",
        axis="share of the gradient",
        reading="Each line is one arm: the sum over steps of a block's gradient norm, as a share of all blocks'. The "
        "shade spans the seeds.",
        tip="{name}, block {x}: {y} of the gradient",
        note="Raw gradients, before equalising and clipping. A block that was dropped in a step adds nothing there.",
        log=True,
    )


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
    return over_blocks(
        panels,
        name="phases",
        heading="Gradient share early and late in training",
        label="The gradient share of every block in the first tenth of the steps, and in the rest",
        axis="share of the gradient",
        reading="Norms are largest at the start, so the sum over all steps is mostly about it. Where the two pictures "
        "differ, so do the definitions of the gradient share.",
        tip="{name}, block {x}: {y} of the gradient",
        log=True,
    )


def _fan_in(arms: Shown) -> Picture | None:
    def relative(run: Mapping[str, Any]) -> Row:
        total = sum(run["fan_in"])
        return [value / total for value in run["fan_in"]]

    return _lines(
        arms,
        lambda arm: over_runs(arm, relative),
        name="fan-in",
        heading="Fan-in by block",
        label="The fan-in of every block",
        axis="share of the fan-in",
        reading="Over how many paths the loss reaches a block, as a share of all blocks' paths: what the gradient "
        "share would be if fan-in alone made it.",
        tip="{name}, block {x}: {y} of the fan-in",
        note="φ is that of a plain Pre-LN stack with the arm's exits and repeats, whatever the design.",
        log=True,
    )


def _rank(arms: Shown) -> Picture | None:
    return _lines(
        arms,
        lambda arm: over_runs(arm, lambda run: run["effective_rank"]),
        name="rank",
        heading="Effective rank of the gradient",
        label="The effective rank of every block's gradient matrices",
        axis="effective rank",
        reading="Over how many directions a block's gradient is spread, mean over the records of a run. The shade "
        "spans the seeds.",
        tip="{name}, block {x}: effective rank {y}",
    )


def _cosine(arms: Shown) -> Picture | None:
    return _lines(
        arms,
        lambda arm: over_runs(arm, lambda run: run["cosine"]),
        name="diversity",
        heading="How alike the gradients of different batches are",
        label="The mean cosine between the gradients of parts of a step, for every block",
        axis="cosine",
        reading="1 where all parts of a step pull a block the same way, 0 where they have nothing in common. The shade "
        "spans the seeds.",
        tip="{name}, block {x}: cosine {y}",
    )


def _delta(arms: Shown) -> Picture | None:
    return _lines(
        arms,
        delta_over_runs,
        name="delta",
        heading="What leaving a block out costs",
        label="The rise of the held-out loss without every block",
        axis="ΔM, nats a token",
        reading="Each line is one arm: how much the loss rises without a block, mean over seeds. The shade spans the "
        "seeds; with one seed it is the 95 % interval over sequences.",
        tip="{name}, block {x}: {y} nats",
        note=f"{signed_note(DELTA_FLOOR)} A repeated block is left out in all of its places.",
        linear=DELTA_FLOOR,
    )


def _lines(
    arms: Shown,
    rows: Callable[[Arm], tuple[Row, Row, Row]],
    *,
    name: str,
    heading: str,
    label: str,
    axis: str,
    reading: str,
    tip: str,
    note: str = "",
    log: bool = False,
    linear: float | None = None,
) -> Picture | None:
    drawn = []
    for entry, arm in arms:
        mean, low, high = rows(arm)
        if any(value is not None for value in mean):
            drawn.append(series(entry, by_block(mean), between(low, high)))
    return over_blocks(
        [Panel(title="", series=drawn)],
        name=name,
        heading=heading,
        label=label,
        axis=axis,
        reading=reading,
        tip=tip,
        note=note,
        log=log,
        linear=linear,
    )


def _late(arms: Shown, results: Mapping[str, Any]) -> Picture | None:
    return _bars(
        arms,
        _late_rows(arms, results, ""),
        name="late",
        heading="How much the late blocks matter",
        label="The late blocks' mean ΔM over the mean of all blocks",
        axis="mean ΔM over that of all blocks",
        reading="1 means that the late blocks matter as much as the others; the thin lines are 95 % intervals over "
        "seeds. The mark across a bar is where φ would put it: the control's value plus the rise that φ predicts.",
    )


def _late_rest(arms: Shown, results: Mapping[str, Any]) -> Picture | None:
    return _bars(
        arms,
        _late_rows(arms, results, "_rest"),
        name="late-rest",
        heading="The same without block 0",
        label="The late blocks' mean ΔM over the mean of all blocks but the first",
        axis="mean ΔM over that of all blocks but the first",
        reading="The first block often outweighs all others; here the late blocks are held against the rest. A verdict "
        "has to be the same in both pictures.",
    )


def _late_rows(arms: Shown, results: Mapping[str, Any], rest: str) -> dict[str, str]:
    last = results["last_blocks"]
    if all(arm["late_blocks"] == last for _, arm in arms):
        return {f"last{rest}": f"the last {last}"}
    return {f"third{rest}": "the last third", f"last{rest}": f"the last {last}"}


def _bars(
    arms: Shown, rows: Mapping[str, str], *, name: str, heading: str, label: str, axis: str, reading: str
) -> Picture | None:
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
    return bars(
        groups,
        name=name,
        heading=heading,
        label=label,
        axis=axis,
        head="blocks",
        reading=reading,
        rule=(1.0, "even"),
        shown=lambda value: fixed(value, 2),
    )


def _expected(arm: Arm, control: Arm | None, part: str) -> float | None:
    """Where φ would put the late importance of repeated blocks."""
    start = ((control or {}).get("late") or {}).get(part)
    rise = ((arm["against"] or {}).get("predicted") or {}).get(part)
    return start["mean"] + rise if arm["role"] == "repeat" and start and rise is not None else None


def _share_fan_in(arms: Shown) -> Picture | None:
    clouds = [_cloud(entry, arm, lambda run: run["fan_in"], "fan_in") for entry, arm in arms if arm["correlations"]]
    return scatter(
        clouds,
        name="share-fan-in",
        heading="Gradient share against fan-in",
        reading="To the right: more paths reach the block. Up: it got more of the gradient.",
        label="The gradient share of every block against its fan-in",
        x="fan-in φ",
        y="share of the gradient",
        x_log=True,
        y_log=True,
    )


def _share_delta(arms: Shown) -> Picture | None:
    clouds = []
    for entry, arm in arms:
        if arm["correlations"]:
            share, delta = over_runs(arm, lambda run: run["share"])[0], delta_over_runs(arm)[0]
            clouds.append(_cloud_of(entry, arm, share, delta, "delta"))
    return scatter(
        clouds,
        name="share-delta",
        heading="Importance against gradient share",
        reading="To the right: the block got more of the gradient. Up: leaving it out costs more.",
        label="What leaving out every block costs against its gradient share",
        x="share of the gradient",
        y="ΔM, nats a token",
        x_log=True,
        y_linear=DELTA_FLOOR,
        note=signed_note(DELTA_FLOOR),
    )


def _cloud(entry: Entry, arm: Arm, x: Callable[[Mapping[str, Any]], Row], pair: str) -> Cloud:
    return _cloud_of(entry, arm, over_runs(arm, x)[0], over_runs(arm, lambda run: run["share"])[0], pair)


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
    return Picture(
        name="curves",
        heading="Loss over training",
        reading="Each line is one arm's loss on text it never trained on, mean over seeds; lower is better. Arms that "
        "learn images are not here: their loss is in other units.",
        body=picture.draw(),
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


def _there(*pictures: Picture | None) -> list[Picture]:
    return [picture for picture in pictures if picture is not None]
