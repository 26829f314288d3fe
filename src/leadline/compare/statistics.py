"""From losses by seed to intervals and to "beyond noise".

Seeds are blocks: all designs of one seed see the same data in the same order, so a design is compared with the
baseline by the differences of pairs. A difference is called *beyond noise* when two things hold:

1. its own 95 % interval (Student's t over the pairs, n − 1 degrees of freedom) excludes zero, and
2. it stays below 5 % after Holm's correction over all designs compared, with the noise estimated from all designs
   together: the residual of the model "design + seed", as in an analysis of variance with blocks.

The first makes no assumption about the other designs; the second keeps a long list of designs from producing a
winner by chance. With two designs the two are the same test. The rule is ours; its parts are textbook.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
SMALLEST_EFFECT = 0.05
"""Bits per byte below which a difference between designs does not matter, in every comparison and study [ours]."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean and its 95 % interval; low and high are None where one value shows no interval."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A design minus the baseline.

    Attributes:
        pairs: the differences by seed, in the order of the seeds that both finished.
        beyond_noise: None where there are fewer than two pairs.
        p_value: after Holm's correction; None likewise.
    """

    interval: Interval
    pairs: tuple[float, ...]
    beyond_noise: bool | None
    p_value: float | None


def student_two_sided(t: float, freedom: int) -> float:
    """P(|T| > |t|) for Student's t with a whole number of degrees of freedom.

    The finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    if freedom < 1:
        raise ValueError(f"degrees of freedom must be at least 1, not {freedom}")
    if math.isinf(t):
        return 0.0
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(odd, freedom - 1, 2):
        total += term
        term *= cosine * cosine * (k + 1) / (k + 2)
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, 1.0 - inside)


def student_quantile(level: float, freedom: int) -> float:
    """The t for which P(|T| < t) = level: 12.706 for 0.95 and one degree of freedom."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level}")
    low, high = 0.0, math.pi / 2
    for _ in range(100):
        middle = (low + high) / 2
        if student_two_sided(math.sqrt(freedom) * math.tan(middle), freedom) > 1 - level:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def interval(values: Sequence[float]) -> Interval:
    """The mean of some values and its 95 % interval by Student's t.

    Raises:
        ValueError: there are no values.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean=mean, low=None, high=None)
    half = student_quantile(LEVEL, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean=mean, low=mean - half, high=mean + half)


def differences(values: Mapping[str, Mapping[int, float]], baseline: str) -> dict[str, Difference]:
    """Every other design against the baseline.

    Args:
        values: a loss by design and seed; runs that failed are left out. Smaller is better.

    Returns:
        By design; designs that share no seed with the baseline are left out.
    """
    reference = values.get(baseline, {})
    pairs = {
        design: tuple(by_seed[seed] - reference[seed] for seed in sorted(by_seed) if seed in reference)
        for design, by_seed in values.items()
        if design != baseline
    }
    pairs = {design: found for design, found in pairs.items() if found}
    pooled = _pooled_p_values({d: values[d] for d in (baseline, *pairs) if d in values}, baseline)
    tested = holm({design: pooled[design] for design, found in pairs.items() if len(found) > 1 and design in pooled})
    return {design: _difference(found, tested.get(design)) for design, found in pairs.items()}


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down correction: the p-values at which each would be called significant."""
    corrected: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        largest = max(largest, min(1.0, p_values[name] * (len(p_values) - rank)))
        corrected[name] = largest
    return corrected


def _difference(pairs: tuple[float, ...], p_value: float | None) -> Difference:
    own = interval(pairs)
    if own.low is None or own.high is None or p_value is None:
        return Difference(interval=own, pairs=pairs, beyond_noise=None, p_value=None)
    excludes_zero = own.low > 0 or own.high < 0
    return Difference(
        interval=own, pairs=pairs, beyond_noise=bool(excludes_zero and p_value < 1 - LEVEL), p_value=p_value
    )


def _pooled_p_values(values: Mapping[str, Mapping[int, float]], baseline: str) -> dict[str, float]:
    """Two-sided p-values of design − baseline from the least-squares fit of design + seed."""
    designs = [baseline, *(d for d in values if d != baseline)]
    seeds = sorted({seed for by_seed in values.values() for seed in by_seed})
    cells = [(d, s) for d in designs for s in seeds if s in values.get(d, {})]
    if len(designs) < 2 or not cells:
        return {}
    # Columns: one per seed, and one per design but the baseline, whose coefficient is the difference asked for.
    design_matrix = np.zeros((len(cells), len(seeds) + len(designs) - 1))
    for row, (design, seed) in enumerate(cells):
        design_matrix[row, seeds.index(seed)] = 1.0
        if design != baseline:
            design_matrix[row, len(seeds) + designs.index(design) - 1] = 1.0
    observed = np.array([values[d][s] for d, s in cells])
    rank = int(np.linalg.matrix_rank(design_matrix))
    freedom = len(cells) - rank
    if freedom < 1:
        return {}
    inverse = np.linalg.pinv(design_matrix.T @ design_matrix)
    coefficients = inverse @ design_matrix.T @ observed
    residual = observed - design_matrix @ coefficients
    variance = float(residual @ residual) / freedom
    result = {}
    for index, design in enumerate(designs[1:], start=len(seeds)):
        difference, error = float(coefficients[index]), math.sqrt(max(0.0, variance * float(inverse[index, index])))
        rounding = 1e-12 * max(1.0, float(np.abs(observed).max()))
        if abs(difference) <= rounding:
            result[design] = 1.0
        else:
            result[design] = student_two_sided(difference / error if error > rounding else math.inf, freedom)
    return result
