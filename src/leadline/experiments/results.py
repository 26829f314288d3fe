"""What the results of every experiment begin with, what a study says of a claim, and how both are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from leadline.experiments.machine import describe_machine
from leadline.experiments.statistics import Difference
from leadline.files import finite, write_json, write_text
from leadline.report.page import Tone, Verdict
from leadline.report.words import count, listed, memory

if TYPE_CHECKING:
    from leadline.data import DataSet

INSTALL = "pip install --constraint constraints.txt --editable '.[demo]'"

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


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The finding in a sentence, what else is to be said, and the claims."""

    headline: str
    sentences: tuple[str, ...]
    judgements: tuple[Judgement, ...] = ()


def judged(results: dict[str, Any], found: Judged) -> dict[str, Any]:
    """The content of `results.json` with the verdict."""
    return finite({**results, **asdict(found)})


def opening(kind: str, command: str, data: DataSet, seeds: Sequence[int]) -> dict[str, Any]:
    """Name, version, time, machine, data, seeds and how to repeat it: the first entries of `results.json`."""
    import leadline

    return {
        "experiment": kind,
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
        "seeds": list(seeds),
        "repeat": {"command": command, "install": INSTALL},
    }


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


def failures(arms: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence on the arms that did not finish on all seeds."""
    failed = [arm["name"] for arm in arms if arm["status"] != "ok"]
    return [f"Runs failed: {listed(failed)}."] if failed else []


def write(results: dict[str, Any], page: str, out: Path) -> None:
    """Writes `results.json` and `report.html` into an experiment's folder, each whole or not at all."""
    write_json(out / "results.json", results)
    write_text(out / "report.html", page)


def difference_as_data(found: Difference | None) -> dict[str, Any] | None:
    """A difference as `results.json` keeps it."""
    if found is None:
        return None
    told = {"beyond_noise": found.beyond_noise, "p_value": found.p_value, "pairs": list(found.pairs)}
    return {**asdict(found.interval), **told}
