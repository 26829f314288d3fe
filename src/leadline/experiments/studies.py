"""The experiments by the configurations that ask for them."""

from __future__ import annotations

from typing import Any

from leadline.experiments.cascade.config import CascadeConfig
from leadline.experiments.cascade.experiment import Cascade
from leadline.experiments.compare.config import CompareConfig
from leadline.experiments.compare.experiment import Compare
from leadline.experiments.engine import Experiment
from leadline.experiments.gradient_fan_in.config import GfaConfig
from leadline.experiments.gradient_fan_in.experiment import GradientFanIn
from leadline.experiments.options import ExperimentConfig
from leadline.experiments.pruning.config import PruningConfig
from leadline.experiments.pruning.experiment import Pruning

EXPERIMENTS: dict[type[ExperimentConfig], type[Experiment[Any]]] = {
    CompareConfig: Compare,
    GfaConfig: GradientFanIn,
    CascadeConfig: Cascade,
    PruningConfig: Pruning,
}
