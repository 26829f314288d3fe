"""Many runs, their statistics, and one report: what `leadline compare` does."""

from leadline.compare.plan import DesignPlan, Plan
from leadline.compare.planning import DEMO, Wish, make_plan
from leadline.compare.run import compare
from leadline.compare.statistics import Difference, Interval, differences

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
