"""The page of `leadline study cascade`, with its pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from leadline.experiments.cascade.verdict import called
from leadline.experiments.page import Arm, Shown, estimate, loss_curves, row_of, study_page
from leadline.report import svg
from leadline.report.lines import Axis, LinePicture, Panel
from leadline.report.over_blocks import series
from leadline.report.page import Cell, Column, Entry, Page, Table, TableRow, Tone
from leadline.report.pictures import Numbers, Picture
from leadline.report.specs import Specs
from leadline.report.words import count, fixed, interval, plain
from leadline.statistics import LEVEL

SPECS = Specs("leadline.experiments.cascade")


def make_page(results: Mapping[str, Any]) -> Page:
    """The page, from the content of `results.json`."""
    shown = [
        (Entry(index=index, name=arm["name"], baseline=arm["name"] == results["baseline"]), arm)
        for index, arm in enumerate(results["arms"])
    ]
    shape, budget = results["preset"], results["budget"]
    return study_page(
        results,
        shown,
        summary=[
            f"{shape['name']}, {shape['blocks']} blocks, width {shape['dim']}",
            f"{count(budget['flops'])}FLOPs each",
        ],
        one_seed="One seed: no difference of the loss can be called beyond noise. Repeat with --seeds 3 to know.",
        lead=[
            "Every model is trained to the same FLOPs: a taper that costs less a token gets more of "
            f"{'tokens' if budget['by'] == 'tokens' else budget['by']}. Its uniform control has the mean of its "
            "widths in every layer, costs the same a token and reads as many; what differs between the two is the "
            f"taper. A loss that differs by less than {results['smallest_effect']:g} bits per byte does not matter. "
            "Then all of them generate side by side."
        ],
        table=_table(shown, results),
        legend="designs",
        sections=[
            SPECS.section("shapes", [_shapes(shown)]),
            SPECS.section("learning", [_curves(shown)]),
            SPECS.section("generation", [_speeds(shown)]),
        ],
        tables=[("Budgets", _budgets(shown))],
        more=[("Generation", results["speed"]["method"])],
    )


def _table(shown: Shown, results: Mapping[str, Any]) -> Table:
    headings = [
        ("Held-out loss", "bits per byte"),
        ("Difference", "to its control"),
        ("Difference", "to the baseline"),
        ("Perplexity", "a token"),
        ("Latency", "ms a token, batch 1"),
        ("Change", "to its control"),
        ("Throughput", f"tokens/s, batch {results['speed']['options']['batch']}"),
        ("Change", "to its control"),
    ]
    columns = [Column(heading=heading, unit=unit) for heading, unit in headings]
    rows = [_row(entry, arm, len(results["seeds"])) for entry, arm in shown]
    return SPECS.table("designs", rows, columns=columns)


def _row(entry: Entry, arm: Arm, seeds: int) -> TableRow:
    bits, loss, speed = arm["bits_per_byte"], arm["loss"], arm["generation"]
    beside = (speed or {}).get("control") or {}
    cells = [
        estimate(bits, strong=True),
        _difference(arm["against_control"]),
        _difference(arm["difference"]),
        fixed(math.exp(loss["mean"])) if loss else "–",
        _median(speed and speed["milliseconds_per_token"], 2),
        _change(beside.get("latency_ratio"), more_is_better=False),
        _median(speed and speed["tokens_per_second"], 0),
        _change(beside.get("throughput_ratio"), more_is_better=True),
    ]
    return row_of(entry, cells, sum(value is not None for value in bits["values"]) if bits else 0, seeds)


def _difference(found: Mapping[str, Any] | None) -> Cell | str:
    if found is None:
        return "–"
    tones: dict[str, Tone] = {"better": "better", "worse": "worse"}
    span = interval(found["mean"], found["low"], found["high"])
    return Cell(text=fixed(found["mean"], sign=True), below=span or "one seed", tone=tones.get(called(found), "plain"))


def _median(found: Mapping[str, Any] | None, decimals: int) -> Cell | str:
    if not found:
        return "–"
    median, low, high = (fixed(found[key], decimals) for key in ("median", "low", "high"))
    return Cell(text=median, below=f"{low} to {high}")


def _change(ratio: Mapping[str, Any] | None, *, more_is_better: bool) -> Cell | str:
    if not ratio:
        return "–"
    level = ratio["low"] <= 1 <= ratio["high"]
    better = ratio["low"] > 1 if more_is_better else ratio["high"] < 1
    median, low, high = (fixed(100 * (ratio[key] - 1), 1, sign=True) for key in ("median", "low", "high"))
    return Cell(
        text=f"{median} %",
        below="within noise" if level else f"{low} to {high}",
        tone="plain" if level or ratio["coverage"] < LEVEL else "better" if better else "worse",
    )


def _budgets(shown: Shown) -> Table:
    rows = []
    for entry, arm in shown:
        cells = [
            f"{len(arm['widths'])}",
            *(_ends([layer[place] for layer in arm["widths"]]) for place in (0, 2)),
            *(f"{arm[name]:,}" for name in ("parameters", "flops_per_token", "tokens")),
            f"{fixed(100 * arm['residual'], 2, sign=True)} %",
            plain(arm["learning_rate"]),
            f"{arm['control']}: {arm['control_note']}" if arm["control"] else arm["control_note"] or "–",
        ]
        rows.append(TableRow(head=arm["name"], entry=entry, cells=cells))
    return SPECS.table("budgets", rows)


def _ends(values: Sequence[int]) -> str:
    return f"{max(values)} to {min(values)}" if max(values) > min(values) else f"{values[0]}"


def _shapes(shown: Shown) -> Picture:
    """Where the width is."""
    panels = []
    for title, place in (("attention heads", 0), ("MLP width", 2)):
        whole = max(layer[place] for layer in shown[0][1]["widths"])
        lines = [
            series(entry, [(n, layer[place] / whole) for n, layer in enumerate(arm["widths"], start=1)])
            for entry, arm in shown
        ]
        panels.append(Panel(title=title, series=lines))
    values = [y for panel in panels for line in panel.series for y in line.values]
    picture = LinePicture(
        label="Heads and MLP width of every layer, as shares of the uniform model's.",
        x=_counted("layer", max(len(arm["widths"]) for _, arm in shown)),
        y=Axis(label="share of the baseline's", low=0.0, high=1.05 * max(values)),
        panels=panels,
        tip=lambda name, x, y: f"{name}: {plain(y)} of the width in layer {x:.0f}",
    )
    return SPECS("widths").picture(picture.draw())


def _curves(shown: Shown) -> Picture | None:
    lines, rows = [], []
    for entry, arm in shown:
        flops, curve, bits = arm["flops_per_token"], arm["curve"], arm["bits_per_byte"]
        if curve and curve["tokens"]:
            points = zip(curve["tokens"], curve["bits_per_byte"], strict=True)
            lines.append(series(entry, [(tokens * flops, loss) for tokens, loss in points]))
        if bits:
            rows.append((entry.name, [f"{arm['tokens']:,}", count(arm["tokens"] * flops), fixed(bits["mean"])]))
    numbers = Numbers(head="design", columns=["tokens", "training FLOPs", "bits per byte"], rows=rows)
    return loss_curves(lines, SPECS("curves"), numbers, "FLOPs", settled=0.2)


def _speeds(shown: Shown) -> Picture | None:
    """How fast the designs generate beside their controls."""
    beside = [(entry, (arm["generation"] or {}).get("control") or {"latency_rounds": ()}) for entry, arm in shown]
    lines = [series(e, list(enumerate(c["latency_rounds"], start=1))) for e, c in beside if c["latency_rounds"]]
    if not lines:
        return None
    low, high = svg.limits([*(y for line in lines for y in line.values), 1.0])
    picture = LinePicture(
        label="Latency of a token over the uniform control's in the same round.",
        x=_counted("round", max(len(line.points) for line in lines)),
        y=Axis(label="latency over the control's", low=low, high=high),
        panels=[Panel(title="", series=lines)],
        rule=(1.0, "control = 1"),
        tip=lambda name, x, y: f"{name}: {fixed(y)} in round {x:.0f}",
    )
    return SPECS("rounds").picture(picture.draw())


def _counted(label: str, last: int) -> Axis:
    """An axis of whole numbers from 1."""
    last = max(2, last)
    return Axis(label=label, low=1, high=last, at=[(n, str(n)) for n in svg.whole_ticks(1, last)])
