"""One run: loop, optimiser, schedule, checkpoints, records. Parts load when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leadline.training.config import RunConfig
    from leadline.training.gradient_file import load_gradient
    from leadline.training.gradient_share import Diversity, GradientShare, effective_ranks
    from leadline.training.gradient_steps import StepNorms, load_norms
    from leadline.training.loop import train
    from leadline.training.optimiser import param_groups
    from leadline.training.records import Summary
    from leadline.training.run_folder import load_model

_HOMES = {
    "Diversity": "gradient_share",
    "GradientShare": "gradient_share",
    "RunConfig": "config",
    "StepNorms": "gradient_steps",
    "Summary": "records",
    "effective_ranks": "gradient_share",
    "load_gradient": "gradient_file",
    "load_model": "run_folder",
    "load_norms": "gradient_steps",
    "param_groups": "optimiser",
    "train": "loop",
}
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'leadline.training' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"leadline.training.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
