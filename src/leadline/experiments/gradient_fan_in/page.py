"""The page of `leadline study gfa`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leadline.experiments.gradient_fan_in.arms import amount_of
from leadline.experiments.gradient_fan_in.pictures import SPECS, sections
from leadline.experiments.gradient_fan_in.verdict_fan_in import DECIDES, PARTS
from leadline.experiments.gradient_fan_in.verdict_late import difference_words, reading_of
from leadline.experiments.results import Judgement, facts
from leadline.probes.correlation import KINDS
from leadline.report.page import Cell, Column, Entry, Page, Table, TableRow, Tone
from leadline.report.words import count, fixed, interval, plain

Arm = Mapping[str, Any]

PAIRS = {
    "share_fan_in": "ḡ and φ",
    "share_fan_in_rest": "ḡ and φ, without the first block",
    "share_delta": "ḡ and ΔM",
    "share_delta_rest": "ḡ and ΔM, without the first block",
    "share_fan_in_when_present": "ḡ for each step in which a block took part, and φ",
    "share_delta_when_present": "ḡ for each step in which a block took part, and ΔM",
    "rank_fan_in": "effective rank of the gradient and φ",
    "rank_delta": "effective rank of the gradient and ΔM",
    "cosine_fan_in": "cosine between gradients of different batches and φ",
    "cosine_delta": "cosine between gradients of different batches and ΔM",
}


def make_page(results: Mapping[str, Any]) -> Page:
    """The page, from the content of `results.json`."""
    arms: Sequence[Arm] = results["arms"]
    entries = [
        Entry(index=index, name=arm["name"], baseline=index == 0, drawn=arm["correlations"] is not None)
        for index, arm in enumerate(arms)
    ]
    seeds = len(results["seeds"])
    return Page(
        headline=results["headline"],
        version=results["leadline"],
        summary=[
            results["data"]["name"],
            f"{results['design']}, {results['preset']}, {results['blocks']} blocks",
            f"{' and '.join(_amounts(arms))} a run",
            f"{seeds} seed{'s' if seeds > 1 else ''}",
            results["created"][:10],
        ],
        lead=[
            "The gradient reaches early blocks over more paths than late ones. Here: whether a block's share of the "
            "gradient (ḡ) follows that fan-in (φ) and goes with what the block is worth (ΔM), and whether late blocks "
            "come to matter when gradients are made equal or when they are repeated."
        ],
        further=results["sentences"],
        warnings=["One seed: no interval over seeds can be shown, so no claim is decided. Repeat with --seeds 3."]
        if seeds == 1
        else [],
        verdicts=[Judgement(**judgement).shown() for judgement in results["judgements"]],
        table=_table(arms, entries, results),
        failures=[(arm["name"], arm["error"]) for arm in arms if arm["error"]],
        entries=entries,
        legend="arms",
        sections=sections(list(zip(entries, arms, strict=True)), results),
        tables=[
            ("Definitions of the gradient share", _definitions(arms, entries)),
            ("All correlations", _all_correlations(arms, entries)),
            ("Arms", _kinds(arms, entries)),
        ],
        facts=[
            ("Seeds", ", ".join(map(str, results["seeds"]))),
            ("ΔM", f"on {results['ablation_tokens']:,} held-out tokens at most, or images"),
            ("Claims", "arXiv 2606.26538, abstract and summaries; the protocol is Leadline's"),
            *facts(dict(results)),
        ],
        command=results["repeat"]["command"],
        install=results["repeat"]["install"],
    )


def _table(arms: Sequence[Arm], entries: Sequence[Entry], results: Mapping[str, Any]) -> Table:
    return SPECS.table(
        "arms", [_row(arm, entry, len(results["seeds"])) for arm, entry in zip(arms, entries, strict=True)]
    )


def _row(arm: Arm, entry: Entry, seeds: int) -> TableRow:
    share, speed = arm["first_share"], arm["tokens_per_second"]
    done = sum(run is not None for run in arm["runs"])
    part = reading_of(arm)
    late, against = ((arm[side] or {}).get(part) for side in ("late", "against"))
    return TableRow(
        head=arm["name"],
        entry=entry,
        remark="" if done == seeds else f"{done} of {seeds} seeds",
        failed=done == 0,
        cells=[
            _loss(arm),
            *(_correlation(arm, f"share_{part}", DECIDES, strong=True) for part in PARTS),
            "–" if share is None else fixed(100 * share, 0),
            Cell(text=fixed(late["mean"], 2), below=interval(late["mean"], late["low"], late["high"], 2))
            if late
            else "–",
            _difference(arm, against),
            _speed(arm, speed),
        ],
    )


def _amounts(arms: Sequence[Arm]) -> list[str]:
    """What the arms train on, each amount once."""
    return list(dict.fromkeys(f"{count(arm['tokens'])} {amount_of(arm['loss_per'])}" for arm in arms))


def _speed(arm: Arm, speed: float | None) -> Cell | str:
    if not speed:
        return "–"
    unit = amount_of(arm["loss_per"])
    return Cell(text=f"{speed:,.0f}", below="" if unit == "tokens" else f"{unit} a second")


def _loss(arm: Arm) -> Cell | str:
    bits = arm["bits_per_byte"]
    if not bits:
        return "–"
    below = interval(bits["mean"], bits["low"], bits["high"])
    if arm["loss_per"] != "byte":
        below = f"{below} bits per {arm['loss_per']}".strip()
    return Cell(text=fixed(bits["mean"]), below=below)


def _difference(arm: Arm, against: Mapping[str, Any] | None) -> Cell | str:
    if not against:
        return "–"
    words = difference_words(against)
    text, _, below = words.partition(" ")
    below = below.strip("()").replace("on one seed, without an interval", "one seed")
    predicted = arm["against"]["predicted"][reading_of(arm)]
    if arm["role"] == "repeat" and predicted is not None:
        below += f"; φ predicts {fixed(predicted, 2, sign=True)}"
    return Cell(text=text, below=below)


def _correlation(arm: Arm, pair: str, kind: str, *, strong: bool = False) -> Cell | str:
    if not arm["correlations"]:
        return "–"
    return _coefficient(arm["correlations"][pair], kind, strong=strong)


def _coefficient(found: Mapping[str, Any], kind: str, *, strong: bool = False) -> Cell | str:
    rho = found[kind]
    if rho["value"] is None:
        return Cell(text="–", below=rho["reason"] or "")
    if rho["low"] is None:
        return Cell(text=fixed(rho["value"], 2), strong=strong)
    tone: Tone = "plain"
    if found["over"] != "blocks" and not rho["low"] <= 0 <= rho["high"]:
        tone = "better" if rho["low"] > 0 else "worse"
    below = f"{fixed(rho['low'], 2)} to {fixed(rho['high'], 2)}"
    return Cell(text=fixed(rho["value"], 2), below=below, tone=tone, strong=strong)


def _definitions(arms: Sequence[Arm], entries: Sequence[Entry]) -> Table:
    rows = []
    for arm, entry in zip(arms, entries, strict=True):
        phases = {f"sum, steps {phase['from']} to {phase['to']}": phase for phase in arm["phases"]}
        for index, (words, pairs) in enumerate({**(arm["definitions"] or {}), **phases}.items()):
            of_both = [_coefficient(pairs[f"share_{part}"], DECIDES) for part in PARTS]
            cells = [words, *of_both, _fit(arm["fits"].get(words))]
            head, shown = (arm["name"], entry) if index == 0 else ("", None)
            rows.append(TableRow(head=head, entry=shown, cells=cells))
    return SPECS.table("definitions", rows)


def _fit(found: Mapping[str, Any] | None) -> Cell | str:
    return "–" if found is None else Cell(text=fixed(found["own"], 2), below=f"{fixed(found['other'], 2)} the other")


def _all_correlations(arms: Sequence[Arm], entries: Sequence[Entry]) -> Table:
    return SPECS.table(
        "all_correlations",
        [
            TableRow(
                head=arm["name"] if index == 0 else "",
                entry=entry if index == 0 else None,
                cells=[words, *(_correlation(arm, pair, kind) for kind in KINDS)],
            )
            for arm, entry in zip(arms, entries, strict=True)
            if arm["correlations"]
            for index, (pair, words) in enumerate(PAIRS.items())
            if pair in arm["correlations"]
        ],
        columns=[Column(heading="Of", words=True), *(Column(heading=kind.capitalize()) for kind in KINDS)],
    )


def _kinds(arms: Sequence[Arm], entries: Sequence[Entry]) -> Table:
    return SPECS.table(
        "kinds",
        [
            TableRow(
                head=arm["name"],
                entry=entry,
                cells=[
                    arm["summary"],
                    arm["control"] or "–",
                    plain(arm["learning_rate"]),
                    f"{arm['tokens']:,} {amount_of(arm['loss_per'])}",
                    f"{arm['parameters']:,}",
                    f"{arm['flops_per_token']:,}",
                ],
            )
            for arm, entry in zip(arms, entries, strict=True)
        ],
    )
