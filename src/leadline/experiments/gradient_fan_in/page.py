"""The page of `leadline study gfa`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leadline.experiments.gradient_fan_in.arms import amount_of
from leadline.experiments.gradient_fan_in.pictures import SPECS, sections
from leadline.experiments.gradient_fan_in.verdict import DECIDES, PARTS
from leadline.experiments.gradient_fan_in.verdict_late import difference_words, reading_of
from leadline.experiments.page import Arm, Shown, estimate, grouped, row_of, study_page
from leadline.probes.correlation import KINDS
from leadline.report.page import Cell, Column, Entry, Page, Table, TableRow, Tone
from leadline.report.words import count, fixed, plain

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
    arms = results["arms"]
    shown = [
        (Entry(index=index, name=arm["name"], baseline=index == 0, drawn=arm["correlations"] is not None), arm)
        for index, arm in enumerate(arms)
    ]
    amounts = dict.fromkeys(f"{count(arm['tokens'])} {amount_of(arm['loss_per'])}" for arm in arms)
    seeds = len(results["seeds"])
    return study_page(
        results,
        shown,
        summary=[
            f"{results['design']}, {results['preset']}, {results['blocks']} blocks",
            f"{' and '.join(amounts)} a run",
        ],
        one_seed="One seed: no interval over seeds can be shown, so no claim is decided. Repeat with --seeds 3.",
        lead=[
            "The gradient reaches early blocks over more paths than late ones. Here: whether a block's share of the "
            "gradient (ḡ) follows that fan-in (φ) and goes with what the block is worth (ΔM), and whether late blocks "
            "come to matter when gradients are made equal or when they are repeated."
        ],
        table=SPECS.table("arms", [_row(entry, arm, seeds) for entry, arm in shown]),
        legend="arms",
        sections=sections(shown, results),
        tables=[
            ("Definitions of the gradient share", _definitions(shown)),
            ("All correlations", _all_correlations(shown)),
            ("Arms", _kinds(shown)),
        ],
        more=[
            ("ΔM", f"on {results['ablation_tokens']:,} held-out tokens at most, or images"),
            ("Claims", "arXiv 2606.26538, abstract and summaries; the protocol is Leadline's"),
        ],
    )


def _row(entry: Entry, arm: Arm, seeds: int) -> TableRow:
    share, speed, unit = arm["first_share"], arm["tokens_per_second"], amount_of(arm["loss_per"])
    late, against = ((arm[side] or {}).get(reading_of(arm)) for side in ("late", "against"))
    cells = [
        _loss(arm),
        *(_coefficient(arm["correlations"], f"share_{part}", strong=True) for part in PARTS),
        "–" if share is None else fixed(100 * share, 0),
        estimate(late, 2),
        _difference(arm, against) if against else "–",
        Cell(text=f"{speed:,.0f}", below="" if unit == "tokens" else f"{unit} a second") if speed else "–",
    ]
    return row_of(entry, cells, sum(run is not None for run in arm["runs"]), seeds)


def _loss(arm: Arm) -> Cell | str:
    found = estimate(arm["bits_per_byte"])
    if arm["loss_per"] == "byte" or isinstance(found, str):
        return found
    return Cell(text=found.text, below=f"{found.below} bits per {arm['loss_per']}".strip())


def _difference(arm: Arm, against: Mapping[str, Any]) -> Cell:
    text, _, below = difference_words(against).partition(" ")
    below = below.strip("()").replace("on one seed, without an interval", "one seed")
    predicted = arm["against"]["predicted"][reading_of(arm)]
    if arm["role"] == "repeat" and predicted is not None:
        below += f"; φ predicts {fixed(predicted, 2, sign=True)}"
    return Cell(text=text, below=below)


def _coefficient(
    pairs: Mapping[str, Any] | None, pair: str, kind: str = DECIDES, *, strong: bool = False
) -> Cell | str:
    if not pairs:
        return "–"
    found, rho = pairs[pair], pairs[pair][kind]
    if rho["value"] is None:
        return Cell(text="–", below=rho["reason"] or "")
    if rho["low"] is None:
        return Cell(text=fixed(rho["value"], 2), strong=strong)
    tone: Tone = "plain"
    if found["over"] != "blocks" and not rho["low"] <= 0 <= rho["high"]:
        tone = "better" if rho["low"] > 0 else "worse"
    below = f"{fixed(rho['low'], 2)} to {fixed(rho['high'], 2)}"
    return Cell(text=fixed(rho["value"], 2), below=below, tone=tone, strong=strong)


def _definitions(shown: Shown) -> Table:
    rows = []
    for entry, arm in shown:
        phases = {f"sum, steps {phase['from']} to {phase['to']}": phase for phase in arm["phases"]}
        cells = [
            [words, *(_coefficient(pairs, f"share_{part}") for part in PARTS), _fit(arm["fits"].get(words))]
            for words, pairs in {**(arm["definitions"] or {}), **phases}.items()
        ]
        rows += grouped(entry, cells)
    return SPECS.table("definitions", rows)


def _fit(found: Mapping[str, Any] | None) -> Cell | str:
    return "–" if found is None else Cell(text=fixed(found["own"], 2), below=f"{fixed(found['other'], 2)} the other")


def _all_correlations(shown: Shown) -> Table:
    rows = []
    for entry, arm in shown:
        pairs = arm["correlations"] or {}
        there = [(pair, words) for pair, words in PAIRS.items() if pair in pairs]
        rows += grouped(entry, [[words, *(_coefficient(pairs, pair, kind) for kind in KINDS)] for pair, words in there])
    columns = [Column(heading="Of", words=True), *(Column(heading=kind.capitalize()) for kind in KINDS)]
    return SPECS.table("all_correlations", rows, columns=columns)


def _kinds(shown: Shown) -> Table:
    rows = []
    for entry, arm in shown:
        amount = f"{arm['tokens']:,} {amount_of(arm['loss_per'])}"
        sizes = (f"{arm[name]:,}" for name in ("parameters", "flops_per_token"))
        cells = [arm["summary"], arm["control"] or "–", plain(arm["learning_rate"]), amount, *sizes]
        rows.append(TableRow(head=entry.name, entry=entry, cells=cells))
    return SPECS.table("kinds", rows)
