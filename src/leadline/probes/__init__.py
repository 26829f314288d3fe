"""Measurements along depth: sizes, what a block is worth, angles, and what the connection shows of itself."""

from leadline.probes.along_depth import (
    angular_distance,
    depth_weights,
    gates,
    measure,
    mixing,
    removal,
    stream_diversity,
)
from leadline.probes.record import DepthRecord, diversity, record
from leadline.probes.watch import TokenBatch

__all__ = [
    "DepthRecord",
    "TokenBatch",
    "angular_distance",
    "depth_weights",
    "diversity",
    "gates",
    "measure",
    "mixing",
    "record",
    "removal",
    "stream_diversity",
]
