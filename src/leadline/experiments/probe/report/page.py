"""From a probe's results to its page."""

from __future__ import annotations

from typing import Any

from leadline.experiments.probe.report import findings
from leadline.experiments.probe.report.pictures import SPECS, sections
from leadline.experiments.probe.report.values import ModelValues, ProbeValues, growth, least, places
from leadline.probes.paired import Bounds
from leadline.report.page import Cell, Column, Page, Table, TableRow
from leadline.report.reading import items, number, some, text
from leadline.report.words import count, duration, fixed, listed, memory, plain, significant

KINDS = {"run": "Leadline run", "leadline": "Leadline decoder", "hugging-face": "Hugging Face model"}


def build(results: Any) -> Page:
    """The page of a probe, from what results.json holds."""
    report = ProbeValues.read(results)
    compared = findings.compared(report)
    told = [sentence for m in report.measured for sentence in _told(m, alone=len(report.models) == 1)]
    return Page(
        headline=findings.headline(report),
        version=report.version,
        summary=_summary(report),
        lead=compared or told[:2],
        further=told if compared else told[2:],
        warnings=_warnings(report),
        failures=[(m.name, m.error or "no error was recorded") for m in report.models if m.failed],
        table=_table(report),
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
    tokens = number(report.settings.get("tokens"))
    parts = [
        text(report.data.get("name")),
        models[0].name if len(models) == 1 else f"{len(models)} models",
        f"{tokens:,.0f} tokens" if tokens else "",
        report.created[:10],
    ]
    return [part for part in parts if part]


def _warnings(report: ProbeValues) -> list[str]:
    found = []
    per_byte = {m.number("bytes_per_token") for m in report.measured}
    if len(per_byte) > 1:
        found.append(
            "The models cut text into different tokens: compare bits per byte, and no loss or KL in nats a token."
        )
    found += [f"{m.name}: {said}." for m in report.measured if (said := findings.guessing(m))]
    failed = [m.name for m in report.models if m.failed]
    if failed:
        found.append(f"Failed: {listed(failed)}. What went wrong stands below the table.")
    return found


def _table(report: ProbeValues) -> Table | None:
    if not report.models:
        return None
    columns = [
        Column(heading="Loss", unit="nats a token"),
        Column(heading="Bits per byte"),
        Column(heading="Needed least", unit="blocks", words=True),
        Column(heading="First half", unit="share of ΔM"),
        Column(heading="Growth", unit="from block 1 on"),
        Column(heading="Largest value", unit="÷ median"),
        Column(heading="Blocks"),
        Column(heading="Parameters"),
    ]
    return SPECS.table("models", [_row(m, len(columns)) for m in report.models], columns=columns)


def _row(model: ModelValues, columns: int) -> TableRow:
    if model.failed:
        return TableRow(head=model.name, cells=["–"] * columns, entry=model.entry, remark="failed", failed=True)
    bits = model.number("lens", "final", "bits_per_byte")
    grown, (half, within) = growth(model), findings.half_within(model)
    fewest = [] if findings.guesses(model) else least(model, "ablation") or least(model, "similarity")
    told = 0 < len(fewest) < model.blocks
    return TableRow(
        head=model.name,
        entry=model.entry,
        remark=KINDS.get(model.kind, model.kind),
        cells=[
            fixed(findings.loss(model)),
            fixed(model.number("ablation", "bits_per_byte") if bits is None else bits),
            findings.named(fewest).split(" ", 1)[1] if told else "–",
            Cell(text=half, below=within),
            Cell(text="–" if grown.value is None else f"{plain(grown.value, 3)}×", below=_between(grown)),
            significant(max(some(model.values("activations", "blocks", "massive_ratio")), default=None)),
            str(model.blocks),
            count(model.number("model", "parameters"), 4),
        ],
    )


def _blocks(model: ModelValues) -> Table:
    """A row per block."""
    rises = model.values("ablation", "blocks", "nats")
    influence = model.values("similarity", "block_influence")
    now = model.values("gradients", "blocks", "share")
    sizes_ = model.values("activations", "blocks", "rms")
    order = dict(enumerate(places(model, "ablation") or places(model, "similarity")))
    rows = [
        TableRow(
            head=str(block),
            cells=[
                _place(*order.get(block, (None, None))),
                fixed(_at(rises, block), 4),
                significant(_at(influence, block)),
                _share(_at(model.training_share, block)),
                _share(_at(now, block)),
                significant(_at(sizes_, block)),
            ],
        )
        for block in range(model.blocks)
    ]
    columns = [
        Column(heading="Place", unit="1 is needed least"),
        Column(heading="ΔM", unit="nats a token"),
        Column(heading="Block Influence", unit="1 − cos"),
        Column(heading="Gradient share", unit="over training"),
        Column(heading="Gradient share", unit="on this text"),
        Column(heading="Output", unit="RMS"),
    ]
    label = f"Every block of {model.name}"
    return SPECS.table("blocks", rows, label=label, columns=columns)


def _place(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "–"
    return f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"


def _between(found: Bounds) -> str:
    return "" if found.low is None or found.high is None else f"{plain(found.low, 3)} to {plain(found.high, 3)}"


def _at(values: list[float | None], place: int) -> float | None:
    return values[place] if place < len(values) else None


def _share(value: float | None) -> str:
    return "–" if value is None else f"{fixed(100 * value, 1)} %"


def _facts(report: ProbeValues) -> list[tuple[str, str]]:
    machine, settings = report.machine, report.settings
    cores, ram = number(machine.get("cores")), number(machine.get("memory_bytes"))
    tokens = number(settings.get("tokens"))
    processor = [
        text(machine.get("cpu")),
        f"{cores:.0f} core{'s' if cores != 1 else ''}" if cores else "",
        memory(ram) if ram else "",
    ]
    measured = [
        f"up to {tokens:,.0f} held-out tokens" if tokens else "",
        f"{text(settings.get('batch_size'))} sequences a batch" if settings.get("batch_size") else "",
    ]
    versions = [f"Leadline {report.version}"]
    versions += [f"{n} {text(machine.get(key))}" for n, key in (("Python", "python"), ("torch", "torch"))]
    rows = [
        ("Data", text(report.data.get("name"))),
        ("Measured on", ", ".join(filter(None, measured))),
        *[(model.name, _described(model)) for model in report.models],
        ("Parts", ", ".join(text(part) for part in items(settings.get("parts")))),
        ("Device", text(settings.get("device"))),
        ("Seed", text(settings.get("seed"))),
        ("Machine", ", ".join(filter(None, processor))),
        ("Platform", text(machine.get("platform"))),
        ("Versions", ", ".join(versions)),
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
        f"context {model.context:.0f}" if model.context else "",
        f"{model.tokens:,.0f} tokens" if model.tokens else "",
        f"data hash {model.data_hash[:12]}" if model.data_hash else "",
        duration(model.seconds) if model.seconds else "",
    ]
    return ", ".join(part for part in parts if part)
