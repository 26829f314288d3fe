"""`leadline study`: whole experiments, each with a report that says which of a paper's claims hold here."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from leadline.experiments.cascade.config import CascadeConfig
from leadline.experiments.gradient_fan_in.config import GfaConfig
from leadline.experiments.pruning.config import PruningConfig


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Run a whole experiment, and write a report that says which of a paper's claims hold at this size."""

    study: tyro.conf.OmitArgPrefixes[
        Annotated[GfaConfig, tyro.conf.subcommand("gfa", prefix_name=False)]
        | Annotated[CascadeConfig, tyro.conf.subcommand("cascade", prefix_name=False)]
        | Annotated[PruningConfig, tyro.conf.subcommand("pruning", prefix_name=False)]
    ]


def run(arguments: Arguments) -> int:
    """Runs the study. Returns 0, or 1 where a run failed."""
    from leadline.experiments.calls import run_experiment

    found = run_experiment(arguments.study, say)
    print_findings(found.content, arguments.study.out)
    return 1 if found.failed else 0


def say(text: str) -> None:
    """Progress, on standard error: one line that is drawn anew on a terminal, lines elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def print_findings(results: dict[str, Any], out: Path) -> None:
    """The finding, the claims and what else is to be said, on standard output."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    print(results["headline"])
    for judgement in results["judgements"]:
        print(f"  {judgement['claim']}: {judgement['outcome'].upper()}. {judgement['evidence']}")
    for sentence in results["sentences"]:
        print(f"  {sentence}")
    print(f"report: {out / 'report.html'}")
    sys.stdout.flush()
