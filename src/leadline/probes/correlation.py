"""Pearson, Spearman and Kendall correlations of two lists, each with a bootstrap interval.

One list of pairs is resampled by its pairs. Several runs (seeds) are resampled by runs: the value is then the mean of
the runs' own coefficients, and the interval says how sure that mean is over seeds. A coefficient that isn't defined is
None with a reason, never NaN. Intervals are percentiles; Kendall's is τ-b, which allows for ties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.errors import UsageError
from leadline.statistics import LEVEL

RESAMPLES = 2000
KINDS = ("pearson", "spearman", "kendall")

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """One coefficient.

    Attributes:
        value: in [-1, 1]; None where it isn't defined.
        low, high: of the 95 % interval; None where there is none.
        reason: why value or interval are None, or why runs are left out of the mean; else None.
        runs: the coefficient of every run, where several were given.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    runs: tuple[float | None, ...] | None = None


def correlate(
    x: Sequence[float | None], y: Sequence[float | None], *, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Correlation]:
    """The three coefficients of the pairs (x_i, y_i), by "pearson", "spearman" and "kendall".

    A pair with a None in it is left out; the interval is over pairs.

    Raises:
        UsageError: the lists have different lengths.
    """
    pairs = _pairs(x, y)
    reason = _why_undefined(*pairs)
    if reason is not None:
        return {kind: Correlation(value=None, reason=reason) for kind in KINDS}
    counts = _resampled_counts(len(pairs[0]), resamples, seed)
    found = {}
    for kind in KINDS:
        low, high = central(coefficients(kind, *pairs, counts))
        missing = "every resample was constant" if low is None else None
        found[kind] = Correlation(value=_value(kind, *pairs), low=low, high=high, reason=missing)
    return found


def correlate_runs(
    x: Sequence[Sequence[float | None]],
    y: Sequence[Sequence[float | None]],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Correlation]:
    """The same over several runs, one row each; the interval is over runs, or over pairs where there is one run.

    Of few runs the interval is too narrow: of three it holds the true mean about seven times in ten. Runs without a
    coefficient are left out, and `reason` says how many and why.

    Raises:
        UsageError: the numbers of rows differ, or the lengths of two rows that go together.
    """
    if len(x) != len(y):
        raise UsageError(f"there are {len(x)} runs on one side and {len(y)} on the other; they must be the same")
    if len(x) == 1:
        return correlate(x[0], y[0], resamples=resamples, seed=seed)
    pairs = [_pairs(*row) for row in zip(x, y, strict=True)]
    reasons = [_why_undefined(*pair) for pair in pairs]
    return {
        kind: _over_runs(
            [None if why else _value(kind, *pair) for pair, why in zip(pairs, reasons, strict=True)],
            "; ".join(dict.fromkeys(why for why in reasons if why)),
            resamples,
            seed,
        )
        for kind in KINDS
    }


def coefficients(kind: str, x: Numbers, y: Numbers, counts: Numbers) -> Numbers:
    """ "pearson", "spearman" or "kendall" of resamples of the pairs (x_i, y_i); NaN where one is constant.

    Args:
        counts: how often each pair enters each resample, (resamples, pairs).
    """
    return _RESAMPLED[kind](x, y, counts)


def _value(kind: str, x: Numbers, y: Numbers) -> float:
    """The coefficient of the pairs themselves: that of the resample in which each enters once."""
    return float(coefficients(kind, x, y, np.ones((1, len(x))))[0])


def _over_runs(values: list[float | None], why: str, resamples: int, seed: int) -> Correlation:
    defined = np.array([value for value in values if value is not None])
    runs = tuple(values)
    if len(defined) == 0:
        return Correlation(value=None, reason=why or "there are no runs", runs=runs)
    mean, lost = float(defined.mean()), len(runs) - len(defined)
    left_out = f"{lost} of {len(runs)} runs left out: {why}" if lost else None
    if len(defined) < 2:
        return Correlation(value=mean, reason=f"one run alone has a coefficient; {left_out}", runs=runs)
    counts = _resampled_counts(len(defined), resamples, seed)
    low, high = central(counts @ defined / len(defined))
    return Correlation(value=mean, low=low, high=high, reason=left_out, runs=runs)


def _pairs(x: Sequence[float | None], y: Sequence[float | None]) -> tuple[Numbers, Numbers]:
    if len(x) != len(y):
        raise UsageError(f"{len(x)} and {len(y)} values can't be paired; both lists must have the same length")
    kept = [(a, b) for a, b in zip(x, y, strict=True) if a is not None and b is not None]
    table = np.array(kept, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _why_undefined(x: Numbers, y: Numbers) -> str | None:
    if len(x) < 3:
        return f"{len(x)} pairs are too few; it takes 3"
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return "a value is not finite"
    for name, values in (("first", x), ("second", y)):
        if np.ptp(values) <= 1e-12 * np.abs(values).max():
            return f"the {name} list is constant"
    return None


def _resampled_counts(size: int, resamples: int, seed: int) -> Numbers:
    """How often each of `size` items enters each resample, (resamples, size)."""
    return np.random.default_rng(seed).multinomial(size, [1.0 / size] * size, resamples).astype(np.float64)


def central(values: Numbers) -> tuple[float | None, float | None]:
    """The percentile interval of the finite ones of some resampled values; None where there are none."""
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return None, None
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _pearson(x: Numbers, y: Numbers, counts: Numbers) -> Numbers:
    """Of every resample; NaN where one is constant."""
    x, y = x - x.mean(), y - y.mean()
    size = len(x)
    mean_x, mean_y = counts @ x / size, counts @ y / size
    both = counts @ (x * y) / size - mean_x * mean_y
    return _ratio(both, counts @ x**2 / size - mean_x**2, counts @ y**2 / size - mean_y**2)


def _spearman(x: Numbers, y: Numbers, counts: Numbers) -> Numbers:
    """As `_pearson`, of the ranks within every resample: what came before, and half of its own ties."""
    ranks = []
    for values in (x, y):
        order = np.argsort(values, kind="stable")
        distinct, group = np.unique(values[order], return_inverse=True)
        grouped = np.zeros((len(counts), len(distinct)))
        np.add.at(grouped.T, group, counts[:, order].T)
        of_group = np.cumsum(grouped, axis=1) - grouped / 2
        rank = np.empty_like(counts)
        rank[:, order] = of_group[:, group]
        ranks.append(rank)
    size = len(x)
    centred = [rank - (counts * rank).sum(axis=1, keepdims=True) / size for rank in ranks]
    both, own_x, own_y = ((counts * centred[i] * centred[j]).sum(axis=1) / size for i, j in ((0, 1), (0, 0), (1, 1)))
    return _ratio(both, own_x, own_y)


def _kendall(x: Numbers, y: Numbers, counts: Numbers) -> Numbers:
    """τ-b of every resample, from the signs of all pairs of items: an item drawn twice is tied with itself."""
    signs_x, signs_y = (np.sign(values[:, None] - values[None, :]) for values in (x, y))

    def total(table: Numbers) -> Numbers:
        summed: Numbers = ((counts @ table) * counts).sum(axis=1)
        return summed

    return _ratio(total(signs_x * signs_y), total(np.abs(signs_x)), total(np.abs(signs_y)))


def _ratio(both: Numbers, own_x: Numbers, own_y: Numbers) -> Numbers:
    """both / √(own_x own_y), within [-1, 1]; NaN where one of them is nothing but rounding."""
    defined = (own_x > 1e-12 * own_x.max(initial=0.0)) & (own_y > 1e-12 * own_y.max(initial=0.0))
    product = np.where(defined, own_x * own_y, 1.0)
    return np.where(defined, np.clip(both / np.sqrt(product), -1.0, 1.0), np.nan)


_RESAMPLED: dict[str, Callable[[Numbers, Numbers, Numbers], Numbers]] = {
    "pearson": _pearson,
    "spearman": _spearman,
    "kendall": _kendall,
}
