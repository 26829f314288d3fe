"""What the results of every study begin with, what a study says of a claim, and how both are written."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from leadline.experiments.compare.results import INSTALL, finite
from leadline.experiments.machine import describe_machine
from leadline.files import write_json, write_text
from leadline.report.page import Page, Tone, Verdict, render
from leadline.report.words import count, memory

if TYPE_CHECKING:
    from leadline.data import DataSet

Outcome = Literal[
    "holds",
    "does not hold",
    "open",
    "depends on the definition",
    "undecided",
    "no difference that matters",
    "depends on block 0",
    "no deficit at this size",
]
"""What the runs say of a claim; open where they can't say."""
DEPENDS: Outcome = "depends on the definition"
TONES: dict[Outcome, Tone] = {"holds": "better", "does not hold": "worse"}
"""Plain for the others."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a study says of one claim.

    Attributes:
        claim: its number and the claim, such as `C2: lower latency`.
        paper: the paper's figure in words; empty where it gives none.
        outcome: what the runs say.
        evidence: the numbers behind it, in sentences.
    """

    claim: str
    paper: str
    outcome: Outcome
    evidence: str

    def shown(self) -> Verdict:
        """As a page has it."""
        claim = f"{self.claim} (paper: {self.paper})" if self.paper else self.claim
        return Verdict(claim=claim, verdict=self.outcome, evidence=self.evidence, tone=TONES.get(self.outcome, "plain"))


def opening(kind: str, command: str, data: DataSet) -> dict[str, Any]:
    """Name, version, time, machine, data and how to repeat it: the first entries of a study's `results.json`."""
    import leadline

    return {
        "study": kind,
        "leadline": leadline.__version__,
        "command": command,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": describe_machine(),
        "data": {
            "name": data.name,
            "hash": data.hash,
            "train_tokens": data.train.tokens,
            "heldout_tokens": data.heldout.tokens,
            "tokenizer": data.tokenizer.name,
        },
        "repeat": {"command": command, "install": INSTALL},
    }


def judgements_as_data(judgements: list[Judgement]) -> list[dict[str, str]]:
    """Judgements as `results.json` keeps them."""
    return [asdict(judgement) for judgement in judgements]


def facts(results: dict[str, Any]) -> list[tuple[str, str]]:
    """What `opening` holds, in words, for the end of a page."""
    machine, data = results["machine"], results["data"]
    cores = machine["cores"]
    return [
        ("Data", f"{data['name']}, tokenizer {data['tokenizer']}"),
        ("Data hash", data["hash"]),
        ("Tokens", f"{count(data['train_tokens'])} for training, {count(data['heldout_tokens'])} held out"),
        ("Machine", f"{machine['cpu']}, {cores} core{'s' if cores != 1 else ''}, {memory(machine['memory_bytes'])}"),
        ("Platform", machine["platform"]),
        ("Versions", f"Leadline {results['leadline']}, Python {machine['python']}, torch {machine['torch']}"),
        ("Written", results["created"]),
    ]


def write(results: dict[str, Any], page: Page, out: Path) -> None:
    """Writes `results.json` and `report.html` into the study's folder, each whole or not at all."""
    write_json(out / "results.json", finite(results))
    write_text(out / "report.html", render(page))
