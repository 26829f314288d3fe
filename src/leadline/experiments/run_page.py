"""One run as a page, for notebooks: its learning curve and its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import leadline
from leadline.report import svg
from leadline.report.lines import Axis, LinePicture, Panel
from leadline.report.over_blocks import series
from leadline.report.page import Entry, Page
from leadline.report.specs import Specs
from leadline.report.words import count, duration, fixed, memory, plain

if TYPE_CHECKING:
    from leadline.training.summary import Summary

SPECS = Specs("leadline.experiments")


def run_page(summary: Summary, rows: Sequence[Mapping[str, Any]]) -> Page:
    """The page of a run.

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
