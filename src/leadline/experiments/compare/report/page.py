"""From results to the page: the pictures, the facts on how to repeat the run, and the template."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from leadline.experiments.compare.report import along, inside, learning, verdict
from leadline.experiments.compare.report.values import DesignValues, ReportValues
from leadline.report.page import Page
from leadline.report.page import render as render_page
from leadline.report.pictures import Section
from leadline.report.reading import number, some, text
from leadline.report.words import count, duration, fixed, listed, memory, plain

_ARXIV = re.compile(r"arXiv[: ]?(\d{4}\.\d{4,5})")


def render(results: Mapping[str, Any]) -> str:
    """The whole page as HTML, from what results.json holds. Missing values show as dashes."""
    report = ReportValues.read(results)
    page = Page(
        headline=report.headline,
        version=report.version,
        summary=_summary(report),
        lead=report.sentences[:2],
        further=report.sentences[2:],
        warnings=_warnings(report),
        failures=[_failure(d) for d in report.designs if d.failed or d.error],
        entries=[replace(d.entry, drawn=_has_pictures(d)) for d in report.designs],
        legend="designs",
        sections=_sections(report),
        facts=_facts(report),
        command=text(report.repeat.get("command")) or report.command,
        install=text(report.repeat.get("install")),
    )
    # The table of designs has pictures in it, so the page's own would not do.
    return render_page(
        page,
        "report.html.j2",
        "leadline.experiments.compare.report",
        report=report,
        lines=verdict.lines(report),
        designs=[_described(d, report) for d in report.designs],
    )


def _failure(design: DesignValues) -> tuple[str, str]:
    part = "" if design.failed else " (in part)"
    return f"{design.name}{part}", design.error or "no error was recorded"


def _sections(report: ReportValues) -> list[Section]:
    named = f"{text(report.preset.get('blocks'))} " if report.preset.get("blocks") else ""
    angles = inside.angles(report)
    found = [
        Section(
            name="learning",
            heading="How they learn",
            opening="All designs see the same text in the same order.",
            pictures=learning.learning(report),
        ),
        Section(
            name="depth",
            heading="Along depth",
            opening=f"What {named}blocks do, measured on held-out text after training. A block is "
            "one attention and one MLP sublayer; blocks are counted from 0. Every design stands on the same axis.",
            pictures=[*along.along_depth(report), *([angles] if angles else [])],
        ),
        Section(
            name="inside",
            heading="Inside the connections",
            opening="What each connection shows of itself: these pictures exist only for the designs "
            "that have such parts.",
            pictures=inside.inside(report),
        ),
        Section(
            name="settings",
            heading="Settings",
            opening="No design should win or lose by its settings, so each runs at the learning rate that suits it.",
            pictures=learning.settings(report),
        ),
    ]
    return [s for s in found if s.pictures]


def _has_pictures(design: DesignValues) -> bool:
    depth = design.depth
    lists = [
        depth.block_output_rms,
        depth.read_rms,
        depth.output_rms,
        depth.gradient_share,
        depth.removal,
        depth.stream_diversity,
    ]
    return bool(design.curve) or any(some(values) for values in lists) or bool(depth.angular_distance)


def _summary(report: ReportValues) -> list[str]:
    """The facts above the headline."""
    budget, preset = report.budget, report.preset
    size = [text(preset.get("name"))]
    if preset.get("blocks") is not None:
        size.append(f"{text(preset.get('blocks'))} blocks")
    if preset.get("dim") is not None:
        size.append(f"width {text(preset.get('dim'))}")
    training = ""
    if budget.get("kind") == "flops" and number(budget.get("flops")):
        training = f"{count(number(budget.get('flops')))}FLOPs each".replace(" FLOPs", " FLOPs")
    elif number(budget.get("tokens")):
        training = f"{count(number(budget.get('tokens')))} tokens each"
    seeds = len(report.seeds)
    parts = [text(report.data.get("name")), ", ".join(filter(None, size)), training]
    parts.append(f"{seeds} seed{'s' if seeds != 1 else ''}" if seeds else "")
    parts.append(report.created[:10])
    return [part for part in parts if part]


def _warnings(report: ReportValues) -> list[str]:
    found = []
    if len(report.seeds) == 1:
        found.append(
            "One seed: no interval can be shown, and no difference can be called beyond noise. "
            "Repeat with --seeds 3 to know."
        )
    failed = [d.name for d in report.designs if d.failed]
    if failed:
        found.append(f"Failed: {listed(failed)}. What went wrong stands below the table.")
    return found


@dataclass(frozen=True, kw_only=True)
class Described:
    """What the last table says of a design."""

    index: int
    key: str
    name: str
    summary: str
    notes: list[str]
    source: str
    link: str
    rate: str
    settings: str
    values: str


def _described(design: DesignValues, report: ReportValues) -> Described:
    found = _ARXIV.search(design.source)
    others = [
        f"{key.replace('_', ' ')}: {_setting(value)}"
        for key, value in design.settings.items()
        if key != "learning_rate"
    ]
    if design.tokens is not None and design.tokens != number(report.budget.get("tokens")):
        others.append(f"tokens: {design.tokens:,.0f}")
    rate = number(design.settings.get("learning_rate"))
    return Described(
        index=design.index,
        key=design.key,
        name=design.name,
        summary=design.summary,
        notes=design.notes,
        source=design.source,
        link=f"https://arxiv.org/abs/{found.group(1)}" if found else "",
        rate=plain(rate),
        settings="; ".join(others),
        values=", ".join(fixed(v) for v in design.bits.values),
    )


def _facts(report: ReportValues) -> list[tuple[str, str]]:
    """Names and values on the run, in reading order; what is missing is left out."""
    data, machine, budget = report.data, report.machine, report.budget
    preset = ", ".join(f"{key.replace('_', ' ')} {_setting(v)}" for key, v in report.preset.items() if key != "name")
    cores = number(machine.get("cores"))
    processor = [text(machine.get("cpu")), f"{cores:.0f} core{'s' if cores != 1 else ''}" if cores else ""]
    ram = number(machine.get("memory_bytes"))
    versions = [
        f"{name} {text(machine.get(key))}"
        for name, key in (("Python", "python"), ("torch", "torch"))
        if machine.get(key)
    ]
    steps = [
        f"{_setting(budget.get('steps'))} steps" if budget.get("steps") else "",
        f"{_setting(budget.get('batch_tokens'))} tokens a step" if budget.get("batch_tokens") else "",
        f"context {_setting(budget.get('context'))}" if budget.get("context") else "",
    ]
    total = sum(d.seconds or 0.0 for d in report.designs)
    split = [
        f"{count(number(data.get('train_tokens')))} for training" if number(data.get("train_tokens")) else "",
        f"{count(number(data.get('heldout_tokens')))} held out" if number(data.get("heldout_tokens")) else "",
    ]
    rows = [
        (
            "Data",
            ", ".join(
                filter(
                    None, [text(data.get("name")), f"tokenizer {data['tokenizer']}" if data.get("tokenizer") else ""]
                )
            ),
        ),
        ("Data hash", text(data.get("hash"))),
        ("Tokens", ", ".join(filter(None, split))),
        ("Preset", ": ".join(filter(None, [text(report.preset.get("name")), preset]))),
        ("Training", ", ".join(filter(None, steps))),
        ("Seeds", ", ".join(text(s) for s in report.seeds)),
        ("Machine", ", ".join(filter(None, [*processor, memory(ram) if ram else ""]))),
        ("Platform", text(machine.get("platform"))),
        ("Versions", ", ".join(filter(None, [f"Leadline {report.version}" if report.version else "", *versions]))),
        ("Time", f"{duration(total)} for one run of each design" if total else ""),
        ("Written", report.created),
    ]
    return [(name, value) for name, value in rows if value]


def _setting(value: Any) -> str:
    found = number(value)
    if found is not None:
        return f"{value:,}" if isinstance(value, int) else plain(found)
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_setting(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return " ".join(_setting(v) for v in value)
    return text(value) or "–"
