"""Measurements along depth: sizes, angles, what blocks are worth, gradients, and what a connection shows of itself."""

from leadline.probes.ablation import LossRise, ablation
from leadline.probes.activations import Activations
from leadline.probes.along_depth import (
    angular_distance,
    depth_weights,
    gates,
    measure,
    mixing,
    removal,
    stream_diversity,
)
from leadline.probes.bhyt import bhyt, variance_order
from leadline.probes.correlation import Correlation, correlate, correlate_runs
from leadline.probes.effective_rank import effective_rank
from leadline.probes.fan_in import fan_in, repeat_last
from leadline.probes.gradients import GradientDiversity, gradient_effective_rank, gradient_norm, gradients
from leadline.probes.lens import LogitLens
from leadline.probes.measure_stack import PARTS, measure_stack
from leadline.probes.passes import Measure, run_measures
from leadline.probes.record import DepthRecord, diversity, record
from leadline.probes.similarity import MinibatchCKA, Similarity
from leadline.probes.streams import connection_shown
from leadline.probes.watch import TokenBatch

__all__ = [
    "PARTS",
    "Activations",
    "Correlation",
    "DepthRecord",
    "GradientDiversity",
    "LogitLens",
    "LossRise",
    "Measure",
    "MinibatchCKA",
    "Similarity",
    "TokenBatch",
    "ablation",
    "angular_distance",
    "bhyt",
    "connection_shown",
    "correlate",
    "correlate_runs",
    "depth_weights",
    "diversity",
    "effective_rank",
    "fan_in",
    "gates",
    "gradient_effective_rank",
    "gradient_norm",
    "gradients",
    "measure",
    "measure_stack",
    "mixing",
    "record",
    "removal",
    "repeat_last",
    "run_measures",
    "stream_diversity",
    "variance_order",
]
