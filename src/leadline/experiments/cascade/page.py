"""The page of `leadline study cascade`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from leadline.experiments.cascade.pictures import SPECS, sections
from leadline.experiments.cascade.verdict import called
from leadline.experiments.results import Judgement, facts
from leadline.report.page import Cell, Column, Entry, Page, Table, TableRow, Tone
from leadline.report.words import count, fixed, interval, plain
from leadline.statistics import LEVEL

Arm = Mapping[str, Any]


def make_page(results: Mapping[str, Any]) -> Page:
    """The page, from the content of `results.json`."""
    arms: Sequence[Arm] = results["arms"]
    entries = [
        Entry(index=index, name=arm["name"], baseline=arm["name"] == results["baseline"])
        for index, arm in enumerate(arms)
    ]
    shape, budget = results["preset"], results["budget"]
    return Page(
        headline=results["headline"],
        version=results["leadline"],
        summary=[
            results["data"]["name"],
            f"{shape['name']}, {shape['blocks']} blocks, width {shape['dim']}",
            f"{count(budget['flops'])}FLOPs each",
            f"{len(results['seeds'])} seed{'s' if len(results['seeds']) > 1 else ''}",
            results["created"][:10],
        ],
        lead=[
            "Every model is trained to the same FLOPs: a taper that costs less a token gets more of "
            f"{'tokens' if budget['by'] == 'tokens' else budget['by']}. Its uniform control has the mean of its "
            "widths in every layer, costs the same a token and reads as many; what differs between the two is the "
            f"taper. A loss that differs by less than {results['smallest_effect']:g} bits per byte does not matter. "
            "Then all of them generate side by side."
        ],
        further=results["sentences"],
        warnings=["One seed: no difference of the loss can be called beyond noise. Repeat with --seeds 3 to know."]
        if len(results["seeds"]) == 1
        else [],
        verdicts=[Judgement(**judgement).shown() for judgement in results["judgements"]],
        table=_table(arms, entries, results),
        failures=[(arm["name"], arm["error"]) for arm in arms if arm["error"]],
        entries=entries,
        legend="designs",
        sections=sections(arms),
        tables=[("Budgets", _budgets(arms, entries))],
        facts=[
            ("Seeds", ", ".join(map(str, results["seeds"]))),
            ("Generation", results["speed"]["method"]),
            *facts(dict(results)),
        ],
        command=results["repeat"]["command"],
        install=results["repeat"]["install"],
    )


def _table(arms: Sequence[Arm], entries: Sequence[Entry], results: Mapping[str, Any]) -> Table:
    batch = results["speed"]["options"]["batch"]
    return SPECS.table(
        "designs",
        [_row(arm, entry, len(results["seeds"])) for arm, entry in zip(arms, entries, strict=True)],
        columns=[
            Column(heading="Held-out loss", unit="bits per byte"),
            Column(heading="Difference", unit="to its control"),
            Column(heading="Difference", unit="to the baseline"),
            Column(heading="Perplexity", unit="a token"),
            Column(heading="Latency", unit="ms a token, batch 1"),
            Column(heading="Change", unit="to its control"),
            Column(heading="Throughput", unit=f"tokens/s, batch {batch}"),
            Column(heading="Change", unit="to its control"),
        ],
    )


def _row(arm: Arm, entry: Entry, seeds: int) -> TableRow:
    bits, loss, speed = arm["bits_per_byte"], arm["loss"], arm["generation"]
    done = sum(value is not None for value in bits["values"]) if bits else 0
    beside = (speed or {}).get("control") or {}
    return TableRow(
        head=arm["name"],
        entry=entry,
        remark="" if done == seeds else f"{done} of {seeds} seeds",
        failed=bits is None,
        cells=[
            Cell(text=fixed(bits["mean"]), below=interval(bits["mean"], bits["low"], bits["high"]), strong=True)
            if bits
            else "–",
            _difference(arm["against_control"]),
            _difference(arm["difference"]),
            fixed(math.exp(loss["mean"])) if loss else "–",
            _median(speed and speed["milliseconds_per_token"], 2),
            _change(beside.get("latency_ratio"), more_is_better=False),
            _median(speed and speed["tokens_per_second"], 0),
            _change(beside.get("throughput_ratio"), more_is_better=True),
        ],
    )


def _difference(found: Mapping[str, Any] | None) -> Cell | str:
    if found is None:
        return "–"
    tones: dict[str, Tone] = {"better": "better", "worse": "worse"}
    span = interval(found["mean"], found["low"], found["high"])
    return Cell(text=fixed(found["mean"], sign=True), below=span or "one seed", tone=tones.get(called(found), "plain"))


def _median(found: Mapping[str, Any] | None, decimals: int) -> Cell | str:
    if not found:
        return "–"
    return Cell(
        text=fixed(found["median"], decimals),
        below=f"{fixed(found['low'], decimals)} to {fixed(found['high'], decimals)}",
    )


def _change(ratio: Mapping[str, Any] | None, *, more_is_better: bool) -> Cell | str:
    if not ratio:
        return "–"
    level = ratio["low"] <= 1 <= ratio["high"]
    unsure = level or ratio["coverage"] < LEVEL
    better = ratio["low"] > 1 if more_is_better else ratio["high"] < 1
    low, high = (fixed(100 * (ratio[key] - 1), 1, sign=True) for key in ("low", "high"))
    return Cell(
        text=f"{fixed(100 * (ratio['median'] - 1), 1, sign=True)} %",
        below="within noise" if level else f"{low} to {high}",
        tone="plain" if unsure else ("better" if better else "worse"),
    )


def _budgets(arms: Sequence[Arm], entries: Sequence[Entry]) -> Table:
    rows = []
    for arm, entry in zip(arms, entries, strict=True):
        heads, widths = ([layer[place] for layer in arm["widths"]] for place in (0, 2))
        rows.append(
            TableRow(
                head=arm["name"],
                entry=entry,
                cells=[
                    f"{len(arm['widths'])}",
                    _ends(heads),
                    _ends(widths),
                    f"{arm['parameters']:,}",
                    f"{arm['flops_per_token']:,}",
                    f"{arm['tokens']:,}",
                    f"{fixed(100 * arm['residual'], 2, sign=True)} %",
                    plain(arm["learning_rate"]),
                    f"{arm['control']}: {arm['control_note']}" if arm["control"] else arm["control_note"] or "–",
                ],
            )
        )
    return SPECS.table("budgets", rows)


def _ends(values: Sequence[int]) -> str:
    return f"{max(values)} to {min(values)}" if max(values) > min(values) else f"{values[0]}"
