"""Which blocks to remove, and removing them.

    opened = open_model("runs/mine")
    data = dataset_for(opened, "sotu")
    config = PruneConfig(
        criterion="cfp", amount=Amount(ratio=0.25), evaluation=EvaluationSettings(context=128, stride=128)
    )
    prune(opened, data, config, Path("smaller"))

Scores alone, on any stack: `rank("similarity", "block", ScoringInputs(stack=stack_of(model), batches=batches))`.
Skipping without removing, undone when the context ends: `with stack.skipping([Unit(3)]): ...`.
"""

from leadline.hub import dataset_for, open_model
from leadline.pruning.criteria import CRITERIA, Ranking, ScoringInputs, rank
from leadline.pruning.cutting import PruneConfig, prune
from leadline.pruning.healing import Healing, heal
from leadline.pruning.select import Amount
from leadline.pruning.speed import Timing, compare_speed
from leadline.pruning.text import EvaluationSettings, Quality, quality

__all__ = [
    "CRITERIA",
    "Amount",
    "EvaluationSettings",
    "Healing",
    "PruneConfig",
    "Quality",
    "Ranking",
    "ScoringInputs",
    "Timing",
    "compare_speed",
    "dataset_for",
    "heal",
    "open_model",
    "prune",
    "quality",
    "rank",
]
