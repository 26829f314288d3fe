"""One run: loop, optimiser, schedule, checkpoints, records."""

from __future__ import annotations

from leadline.training.config import RunConfig
from leadline.training.gradient_detail import Diversity, effective_ranks
from leadline.training.gradient_file import load_gradient
from leadline.training.gradient_share import GradientShare
from leadline.training.gradient_steps import StepNorms, load_norms
from leadline.training.loop import train
from leadline.training.optimiser import param_groups
from leadline.training.run_folder import load_model
from leadline.training.summary import Summary

__all__ = [
    "Diversity",
    "GradientShare",
    "RunConfig",
    "StepNorms",
    "Summary",
    "effective_ranks",
    "load_gradient",
    "load_model",
    "load_norms",
    "param_groups",
    "train",
]
