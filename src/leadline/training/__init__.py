"""One run: loop, optimiser, schedule, checkpoints, records."""

from __future__ import annotations

from leadline.training.config import RunConfig
from leadline.training.gradient_share import GradientShare
from leadline.training.loop import Summary, train
from leadline.training.run_folder import load_model

__all__ = ["GradientShare", "RunConfig", "Summary", "load_model", "train"]
