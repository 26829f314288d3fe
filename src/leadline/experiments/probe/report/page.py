"""From a probe's results to its page."""

from __future__ import annotations

from typing import Any

from leadline.experiments.probe.report import findings
from leadline.experiments.probe.report.pictures import SPECS, sections
from leadline.experiments.probe.results import Bounds, ModelValues, ProbeValues
from leadline.report.page import Cell, Column, Page, Table, TableRow
from leadline.report.pictures import some
from leadline.report.words import DASH, count, duration, fixed, listed, memory, plain, significant

COLUMNS = len(SPECS.content["tables"]["models"]["columns"])
KINDS = {"run": "Leadline run", "leadline": "Leadline decoder", "hugging-face": "Hugging Face model"}


def build(results: Any) -> Page:
    """The page of a probe, from what results.json holds."""
    report = ProbeValues.read(results)
    compared = findings.compared(report)
    told = [sentence for m in report.measured for sentence in _told(m, alone=len(report.models) == 1)]
    return Page(
        headline=findings.headline(report),
        version=report.leadline,
        summary=_summary(report),
        lead=compared or told[:2],
        further=told if compared else told[2:],
        warnings=_warnings(report),
        failures=[(m.name, m.error or "no error was recorded") for m in report.models if m.failed],
        table=SPECS.table("models", [_row(m) for m in report.models]) if report.models else None,
        entries=[m.entry for m in report.models],
        legend="models",
        sections=sections(report),
        tables=[(f"Block by block: {m.name}", _blocks(m)) for m in report.measured if m.blocks],
        facts=_facts(report),
        command=report.command,
    )


def _told(model: ModelValues, *, alone: bool) -> list[str]:
    """What stands out in a model: sentences where it is the only one, else one sentence with its name."""
    said = findings.sentences(model, alone=alone)
    if alone:
        return [f"{part[0].upper()}{part[1:]}." for part in said]
    return [f"{model.name}: {'; '.join(said)}."] if said else []


def _summary(report: ProbeValues) -> list[str]:
    models = report.models
    tokens = report.settings.tokens
    parts = [
        report.data.get("name", ""),
        models[0].name if len(models) == 1 else f"{len(models)} models",
        f"{tokens:,.0f} tokens" if tokens else "",
        report.created[:10],
    ]
    return [part for part in parts if part]


def _warnings(report: ProbeValues) -> list[str]:
    found = []
    per_byte = {m.at("bytes_per_token") for m in report.measured}
    if len(per_byte) > 1:
        found.append(
            "The models cut text into different tokens: compare bits per byte, and no loss or KL in nats a token."
        )
    found += [f"{m.name}: {said}." for m in report.measured if (said := findings.guessing(m))]
    failed = [m.name for m in report.models if m.failed]
    if failed:
        found.append(f"Failed: {listed(failed)}. What went wrong stands below the table.")
    return found


def _row(model: ModelValues) -> TableRow:
    if model.failed:
        return TableRow(head=model.name, cells=[DASH] * COLUMNS, entry=model.entry, remark="failed", failed=True)
    bits = model.at("lens", "final", "bits_per_byte")
    grown, (half, within) = model.growth, findings.half_within(model)
    fewest = [] if findings.guesses(model) else model.least("ablation") or model.least("similarity")
    told = 0 < len(fewest) < model.blocks
    return TableRow(
        head=model.name,
        entry=model.entry,
        remark=KINDS.get(model.kind, model.kind),
        cells=[
            fixed(findings.loss(model)),
            fixed(model.at("ablation", "bits_per_byte") if bits is None else bits),
            findings.named(fewest).split(" ", 1)[1] if told else DASH,
            Cell(text=half, below=within),
            Cell(text=DASH if grown.value is None else f"{plain(grown.value, 3)}×", below=_between(grown)),
            significant(max(some(model.values("activations", "blocks", "massive_ratio")), default=None)),
            str(model.blocks),
            count(model.at("model", "parameters"), 4),
        ],
    )


def _blocks(model: ModelValues) -> Table:
    """A row per block."""
    order = model.places("ablation") or model.places("similarity") or [(None, None)] * model.blocks
    columns = {
        Column(heading="Place", unit="1 is needed least"): [_place(*ends) for ends in order],
        Column(heading="ΔM", unit="nats a token"): [fixed(v, 4) for v in model.values("ablation", "blocks", "nats")],
        Column(heading="Block Influence", unit="1 − cos"): [
            significant(v) for v in model.values("similarity", "block_influence")
        ],
        Column(heading="Gradient share", unit="over training"): [_share(v) for v in model.training_share],
        Column(heading="Gradient share", unit="on this text"): [
            _share(v) for v in model.values("gradients", "blocks", "share")
        ],
        Column(heading="Output", unit="RMS"): [significant(v) for v in model.values("activations", "blocks", "rms")],
    }
    rows = [
        TableRow(head=str(block), cells=[cells[block] if block < len(cells) else DASH for cells in columns.values()])
        for block in range(model.blocks)
    ]
    return SPECS.table("blocks", rows, label=f"Every block of {model.name}", columns=list(columns))


def _place(low: int | None, high: int | None) -> str:
    if low is None or high is None:
        return DASH
    return f"{low}" if low == high else f"{low} to {high}"


def _between(found: Bounds) -> str:
    return "" if found.low is None or found.high is None else f"{plain(found.low, 3)} to {plain(found.high, 3)}"


def _share(value: float | None) -> str:
    return DASH if value is None else f"{fixed(100 * value, 1)} %"


def _facts(report: ProbeValues) -> list[tuple[str, str]]:
    machine, settings = report.machine, report.settings
    cores, ram, tokens, seed = machine.get("cores"), machine.get("memory_bytes"), settings.tokens, settings.seed
    processor = [
        machine.get("cpu"),
        f"{cores} core{'s' if cores != 1 else ''}" if cores else "",
        memory(ram) if ram else "",
    ]
    measured = [
        f"up to {tokens:,} held-out tokens" if tokens else "",
        f"{settings.batch_size} sequences a batch" if settings.batch_size else "",
    ]
    versions = {"Leadline": report.leadline, "Python": machine.get("python", ""), "torch": machine.get("torch", "")}
    rows = [
        ("Data", report.data.get("name", "")),
        ("Measured on", ", ".join(filter(None, measured))),
        *[(model.name, _described(model)) for model in report.models],
        ("Parts", ", ".join(settings.parts)),
        ("Device", settings.device),
        ("Seed", "" if seed is None else str(seed)),
        ("Machine", ", ".join(filter(None, processor))),
        ("Platform", machine.get("platform", "")),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("Time", duration(report.seconds) if report.seconds else ""),
        ("Written", report.created),
    ]
    return [(name, value) for name, value in rows if value]


def _described(model: ModelValues) -> str:
    """What a model is and what it was measured on."""
    parts = [
        KINDS.get(model.kind, model.kind),
        model.path,
        f"tokenizer {model.tokenizer}" if model.tokenizer else "",
        f"context {model.context}" if model.context else "",
        f"{model.tokens:,} tokens" if model.tokens else "",
        f"data hash {model.data_hash[:12]}" if model.data_hash else "",
        duration(model.seconds) if model.seconds else "",
    ]
    return ", ".join(part for part in parts if part)
