"""What `leadline study cascade` is asked to be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leadline.choices import By
from leadline.experiments.options import ExperimentConfig
from leadline.sections import Positive
from leadline.training.config import Logging, Model

BLOCKS = 15
"""The depth of the paper's baseline."""


@dataclass(frozen=True, kw_only=True)
class CascadeConfig(ExperimentConfig):
    """Tapered stacks against uniform ones at equal training FLOPs: loss over seeds, and speed of generation.

    Trains prenorm, every taper and its uniform control (the mean of its widths in every layer, where that costs the
    same a token) to the same FLOPs, then lets the trained models generate side by side. Interrupted, rerun the same
    command to resume.

    Example: leadline study cascade --designs cascade-a2,cascade-af --tokens 512k --out runs/cascade
    """

    model: Model = Model(blocks=BLOCKS)
    logging: Logging = Logging(evaluate_tokens=65_536)
    out: Path = Path("runs/cascade")

    designs: str | None = None
    """Designs with commas, each with its control; cascade-a2, -f1, -f2, -af, -reverse, -middle unless given."""

    deeper: str | None = None
    """Which of them also take part with more layers at equal cost, or none; cascade-a2 unless given."""

    baseline: str = "prenorm"
    """The uniform design; with another connection here, put it into the designs too: "mgr + cascade-a2"."""

    by: By = "tokens"
    """What makes costs equal: tokens, blocks or the MLP's width; +tokens takes up what is left over."""

    speed_rounds: Positive = 51
    """Rounds in which all models generate, after the warm-up."""

    speed_batch: Positive = 16
    """Sequences at once for the throughput."""

    speed_group: Positive = 16
    """Tokens that a model generates in its turn."""
