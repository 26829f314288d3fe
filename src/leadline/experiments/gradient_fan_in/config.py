"""What `leadline study gfa` is asked to be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leadline.errors import UsageError
from leadline.experiments.options import ExperimentConfig
from leadline.sections import NotNegative, Positive
from leadline.training.config import EarlyExitTraining, Logging

DROPOUT, EXIT_LOSS = 0.2, 1.0
TOKENS = 307_200
"""At the preset tiny: with six arms and three seeds under 40 minutes on two cores."""


@dataclass(frozen=True, kw_only=True)
class GfaConfig(ExperimentConfig):
    """Gradient fan-in asymmetry: does a block's share of the gradient predict what it is worth, and does it cause it?

    Trains one design plainly, with LayerSkip, with equalised gradients and with its last blocks repeated; then leaves
    out every block in turn. Says how long it will take before it starts. Interrupted, rerun the same command to resume.

    Example: leadline study gfa --arms vanilla,repeated --blocks 12 --tokens 100k --out runs/gfa
    """

    logging: Logging = Logging(evaluate_tokens=16_384, record_every=0)
    early_exit: EarlyExitTraining = EarlyExitTraining(layer_dropout=DROPOUT, exit_loss=EXIT_LOSS)
    out: Path = Path("runs/gfa")
    evaluations: Positive = 5

    design: str = "prenorm"
    """What is trained: a design's name or expression, such as "mgr"."""

    arms: str | None = None
    """Which arms, with commas; all but the two with SGD unless given (docs/study-gfa.md)."""

    images: str = "digits"
    """What resnet50 learns: digits, a folder with CIFAR's .bin files, or one with a sub-folder a class."""

    ablation_tokens: Positive = 16_384
    """Held-out tokens for the importance of blocks; the model runs on them once without each block."""

    details: NotNegative = 5
    """How often in a run the gradients' effective rank and diversity are recorded; 0 records none."""

    def check(self) -> None:
        """See `Checked`."""
        super().check()
        for name, arm in (("equalise", "equalised-adamw"), ("equalise_updates", "equalised-updates")):
            if getattr(self.interventions, name):
                raise UsageError(f"{name}=True is not an option of this study; --arms {arm} works")
        if self.optimizer.optimizer != "adamw":
            raise UsageError("--optimizer is each arm's own here; --arms vanilla-sgd,equalised-sgd works")
