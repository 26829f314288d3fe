"""What `leadline study pruning` is asked to be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from leadline.errors import UsageError
from leadline.experiments.options import ExperimentConfig
from leadline.sections import NotNegative, Positive
from leadline.training.config import Logging


@dataclass(frozen=True, kw_only=True)
class PruningConfig(ExperimentConfig):
    """Models trained with their gradient shares, cut by every criterion: perplexity against ratio, and rank stability.

    Trains one model for each seed, then cuts them at every ratio by every criterion; cfp by every definition of the
    gradient share. Interrupted, rerun the same command to resume.

    Example: leadline study pruning --seeds 3 --out runs/pruning
    """

    logging: Logging = Logging(evaluate_tokens=32_000)
    out: Path = Path("runs/pruning")

    seeds: str = "8"
    """How many models (3 means seeds 0, 1, 2), or which seeds (0,1,5); 2 or more."""

    design: str = "prenorm"
    """The design of the models."""

    sweep: str = "0.1,0.2,0.3,0.5"
    """Shares of the blocks to cut."""

    criteria: str | None = None
    """Which criteria, separated by commas; all that fit unless given."""

    unit: Literal["block", "sublayer"] = "block"
    """What is cut: whole blocks, or attention and MLP apart."""

    protect_first: NotNegative = 0
    """Blocks from the start that stay."""

    protect_last: NotNegative = 0
    """Blocks from the end that stay."""

    normalised: bool = False
    """For cfp: shares of norms divided by √(number of parameters), which tapered designs need."""

    task: Path | None = None
    """Questions to answer at every ratio, JSON lines with question, choices and answer (from 0)."""

    calibration_tokens: Positive = 8_000
    """Tokens that criteria read, from the training part."""

    @property
    def ratios(self) -> tuple[float, ...]:
        """The shares of the blocks to cut."""
        try:
            return tuple(float(part) for part in self.sweep.split(",") if part.strip())
        except ValueError:
            raise UsageError(f"sweep={self.sweep!r} is not a list of numbers; 0.1,0.2,0.5 works") from None
