"""`leadline study`: whole experiments, each with a report that says which of a paper's claims hold here."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from leadline.experiments.cascade.config import CascadeConfig
from leadline.experiments.gradient_fan_in.config import GfaConfig
from leadline.experiments.pruning.config import PruningConfig
from leadline.progress import StatusLine


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

    with contextlib.closing(StatusLine()) as line:
        found = run_experiment(arguments.study, line.show)
    print_findings(found.content, arguments.study.out)
    return 1 if found.failed else 0


def print_findings(results: dict[str, Any], out: Path) -> None:
    """The finding, the claims and what else is to be said, on standard output."""
    print(results["headline"])
    for judgement in results["judgements"]:
        print(f"  {judgement['claim']}: {judgement['outcome'].upper()}. {judgement['evidence']}")
    for sentence in results["sentences"]:
        print(f"  {sentence}")
    print(f"report: {out / 'report.html'}")
    sys.stdout.flush()
