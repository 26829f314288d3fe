"""What Leadline sets itself: ratios to its own PreNorm in the same run, and speed-ups of operators alone.

Time and decode targets are judged by intervals: met where the better end of the 95 % interval reaches them. Bytes saved
for backward don't vary: they are judged to the two decimals that their targets have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from leadline.statistics import Median


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelTarget:
    """A design's most time and most bytes saved for backward, as multiples of PreNorm's."""

    time: float
    saved: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeedTarget:
    """How many times faster than another candidate of the same operator."""

    over: str
    factor: float


_A = {
    "attnres": ModelTarget(time=1.15, saved=1.12),
    "attnres-block": ModelTarget(time=1.05, saved=1.10),
    "mgr-competitive": ModelTarget(time=1.05, saved=1.45),
    "mgr-independent": ModelTarget(time=1.05, saved=1.45),
    "mgr-competitive(memory=invert)": ModelTarget(time=1.15, saved=1.12),
    "mgr-independent(memory=invert)": ModelTarget(time=1.15, saved=1.12),
    "hc": ModelTarget(time=1.12, saved=1.45),
    "mhc-lite": ModelTarget(time=1.12, saved=1.45),
    "mhc": ModelTarget(time=1.18, saved=1.50),
    "bhyt": ModelTarget(time=1.02, saved=1.00),
}
_B = {
    "attnres": ModelTarget(time=1.6),
    "attnres-block": ModelTarget(time=1.15),
    "mgr-competitive": ModelTarget(time=1.20),
    "mgr-independent": ModelTarget(time=1.20),
    "mgr-competitive(memory=invert)": ModelTarget(time=1.30),
    "mgr-independent(memory=invert)": ModelTarget(time=1.30),
    "hc": ModelTarget(time=1.35),
    "mhc-lite": ModelTarget(time=1.35),
    "mhc": ModelTarget(time=1.6),
    "bhyt": ModelTarget(time=1.02),
}
MODELS: Mapping[str, Mapping[str, ModelTarget]] = {"a": _A, "b": _B}
"""By shape and by a design's canonical expression. Stated for float32 on two CPU cores."""

DECODE: Mapping[str, float] = {
    "attnres-block": 1.04,
    "mgr-competitive": 1.08,
    "mgr-independent": 1.08,
    "bhyt": 1.02,
}
"""Latency of one token of cached generation, as a multiple of PreNorm's, by canonical expression."""

OPERATORS: Mapping[str, tuple[SpeedTarget, ...]] = {
    "depth attention": (SpeedTarget(over="stacked read", factor=6.0),),
    "multi-gate step": (SpeedTarget(over="reference", factor=8.0),),
    "mhc step": (
        SpeedTarget(over="hyper-connections", factor=4.0),
        SpeedTarget(over="hyper-connections compiled", factor=1.5),
    ),
}
"""By operator case."""


def at_most(found: Median, target: float) -> bool:
    """Whether a ratio that should be small meets its target: the lower end of its interval is below it."""
    return found.low < target


def bytes_at_most(ratio: float, target: float) -> bool:
    """Whether a ratio of bytes, rounded to two decimals, meets its target."""
    return round(ratio, 2) <= target


def at_least(found: Median, target: float) -> bool:
    """Whether a speed-up meets its target: the upper end of its interval is above it."""
    return found.high > target


def verdict(target: float, met: bool, by_median: bool, *, least: bool = False) -> str:
    """As the table prints it: `target 1.15: met`, or `met by the interval alone` where the median misses."""
    sign = "at least " if least else ""
    outcome = "not met" if not met else "met" if by_median else "met by the interval alone"
    return f"target {sign}{target:g}: {outcome}"
