"""Many runs, their statistics, and one report: what `leadline compare` does."""

from leadline.experiments.compare.experiment import compare
from leadline.experiments.compare.plan import DesignPlan, Plan
from leadline.experiments.compare.planning import DEMO, Wish, make_plan
from leadline.experiments.statistics import Difference, Interval, differences

__all__ = [
    "DEMO",
    "DesignPlan",
    "Difference",
    "Interval",
    "Plan",
    "Wish",
    "compare",
    "differences",
    "make_plan",
]
