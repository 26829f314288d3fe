"""One pruned model as a page: its quality before and after, and the score of every unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leadline.report.bars import Bar, bars
from leadline.report.page import Entry, Page, TableRow
from leadline.report.specs import Specs
from leadline.report.words import fixed, percent, plain, significant

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
