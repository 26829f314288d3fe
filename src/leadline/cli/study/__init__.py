"""`leadline study`: whole experiments, each with a report that says which of a paper's claims hold here."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import tyro

from leadline.cli.study import cascade, gfa, pruning
from leadline.cli.study.cascade import Cascade
from leadline.cli.study.gfa import Gfa
from leadline.cli.study.pruning import Pruning


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Run a whole experiment, and write a report that says which of a paper's claims hold at this size."""

    study: tyro.conf.OmitArgPrefixes[
        Annotated[Gfa, tyro.conf.subcommand("gfa", prefix_name=False)]
        | Annotated[Cascade, tyro.conf.subcommand("cascade", prefix_name=False)]
        | Annotated[Pruning, tyro.conf.subcommand("pruning", prefix_name=False)]
    ]


def run(arguments: Arguments) -> int:
    """Runs the study. Returns 0, or 1 where a run failed."""
    asked = arguments.study
    if isinstance(asked, Pruning):
        return pruning.run(asked)
    return gfa.run(asked) if isinstance(asked, Gfa) else cascade.run(asked)
