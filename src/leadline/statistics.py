"""Medians, ratios within a round, a distribution-free interval of the median, and Holm's correction."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

LEVEL = 0.95
K = TypeVar("K", bound=Hashable)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Median:
    """A median with an interval between two order statistics.

    Attributes:
        low, high: the interval; whatever the distribution, it covers the true median with probability `coverage`.
        coverage: at least 0.95 from 6 values on; with fewer, what smallest and largest give.
        values: how many it is made of.
    """

    median: float
    low: float
    high: float
    coverage: float
    values: int

    def divided_by(self, divisor: float) -> Median:
        """All of it in another unit."""
        return dataclasses.replace(self, median=self.median / divisor, low=self.low / divisor, high=self.high / divisor)


def median_of(values: Sequence[float]) -> Median:
    """The median and its interval: the k-th smallest to the k-th largest value, k as large as 95 % allows.

    The k-th smallest of n lies above the true median with the probability that fewer than k of n coins show heads.

    Raises:
        ValueError: there are no values.
    """
    ordered = sorted(values)
    rank = interval_rank(len(ordered))
    return Median(
        median=statistics.median(ordered),
        low=ordered[rank - 1],
        high=ordered[-rank],
        coverage=coverage(len(ordered), rank),
        values=len(ordered),
    )


def coverage(count: int, rank: int) -> float:
    """The probability that the median lies between the rank-th smallest and the rank-th largest of `count` values."""
    below = sum(math.comb(count, heads) for heads in range(rank))
    return max(0.0, 1.0 - 2.0 * below / 2**count)


def interval_rank(count: int, level: float = LEVEL) -> int:
    """The largest rank whose interval still covers `level`; 1 where none does."""
    rank = 1
    while rank < (count + 1) // 2 and coverage(count, rank + 1) >= level:
        rank += 1
    return rank


def ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Value over base, round by round."""
    return [value / other for value, other in zip(values, base, strict=True)]


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """Holm's step-down correction (1979): the p-values at which each would be called significant."""
    corrected: dict[K, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        largest = max(largest, min(1.0, p_values[name] * (len(p_values) - rank)))
        corrected[name] = largest
    return corrected
