"""From losses by seed, and by held-out sequence, to intervals and to "beyond noise".

Seeds are blocks: all designs of one seed see the same data in the same order, so a design is compared with the
baseline by the differences of pairs. A difference is called *beyond noise* when two things hold:

1. its own 95 % interval excludes zero, and
2. it stays below 5 % after Holm's correction over all designs compared.

The noise of seeds in 2. is pooled over the baseline and all designs whose noise agrees: the residual of the model
"design + seed", as in an analysis of variance with blocks. Designs that are noisier than the rest (see `quiet`) are
left out of that pool and judged by their own pairs; if the baseline is such a one, so is every design.

Where the losses of single held-out sequences are known, both intervals have a second part, the text: the differences
of a sequence, averaged over seeds, as a sample of texts. Half-widths by Student's t of the two parts add as squares,
so that an interval is never narrower than either part. The rule is ours; its parts are textbook.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import bisect
from scipy.special import fdtrc, stdtrit

from leadline.statistics import LEVEL, holm

SMALLEST_EFFECT = 0.05
"""Bits per byte: the smallest difference that matters, for `compare` and for every study.

Seeds of one design differ by 0.01 to 0.09. On one seed a smaller difference is read as noise; on several it may lie
beyond noise, but no choice hangs on it.
"""
FEWEST_SEQUENCES = 8
"""Held-out sequences below which no difference is called beyond noise."""
DISAGREE = 0.05
"""The level of the F test by which designs are found noisier than the rest, shared among the sets tried."""

Values = Mapping[str, Mapping[int, float]]
Sequences = Mapping[str, Mapping[int, NDArray[np.float64]]]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean and its 95 % interval; low and high are None where one value shows no interval."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Part:
    """One source of noise of a mean: its standard error, and the degrees of freedom that this is known with."""

    error: float
    freedom: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A design minus the baseline.

    Attributes:
        interval: over seeds and, where known, text.
        pairs: the differences by seed, in the order of the seeds that both finished.
        beyond_noise: None where there are fewer than two pairs.
        p_value: after Holm's correction; None likewise.
        seeds: the interval over seeds alone.
        text: the interval over held-out sequences alone; None where their losses were not kept.
        sequences: how many of them.
        too_little_text: it would be beyond noise by its seeds, or matter on one seed, but the text is too small to
            tell.
    """

    interval: Interval
    pairs: tuple[float, ...]
    beyond_noise: bool | None
    p_value: float | None
    seeds: Interval
    text: Interval | None = None
    sequences: int | None = None
    too_little_text: bool = False


def interval(values: Sequence[float]) -> Interval:
    """The mean of some values and its 95 % interval by Student's t.

    Raises:
        ValueError: there are no values.
    """
    return interval_of(statistics.fmean(values), _parts(values))


def interval_of(mean: float, parts: Sequence[Part]) -> Interval:
    """A mean and its 95 % interval from all its sources of noise; none without any."""
    if not parts:
        return Interval(mean=mean, low=None, high=None)
    half = _half_width(parts, 1 - LEVEL)
    return Interval(mean=mean, low=mean - half, high=mean + half)


def p_value(mean: float, parts: Sequence[Part]) -> float:
    """The two-sided level at which the interval of a mean just reaches zero; Student's t test for one part."""
    rounding = 1e-12
    if abs(mean) <= rounding:
        return 1.0
    if all(part.error <= rounding for part in parts):
        return 0.0

    def beyond(log_level: float) -> float:
        return _half_width(parts, math.exp(log_level)) - abs(mean)

    lowest = -500.0
    return 0.0 if beyond(lowest) < 0 else math.exp(float(bisect(beyond, lowest, 0.0)))


def differences(values: Values, baseline: str, sequences: Sequences | None = None) -> dict[str, Difference]:
    """Every other design against the baseline.

    Args:
        values: a loss by design and seed; runs that failed are left out. Smaller is better.
        sequences: of the same runs the losses of the held-out sequences, (sequences,), in the same unit and order;
            used for a design where all its pairs have them.

    Returns:
        By design; designs that share no seed with the baseline are left out.
    """
    reference = values.get(baseline, {})
    shared = {d: [seed for seed in sorted(values[d]) if seed in reference] for d in values if d != baseline}
    pairs = {d: tuple(values[d][s] - reference[s] for s in seeds) for d, seeds in shared.items() if seeds}
    texts = {d: _by_sequence(sequences or {}, d, baseline, shared[d]) for d in pairs}
    pooled = _pooled({d: values[d] for d in (baseline, *pairs) if d in values}, baseline)
    parts = {d: pooled.get(d) or _parts(found) for d, found in pairs.items() if len(found) > 1}
    alone = holm({d: p_value(statistics.fmean(pairs[d]), seeds) for d, seeds in parts.items()})
    whole = holm({d: p_value(statistics.fmean(pairs[d]), [*seeds, *_parts(texts[d])]) for d, seeds in parts.items()})
    return {d: _difference(pairs[d], texts[d], alone.get(d), whole.get(d)) for d in pairs}


def quiet(values: Values) -> list[str]:
    """The designs whose noise agrees.

    The noisiest are left out, one, two, … at a time but fewer than half of those left, while an F test of what they
    add to the residual of "design + seed" against the residual of the rest says so. Its level of 5 % is divided by
    the number of sets as large that could have been picked. Eight designs on three seeds lose one whose variance
    comes out more than about eight times that of the rest; one that stays widens the others' noise by half at most.
    """
    names = list(values)
    while True:
        left_out = _noisiest(values, names)
        if not left_out:
            return names
        names = [name for name in names if name not in left_out]


def _noisiest(values: Values, names: Sequence[str]) -> list[str]:
    squares, freedom = _residual(values, names)
    picked: list[str] = []
    while len(picked) + 1 <= (len(names) - 1) // 2:
        rest = [name for name in names if name not in picked]
        less = {name: _residual(values, [other for other in rest if other != name]) for name in rest}
        name = min(rest, key=lambda name: less[name][0])
        picked.append(name)
        kept, kept_freedom = less[name]
        added = freedom - kept_freedom
        rounding = 1e-24 * max([1.0, *(v * v for design in names for v in values[design].values())])
        if added < 1 or kept_freedom < 1 or squares - kept <= rounding:
            continue
        ratio = (squares - kept) / added / max(kept / kept_freedom, rounding)
        if fdtrc(added, kept_freedom, ratio) < DISAGREE / math.comb(len(names), len(picked)):
            return picked
    return []


def _difference(
    pairs: tuple[float, ...], text: Sequence[float], alone: float | None, whole: float | None
) -> Difference:
    seeds = interval(pairs)
    both = interval_of(seeds.mean, [*_parts(pairs), *_parts(text)]) if len(pairs) > 1 else seeds
    beyond = None if whole is None else _excludes_zero(both) and whole < 1 - LEVEL
    by_seeds = alone is not None and _excludes_zero(seeds) and alone < 1 - LEVEL
    few = 0 < len(text) < FEWEST_SEQUENCES
    if len(pairs) == 1:
        by_seeds, beyond_text = abs(seeds.mean) >= SMALLEST_EFFECT, not text or _excludes_zero(interval(text))
    else:
        beyond_text = bool(beyond)
    return Difference(
        interval=both,
        pairs=pairs,
        beyond_noise=beyond and not few,
        p_value=whole,
        seeds=seeds,
        text=interval(text) if text else None,
        sequences=len(text) or None,
        too_little_text=by_seeds and (few or not beyond_text),
    )


def _excludes_zero(of: Interval) -> bool:
    return of.low is not None and of.high is not None and (of.low > 0 or of.high < 0)


def _parts(values: Sequence[float]) -> list[Part]:
    """The noise of a mean from its own values; nothing where there are fewer than two."""
    if len(values) < 2:
        return []
    return [Part(error=statistics.stdev(values) / math.sqrt(len(values)), freedom=len(values) - 1)]


def _half_width(parts: Sequence[Part], level: float) -> float:
    return math.hypot(*(float(stdtrit(part.freedom, level / 2)) * part.error for part in parts))


def _by_sequence(sequences: Sequences, design: str, baseline: str, seeds: Sequence[int]) -> list[float]:
    """Differences by held-out sequence, averaged over seeds; empty where a run's are missing."""
    mine, base = sequences.get(design, {}), sequences.get(baseline, {})
    if not seeds or any(seed not in mine or seed not in base for seed in seeds):
        return []
    found = [mine[seed] - base[seed] for seed in seeds if mine[seed].shape == base[seed].shape]
    if len({one.shape for one in found}) != 1 or len(found) < len(seeds):
        return []
    return [float(value) for value in np.mean(found, axis=0)]


def _pooled(values: Values, baseline: str) -> dict[str, list[Part]]:
    """The noise of seeds of each design − baseline, from all designs whose noise agrees with the baseline's."""
    names = quiet(values)
    if baseline not in names or len(names) < 2:
        return {}
    squares, freedom = _residual(values, names)
    if freedom < 1:
        return {}
    found = {}
    for name in names:
        pairs = len(values[name].keys() & values[baseline].keys())
        if name != baseline and pairs:
            found[name] = [Part(error=math.sqrt(max(0.0, 2 * squares / freedom / pairs)), freedom=freedom)]
    return found


def _columns(values: Values, names: Sequence[str]) -> NDArray[np.float64]:
    """One row per run, one column per design and then per seed, (runs, designs + seeds)."""
    seeds = sorted({seed for name in names for seed in values[name]})
    cells = [(d, seeds.index(seed)) for d, name in enumerate(names) for seed in sorted(values[name])]
    columns = np.zeros((len(cells), len(names) + len(seeds)))
    for row, (design, seed) in enumerate(cells):
        columns[row, design] = columns[row, len(names) + seed] = 1.0
    return columns


def _residual(values: Values, names: Sequence[str]) -> tuple[float, int]:
    """The sum of squares that "design + seed" leaves, and its degrees of freedom."""
    if not any(values[name] for name in names):  # every run failed
        return 0.0, 0
    if len({frozenset(values[name]) for name in names}) == 1:  # every design on every seed: means do
        table = np.array([[values[name][seed] for seed in sorted(values[name])] for name in names])
        left = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
        return float(np.square(left).sum()), (table.shape[0] - 1) * (table.shape[1] - 1)
    columns = _columns(values, names)
    observed = np.array([values[name][seed] for name in names for seed in sorted(values[name])])
    found, _, rank, _ = np.linalg.lstsq(columns, observed, rcond=None)
    left = observed - columns @ found
    return float(left @ left), len(observed) - int(rank)
