"""What `leadline compare` is asked to be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from leadline.experiments.options import ExperimentConfig
from leadline.sections import NotNegative, Positive, Range
from leadline.training.config import Logging


@dataclass(frozen=True, kw_only=True)
class CompareConfig(ExperimentConfig):
    """Train designs side by side on the same data and write one report that says which to choose and why.

    Every design gets the same data in the same order, the same seeds, and the learning rate and initialisation that
    suit it. Interrupted, rerun the same command to resume.

    Example: leadline compare prenorm attnres-block "mgr(streams=8)" --data sotu --tokens 512k --out runs/mine
    """

    logging: Logging = Logging(evaluate_tokens=32_768)
    out: Path = Path("runs/compare")
    evaluations: Positive = 8

    designs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[DESIGN ...]", help_behavior_hint="")
    ] = ()
    """Names or expressions, see `leadline designs`; without any, the nine of the demo."""

    baseline: str | None = None
    """The design that the others are compared with; prenorm where it takes part, or else the first."""

    flops: Annotated[int, Range(1, 10**30)] | None = None
    """Training FLOPs of every run, such as 3e14, instead of tokens: costly designs get fewer tokens."""

    sweep_lr: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[RATES]")] = None
    """First find each design's rate on another seed: 2e-3,4e-3,8e-3, or by itself half, one and two times."""

    measure_tokens: Positive = 8_192
    """Held-out tokens for the pictures along depth; removing blocks uses half of them."""

    speed_rounds: NotNegative = 6
    """Rounds after the runs in which all designs take turns at a step, to compare speed; 0 measures none."""
