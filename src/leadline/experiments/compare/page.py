"""The page of `leadline compare`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from leadline.experiments.compare.pictures import SPECS, has_pictures, sections
from leadline.experiments.results import facts
from leadline.report import svg
from leadline.report.page import Cell, Column, Entry, Page, Table, TableRow, Tone
from leadline.report.pictures import some
from leadline.report.svg import Scale, tag
from leadline.report.words import count, duration, fixed, interval, listed, memory, plain, significant, times

Arm = Mapping[str, Any]
_ARXIV = re.compile(r"arXiv[: ]?(\d{4}\.\d{4,5})")


def make_page(results: Mapping[str, Any]) -> Page:
    """The page, from the content of `results.json`."""
    arms: Sequence[Arm] = results["arms"]
    entries = [
        Entry(index=i, name=arm["name"], baseline=arm["name"] == results["baseline"], drawn=has_pictures(arm))
        for i, arm in enumerate(arms)
    ]
    shown = list(zip(entries, arms, strict=True))
    said, budget, preset, seeds = results["verdict"], results["budget"], results["preset"], results["seeds"]
    total = sum(arm["seconds"] or 0.0 for arm in arms)
    length = f"{count(budget['tokens'])} tokens" if budget["kind"] == "tokens" else f"{count(budget['flops'])}FLOPs"
    return Page(
        headline=said["headline"],
        version=results["leadline"],
        summary=[
            results["data"]["name"],
            f"{preset['name']}, {preset['blocks']} blocks, width {preset['dim']}",
            f"{length} each",
            f"{len(seeds)} seed{'s' if len(seeds) != 1 else ''}",
            results["created"][:10],
        ],
        lead=said["sentences"][:2],
        further=said["sentences"][2:],
        warnings=_warnings(arms, len(seeds)),
        table=_table(shown, results),
        failures=[
            (f"{arm['name']}{'' if _failed(arm) else ' (in part)'}", arm["error"]) for arm in arms if arm["error"]
        ],
        entries=entries,
        legend="designs",
        sections=sections(shown, results),
        tables=[("The designs", _described(shown, results))],
        facts=[
            ("Preset", ", ".join(f"{key.replace('_', ' ')} {_setting(value)}" for key, value in preset.items())),
            (
                "Training",
                f"{budget['steps']:,} steps, {budget['batch_tokens']:,} tokens a step, context {budget['context']:,}",
            ),
            ("Seeds", ", ".join(map(str, seeds))),
            *([("Time", f"{duration(total)} for one run of each design")] if total else []),
            *facts(dict(results)),
        ],
        command=results["repeat"]["command"],
        install=results["repeat"]["install"],
    )


def _failed(arm: Arm) -> bool:
    return bool(arm["status"] == "failed")


def _warnings(arms: Sequence[Arm], seeds: int) -> list[str]:
    one = "One seed: no interval can be shown, and no difference can be called beyond noise. "
    failed = [arm["name"] for arm in arms if _failed(arm)]
    return [
        *([f"{one}Repeat with --seeds 3 to know."] if seeds == 1 else []),
        *([f"Failed: {listed(failed)}. What went wrong stands below the table."] if failed else []),
    ]


def _table(shown: Sequence[tuple[Entry, Arm]], results: Mapping[str, Any]) -> Table:
    seeds, baseline = len(results["seeds"]), results["baseline"]
    order = sorted(shown, key=lambda one: (one[1]["bits_per_byte"] or {"mean": math.inf})["mean"])
    reach = _reach([arm for _, arm in shown])
    intervals = (
        f"± is the 95 % interval over {seeds} seeds, for differences also over the held-out text where its losses were "
        f"kept. Differences are in bits per byte to {baseline}, in pairs of the same seed; the small ticks are these."
        if seeds > 1
        else f"One seed, so there are no intervals over seeds. Differences are in bits per byte to {baseline}."
    )
    return SPECS.table(
        "designs",
        [_row(entry, arm, seeds, reach) for entry, arm in order],
        notes=f"Lowest bits per byte first. {intervals} FLOPs are those of training on a token; the last column is the "
        "part of the depth operators. Time is that of a training step, over the baseline's, all designs interleaved, "
        "after the runs; tokens a second are of the runs themselves, which share the machine and its load: designs "
        "can't be compared by them.",
    )


def _row(entry: Entry, arm: Arm, seeds: int, reach: float) -> TableRow:
    verdict, tone = _verdict(entry, arm, seeds)
    difference = arm["difference"]
    done = len(some(arm["bits_per_byte"]["values"])) if arm["bits_per_byte"] else 0
    remark = "baseline" if entry.baseline else ""
    apart: Cell | str = "baseline" if entry.baseline and not _failed(arm) else _estimate(difference, sign=True)
    return TableRow(
        head=entry.name,
        entry=entry,
        remark=f"{done} of {seeds} seeds" if 0 < done < seeds else remark,
        failed=_failed(arm),
        cells=[
            _estimate(arm["bits_per_byte"], strong=True),
            apart,
            Cell(text=verdict, tone=tone, toned=True),
            Cell(text="", drawing=_forest(entry, difference, reach)),
            _estimate(arm["loss"]),
            significant(arm["tokens_per_second"]),
            times(arm["speed"] and arm["speed"]["ratio"]),
            memory(arm["peak_memory_bytes"]),
            count(arm["parameters"], 4),
            count(arm["flops_per_token"]),
            count(arm["depth_flops_per_token"]),
        ],
    )


def _estimate(found: Mapping[str, Any] | None, *, sign: bool = False, strong: bool = False) -> Cell:
    if found is None:
        return Cell(text="–", strong=strong)
    below = interval(found["mean"], found["low"], found["high"])
    return Cell(text=fixed(found["mean"], sign=sign), below=below, strong=strong)


def _verdict(entry: Entry, arm: Arm, seeds: int) -> tuple[str, Tone]:
    if _failed(arm):
        return "failed", "worse"
    difference = arm["difference"]
    if entry.baseline or difference is None:
        return "–", "plain"
    if difference["too_little_text"]:
        return "too little text", "plain"
    if difference["beyond_noise"] is None:
        pairs = len(difference["pairs"])
        return f"{'one seed' if seeds <= 1 else 'one pair' if pairs == 1 else 'too few seeds'}: unknown", "plain"
    if not difference["beyond_noise"]:
        clear = (difference["low"] or 0.0) > 0 or (difference["high"] or 0.0) < 0
        return "no, as one of several" if clear else "no", "plain"
    if not difference["matters"]:
        return "yes, but small", "plain"
    return ("yes, better", "better") if difference["mean"] < 0 else ("yes, worse", "worse")


def _reach(arms: Sequence[Arm]) -> float:
    """How far the axis of differences goes to both sides."""
    found = [arm["difference"] for arm in arms if arm["difference"]]
    ends = [abs(v) for one in found for v in (one["mean"], one["low"], one["high"], *one["pairs"]) if v is not None]
    means = [abs(one["mean"]) for one in found]
    # One wild interval must not press all others flat.
    return min(max(ends, default=0.0), 2.5 * max(means, default=0.0) or 1.0) * 1.08 or 1.0


def _forest(entry: Entry, difference: Mapping[str, Any] | None, reach: float) -> Markup:
    """The difference as a dot with its interval, on one scale for all rows."""
    width, height = 132.0, 22.0
    x = Scale(-reach, reach, 3.0, width - 3)
    drawn = [svg.line(x(0.0), 0.0, x(0.0), height, "zero")]
    label = f"{entry.name}: the line that the others are compared with"
    if difference:
        if difference["low"] is not None and difference["high"] is not None:
            low, high = (min(max(x(difference[end]), 0.0), width) for end in ("low", "high"))
            drawn.append(svg.line(low, height / 2, high, height / 2, "whisker"))
        pairs = difference["pairs"]
        if len(pairs) > 1:
            drawn += [svg.line(x(v), height / 2 - 4, x(v), height / 2 + 4, "pair") for v in pairs]
        drawn.append(tag("circle", cx=x(difference["mean"]), cy=height / 2, r=4.2, class_="mean"))
        shown = interval(difference["mean"], difference["low"], difference["high"])
        label = f"{entry.name}: {fixed(difference['mean'], sign=True)} {shown} bits per byte"
    elif not entry.baseline:
        return Markup("")
    return svg.picture(width, height, label, [tag("title", label), *drawn], f"forest d{entry.index}")


def _described(shown: Sequence[tuple[Entry, Arm]], results: Mapping[str, Any]) -> Table:
    return SPECS.table(
        "settings",
        [
            TableRow(
                head=entry.name,
                entry=entry,
                cells=[
                    Cell(text=arm["summary"], below=" ".join(arm["notes"])),
                    _source(arm["source"]),
                    plain(arm["settings"]["learning_rate"]),
                    "; ".join(_settings(arm, results)),
                    ", ".join(fixed(v) for v in arm["bits_per_byte"]["values"]) if arm["bits_per_byte"] else "–",
                ],
            )
            for entry, arm in shown
        ],
        columns=[
            Column(heading="What it is", words=True),
            Column(heading="Source", words=True),
            Column(heading="Learning rate"),
            Column(heading="Other settings", words=True),
            Column(heading="Bits per byte", unit="by seed" if len(results["seeds"]) > 1 else "", words=True),
        ],
    )


def _source(text: str) -> Cell:
    found = _ARXIV.search(text)
    return Cell(text=text or "–", link=f"https://arxiv.org/abs/{found.group(1)}" if found else "")


def _settings(arm: Arm, results: Mapping[str, Any]) -> list[str]:
    settings = arm["settings"].items()
    found = [f"{key.replace('_', ' ')}: {_setting(value)}" for key, value in settings if key != "learning_rate"]
    if arm["tokens"] != results["budget"]["tokens"]:
        found.append(f"tokens: {arm['tokens']:,}")
    return found


def _setting(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else plain(value)
