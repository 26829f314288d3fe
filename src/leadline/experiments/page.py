"""What the pages of studies have in common (frame, learning curves, how a mean is shown), and the page of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import leadline
from leadline.experiments.results import Judgement, facts
from leadline.report import svg
from leadline.report.lines import Axis, LinePicture, Panel, Series
from leadline.report.over_blocks import series
from leadline.report.page import Cell, Entry, Page, TableRow
from leadline.report.pictures import Numbers, Picture, PictureSpec
from leadline.report.specs import Specs
from leadline.report.words import count, duration, fixed, interval, memory, plain

if TYPE_CHECKING:
    from leadline.training.records import Summary

SPECS = Specs("leadline.experiments")
Arm = Mapping[str, Any]
Shown = Sequence[tuple[Entry, Arm]]
"""The arms of `results.json`, each with its colour."""


def study_page(
    results: Mapping[str, Any],
    shown: Shown,
    *,
    summary: Sequence[str],
    one_seed: str,
    more: Sequence[tuple[str, str]],
    **parts: Any,
) -> Page:
    """The page of a study, from the content of `results.json`.

    Args:
        summary: what stands between the data and the seeds above the headline.
        one_seed: the warning where there is one seed.
        more: facts of this study.
        parts: of the page that only this study has.
    """
    seeds = results["seeds"]
    return Page(
        headline=results["headline"],
        version=results["leadline"],
        summary=[
            results["data"]["name"],
            *summary,
            f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}",
            results["created"][:10],
        ],
        further=results["sentences"],
        warnings=[one_seed] if len(seeds) == 1 else [],
        verdicts=[Judgement(**judgement).shown() for judgement in results["judgements"]],
        failures=[(arm["name"], arm["error"]) for _, arm in shown if arm["error"]],
        entries=[entry for entry, _ in shown],
        facts=[("Seeds", ", ".join(map(str, seeds))), *more, *facts(dict(results))],
        command=results["repeat"]["command"],
        install=results["repeat"]["install"],
        **parts,
    )


def row_of(entry: Entry, cells: Sequence[Cell | str], done: int, seeds: int) -> TableRow:
    """An arm's row, with a remark where not all of its seeds finished; faint where none did."""
    remark = "" if done == seeds else f"{done} of {seeds} seeds"
    return TableRow(head=entry.name, entry=entry, remark=remark, failed=done == 0, cells=cells)


def grouped(entry: Entry, rows: Sequence[Sequence[Cell | str]]) -> list[TableRow]:
    """Several rows of an arm, with its name on the first."""
    return [
        TableRow(head="" if index else entry.name, entry=None if index else entry, cells=cells)
        for index, cells in enumerate(rows)
    ]


def estimate(found: Mapping[str, Any] | None, decimals: int = 3, *, strong: bool = False) -> Cell | str:
    """A mean with its interval below."""
    if not found:
        return "–"
    below = interval(found["mean"], found["low"], found["high"], decimals)
    return Cell(text=fixed(found["mean"], decimals), below=below, strong=strong)


def loss_curves(
    lines: Sequence[Series], spec: PictureSpec, numbers: Numbers, over: str, *, settled: float = 0.0
) -> Picture | None:
    """Held-out bits per byte over what training has used up; None without lines.

    Args:
        over: " tokens" or "FLOPs", as they follow a count.
        settled: the share of the x axis before which values may lie above the picture.
    """
    if not lines:
        return None
    last = max(x for line in lines for x, _ in line.points)
    low, high = svg.limits([y for line in lines for x, y in line.points if y is not None and x >= settled * last])
    picture = LinePicture(
        label=f"Held-out bits per byte over training {over.strip()}.",
        x=Axis(label=f"training {over.strip()}", low=0.0, high=last, shown=count),
        y=Axis(label="held-out bits per byte", low=low, high=high),
        panels=[Panel(title="", series=lines)],
        tip=lambda name, x, y: f"{name}: {fixed(y)} bits per byte after {count(x)}{over}",
        dots=True,
    )
    return spec.picture(picture.draw(), numbers)


def run_page(summary: Summary, rows: Sequence[Mapping[str, Any]]) -> Page:
    """The page of a run: its learning curve and its summary.

    Args:
        rows: a mapping for each step, with `tokens`, `loss` and, where it was evaluated, `heldout_loss`.
    """
    entries = [Entry(index=0, name="held out", baseline=True), Entry(index=1, name="training")]
    columns = {"held out": "heldout_loss", "training": "loss"}
    lines = [
        series(entry, [(row["tokens"], row[key]) for row in rows if row.get(key := columns[entry.name]) is not None])
        for entry in entries
    ]
    low, high = svg.limits([value for line in lines for value in line.values[len(line.values) // 10 :]])
    picture = LinePicture(
        label="Loss over training tokens.",
        x=Axis(label="training tokens", low=0.0, high=max((row["tokens"] for row in rows), default=1.0), shown=count),
        y=Axis(label="loss, nats a token", low=low, high=high),
        panels=[Panel(title="", series=lines)],
        tip=lambda name, x, y: f"{name}: {fixed(y)} nats after {count(x)} tokens",
    )
    return Page(
        headline=f"{fixed(summary.bits_per_byte)} bits per byte held out after {count(summary.tokens)} tokens",
        version=leadline.__version__,
        further=summary.notes,
        entries=entries,
        legend="losses",
        sections=[SPECS.section("run", [SPECS("run-curve").picture(picture.draw())])],
        facts=[
            ("Steps", f"{summary.steps:,}"),
            ("Parameters", f"{summary.parameters:,}"),
            ("Training FLOPs", f"{summary.flops_per_token:,} a token, {summary.depth_flops_per_token:,} along depth"),
            ("Learning rate", plain(summary.learning_rate)),
            ("Speed", f"{summary.tokens_per_second:,.0f} tokens a second, {duration(summary.seconds)}"),
            ("Peak memory", memory(summary.peak_memory_bytes)),
        ],
    )
