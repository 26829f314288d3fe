"""A sweep as a page (the verdict, a table, curves per criterion with the spread over seeds), and one pruned model."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leadline.files import write_json, write_text
from leadline.pruning.claim import RIVALS, best, level, mean_losses
from leadline.report.bars import Bar, bars
from leadline.report.curves import Curve, Value, curves
from leadline.report.page import Cell, Column, Page, Table, TableRow, Verdict, render
from leadline.report.pictures import Entry, Picture, Section
from leadline.report.specs import Specs
from leadline.report.words import count, fixed, listed, percent, plain, significant
from leadline.training.gradient_steps import DEFINITIONS

SPECS = Specs("leadline.pruning")
DEFINITIONS_IN_WORDS = {
    "sum": "norms of all steps, before clipping",
    "clipped": "norms after clipping",
    "mean-of-shares": "every step counts alike",
    "after-warmup": "norms of the steps after warm-up",
}
RESULTS, REPORT = "results.json", "report.html"
STABILITY = (Column(heading="Kendall", unit="τ-b"), Column(heading="Spearman", unit="ρ"), Column(heading="Jaccard"))
SHORT = {
    "cfp": "CFP", "similarity": "sim", "angular": "ang", "taylor": "tay", "magnitude": "mag", "ablation": "abl",
    "random": "rnd",
}  # fmt: skip


def write_sweep(results: Mapping[str, Any], out: Path, command: str = "") -> None:
    """Writes `results.json` and `report.html` into a folder, which is made if need be."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / RESULTS, {**results, "command": command})
    write_text(out / REPORT, render(page(results, command)))


def page(results: Mapping[str, Any], command: str = "") -> Page:
    """The page of what `sweep` found."""
    measured: Mapping[str, Any] = results["criteria"]
    entries = [
        Entry(index=index, name=name, key=SHORT.get(name, ""), baseline=name == "random")
        for index, name in enumerate(measured)
    ]
    said = results["verdict"]
    return Page(
        headline=headline(results),
        version=results["leadline"],
        summary=_summary(results),
        lead=[_evaluation(results)],
        warnings=_warnings(results),
        verdicts=[Verdict(claim=said["claim"], verdict=said["verdict"], evidence=said["evidence"], tone=said["tone"])],
        table=_table(results, entries),
        failures=[(f"{name} is left out", reason) for name, reason in results["left_out"].items()],
        entries=entries,
        legend="criteria",
        sections=[_section(results, entries)],
        tables=[*_definitions(results), ("What was cut", _cuts(results, entries))],
        facts=_facts(results),
        command=command,
    )


def headline(results: Mapping[str, Any]) -> str:
    """What came out, in a sentence; a winner is one only as far as noise allows."""
    measured = results["criteria"]
    winner = best(measured)
    whole = _mean(results["whole"], "perplexity")
    middle = measured[winner]["points"][(len(results["ratios"]) - 1) // 2]
    after = _mean(middle["quality"], "perplexity")
    shown = f"cfp ({results['definition']})" if winner == "cfp" else winner
    return (
        f"{shown} {_won(results, winner)}: without {middle['count']} of {len(results['units'])} "
        f"{results['unit']}s perplexity goes from {plain(whole)} to {plain(after)}"
    )


def _won(results: Mapping[str, Any], winner: str) -> str:
    if len(results["criteria"]) == 1:
        return "is the only criterion"
    if results["seeds_are"] != "models":
        return "loses least over these ratios, which one model can't tell from noise"
    smallest = results["smallest_effect"]
    near = level(results["criteria"], winner, smallest)
    if not near:
        return "loses least over these ratios"
    by = f" by {smallest:g} bits per byte" if smallest else ""
    return f"loses least over these ratios, but is not told apart{by} from {listed(near)}"


def _section(results: Mapping[str, Any], entries: Sequence[Entry]) -> Section:
    spread = "The shade spans the smallest and the largest value over seeds." if len(results["seeds"]) > 1 else ""
    found = [_curves(results, entries, "perplexity", note=f"{_evaluation(results)} {spread}".strip())]
    found.append(_curves(results, entries, "accuracy", scale=100, note=spread))
    if (task := results["task"]) is not None:
        heading = f"Accuracy on {task['name']}"
        right = f"The share of {task['questions']} questions whose right choice has the best score."
        words = {"heading": heading, "label": heading, "reading": right, "note": spread}
        found.append(_curves(results, entries, "task", scale=100, **words))
    opening = f"What is left of the model when the {results['unit']}s of the lowest scores are skipped."
    return SPECS.section("ratios", found, opening=opening)


def _curves(
    results: Mapping[str, Any], entries: Sequence[Entry], name: str, *, scale: float = 1, **words: str
) -> Picture | None:
    found = []
    for entry in entries:
        points = []
        for point in results["criteria"][entry.name]["points"]:
            values = [scale * one[name] for one in point["quality"]]
            ends = (min(values), max(values)) if len(values) > 1 else (None, None)
            points.append(Value(x=point["ratio"], mean=statistics.fmean(values), low=ends[0], high=ends[1]))
        found.append(Curve(entry=entry, values=points))
    rule = (scale * _mean(results["whole"], name), "nothing cut")
    spec = SPECS(name, x=f"share of {results['unit']}s cut", rule=rule, **words)
    return curves(found, spec, x_shown=lambda v: f"{v:g}")


def _table(results: Mapping[str, Any], entries: Sequence[Entry]) -> Table:
    columns = [Column(heading=f"{ratio:g}", unit="perplexity") for ratio in results["ratios"]]
    columns += [Column(heading="mean loss", unit="bits per byte"), *STABILITY]
    rows = []
    for entry in entries:
        one = results["criteria"][entry.name]
        cells = [_spread([q["perplexity"] for q in point["quality"]]) for point in one["points"]]
        losses = mean_losses(one)
        cells.append(Cell(text=fixed(statistics.fmean(losses)), below=_ends(losses, 3), strong=True))
        remark = f"gradient share: {results['definition']}" if entry.name == "cfp" else ""
        rows.append(TableRow(head=entry.name, entry=entry, cells=cells + _stability(one["stability"]), remark=remark))
    over = "models trained with different seeds" if results["seeds_are"] == "models" else "calibration texts"
    return Table(
        label="Criteria",
        head="criterion",
        columns=columns,
        rows=rows,
        notes="Small numbers span all seeds. The last three columns compare rankings and cut sets over "
        f"{over}, as means over pairs and ratios; 1 is the same ranking every time.",
    )


def _stability(stable: Mapping[str, Any] | None) -> list[Cell]:
    if stable is None:
        return [Cell(text=fixed(None))] * 3
    shared = statistics.fmean(stable["jaccard"].values())
    return [Cell(text=fixed(value, 2)) for value in (stable["kendall"], stable["spearman"], shared)]


def _definitions(results: Mapping[str, Any]) -> list[tuple[str, Table]]:
    """CFP by each definition of the gradient share: minus each rival, and how stable it ranks."""
    judged, found = results["verdict"]["definitions"], results["definitions"]
    if not found:
        return []
    rivals = [name for name in RIVALS if name in results["criteria"]]
    losses, orders = [], []
    for name, one in found.items():
        by = judged[name]
        for rival in rivals:
            gaps = [_gap(gap) for gap in (*by["ratios"][rival], by["loss"][rival])]
            losses.append(TableRow(head=f"{name} minus {rival}", cells=[*gaps, by["effects"][rival]]))
        gaps = [_gap(by["stability"][rival], 2) for rival in rivals]
        orders.append(TableRow(head=name, cells=[*_stability(one["stability"]), *gaps, by["verdict"]]))
    notes = "; ".join(f"{name}: {DEFINITIONS_IN_WORDS[name]}" for name in DEFINITIONS if name in found)
    beside = (
        f"Bits per byte, below zero is better for CFP, with 95 % intervals over seeds. A difference under "
        f"{results['smallest_effect']:g} does not matter. {notes[0].upper()}{notes[1:]}."
    )
    tables = []
    if losses:
        columns = [Column(heading=f"{ratio:g}", unit="cut") for ratio in results["ratios"]]
        columns += [Column(heading="mean", unit="over ratios"), Column(heading="that is", words=True)]
        label = "CFP minus its rivals, by definition of the gradient share"
        tables.append((label, Table(label=label, head="definition", columns=columns, rows=losses, notes=beside)))
    columns = [*STABILITY, *(Column(heading=f"minus {rival}'s", unit="τ-b") for rival in rivals)]
    columns += [Column(heading="C1", words=True)]
    label = "Rank stability of CFP, by definition of the gradient share"
    return [*tables, (label, Table(label=label, head="definition", columns=columns, rows=orders))]


def _gap(gap: Mapping[str, Any] | None, decimals: int = 3) -> Cell:
    if gap is None:
        return Cell(text=fixed(None))
    span = ""
    if gap["low"] is not None:
        span = f"{fixed(gap['low'], decimals, sign=True)} to {fixed(gap['high'], decimals, sign=True)}"
    return Cell(text=fixed(gap["mean"], decimals, sign=True), below=span)


def _cuts(results: Mapping[str, Any], entries: Sequence[Entry]) -> Table:
    unit, rows = f"{results['unit']}s, from 0", []
    for entry in entries:
        points = results["criteria"][entry.name]["points"]
        cells = [" | ".join(dict.fromkeys(" ".join(cut) for cut in point["cut"])) for point in points]
        rows.append(TableRow(head=entry.name, entry=entry, cells=cells))
    columns = [Column(heading=f"{ratio:g}", unit=unit, words=True) for ratio in results["ratios"]]
    notes = "Where seeds differ, their cuts stand side by side."
    return Table(label="What was cut", head="criterion", columns=columns, rows=rows, notes=notes)


def _summary(results: Mapping[str, Any]) -> list[str]:
    models = len(results["models"])
    seeds = f"{models} models" if results["seeds_are"] == "models" else f"{len(results['seeds'])} calibration texts"
    return [
        str(results["data"]["name"]),
        f"{len(results['units'])} {results['unit']}s",
        f"{count(results['parameters'])} parameters",
        seeds,
    ]


def _evaluation(results: Mapping[str, Any]) -> str:
    reading, whole = results["reading"], results["whole"][0]
    return (
        f"Perplexity is that of {whole['tokens']:,} held-out tokens of {results['data']['name']}, read with context "
        f"{reading['context']} and stride {reading['stride']}; scores come from {results['calibration']['tokens']:,} "
        "tokens of the training split."
    )


def _warnings(results: Mapping[str, Any]) -> list[str]:
    if len(results["seeds"]) == 1:
        return ["One seed: nothing can be said of stability, and no difference can be called beyond noise."]
    return []


def _facts(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    protected = results["protected"]
    names = {"leadline": "Leadline", "torch": "torch", "transformers": "transformers"}
    return [
        ("Models", ", ".join(str(model["model"]) for model in results["models"])),
        ("Whole", f"perplexity {listed([plain(w['perplexity'], 4) for w in results['whole']])}"),
        ("Protected", f"{protected['first']} at the start, {protected['last']} at the end"),
        ("Data hash", str(results["data"]["hash"])),
        ("Versions", ", ".join(f"{name} {results[key]}" for key, name in names.items() if key in results)),
        ("Device", str(results["device"])),
    ]


def _mean(qualities: Sequence[Mapping[str, Any]], name: str) -> float:
    return statistics.fmean(q[name] for q in qualities)


def _spread(values: Sequence[float]) -> Cell:
    return Cell(text=plain(statistics.fmean(values), 4), below=_ends(values, None))


def _ends(values: Sequence[float], decimals: int | None) -> str:
    if len(values) < 2 or max(values) == min(values):
        return ""
    low, high = (plain(v) if decimals is None else fixed(v, decimals) for v in (min(values), max(values)))
    return f"{low} to {high}"


SPECS = Specs("leadline.pruning")


def record_page(record: Mapping[str, Any]) -> Page:
    """The page, from the content of `prune.json`."""
    cut, kept, kind = record["cut"], record["kept"], record["unit"]
    entries = [Entry(index=0, name="kept", baseline=True), Entry(index=1, name="cut")]
    scores: Mapping[str, float] = record["scores"] or {}
    groups = [
        (name, [Bar(entry=entries[name in cut], value=score)]) for name, score in scores.items() if score is not None
    ]
    stages = {"whole": record["before"], "cut": record["after"], "cut and healed": record["healed"]}
    rows = [
        TableRow(
            head=name,
            cells=[plain(found["perplexity"], 4), fixed(found["bits_per_byte"]), percent(found["accuracy"], 1)],
        )
        for name, found in stages.items()
        if found
    ]
    before, after = record["before"], record["healed"] or record["after"]
    parameters = record["parameters"]
    left = "" if parameters["after"] is None else f" to {parameters['after']:,}"
    return Page(
        headline=f"Without {len(cut)} of {len(cut) + len(kept)} {kind}s perplexity goes from "
        f"{plain(before['perplexity'])} to {plain(after['perplexity'])}",
        version=record["leadline"],
        summary=[record["data"]["name"], f"criterion {record['criterion']}", f"{record['blocks']} blocks"],
        lead=[f"Cut: {' '.join(cut) or 'nothing'}. {kind.capitalize()}s are counted from 0."],
        table=SPECS.table("quality", rows),
        entries=entries,
        legend=f"{kind}s",
        sections=[SPECS.section("scores", [bars(groups, SPECS("unit-scores", head=kind), shown=significant)])],
        facts=[
            ("Parameters", f"{parameters['before']:,}{left}"),
            ("Held out", f"{before['tokens']:,} tokens, context {before['context']}, stride {before['stride']}"),
        ],
    )
