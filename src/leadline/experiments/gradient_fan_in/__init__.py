"""`leadline study gfa`: gradient fan-in asymmetry (claims G1 and G2 of arXiv 2606.26538), from training to verdicts.

An arm is a way to train (`arms.py`); each is trained on every seed and then measured: what every block is worth (ΔM),
its share of the gradient (ḡ) and its fan-in (φ). `statistics.py` compares them, `verdict.py` says what that shows.
Only the paper's abstract and summaries could be read; the protocol is ours.
"""

from leadline.experiments.gradient_fan_in.experiment import run_study
from leadline.experiments.gradient_fan_in.plan import GfaPlan, GfaWish, make_plan

__all__ = ["GfaPlan", "GfaWish", "make_plan", "run_study"]
