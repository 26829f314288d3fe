"""Which blocks to remove, and removing them.

    subject = open_subject(Path("runs/mine"))
    data = subject.data("sotu")
    wish = Wish(criterion="cfp", amount=Amount(ratio=0.25), reading=Reading(context=128, stride=128))
    prune(subject, data, wish, Path("smaller"))

Scores alone, on any stack: `rank("similarity", "block", Evidence(stack=stack_of(model), batches=batches))`. Passing by
without cutting, and undone when the context ends: `with stack.skipping([Unit(3)]): ...`.
"""

from leadline.pruning.criteria import CRITERIA, Evidence, Ranking, rank
from leadline.pruning.cutting import Wish, prune
from leadline.pruning.healing import Healing, heal
from leadline.pruning.select import Amount
from leadline.pruning.speed import Timing, compare_speed
from leadline.pruning.subject import Subject, open_subject
from leadline.pruning.text import Quality, Reading, quality

__all__ = [
    "CRITERIA",
    "Amount",
    "Evidence",
    "Healing",
    "Quality",
    "Ranking",
    "Reading",
    "Subject",
    "Timing",
    "Wish",
    "compare_speed",
    "heal",
    "open_subject",
    "prune",
    "quality",
    "rank",
]
