"""How ḡ, φ and ΔM go together over blocks, and how much the late blocks are worth; both over seeds.

    correlation     of two rows of numbers by block, one pair of rows a seed: the mean over seeds, and an interval that
                    covers two others, both of 95 %: a bootstrap's that redraws blocks and seeds together, and
                    Student's t over the seeds' coefficients, of their Fisher z. The first knows how few blocks there
                    are, but a bootstrap of three seeds is too narrow; the second knows how few seeds there are
    late            mean ΔM of the last blocks / mean ΔM of all blocks: 1 where all matter alike
    paired          one arm minus another, seed by seed, with Student's t over seeds

With one seed there is an interval over blocks alone, which says nothing of other seeds, and none by Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.experiments.statistics import interval
from leadline.probes.correlation import KINDS, RESAMPLES, Correlation, central, coefficients, correlate

Row = Sequence[float | None]
Numbers = NDArray[np.float64]
Pair = tuple[list[float], list[float]]
MOST = 0.999
THIRD = 3
"""The late blocks are the last of so many equal parts."""


def correlation(x: Sequence[Row], y: Sequence[Row], *, drop_first: bool = False, seed: int = 0) -> dict[str, Any]:
    """Pearson, Spearman and Kendall (τ-b) of x and y over blocks, one row a seed.

    Blocks that lack a value in any seed are left out.

    Args:
        drop_first: leave the first block out, which often outweighs the others.
        seed: of the bootstrap.

    Returns:
        By coefficient `value`, `low`, `high`, `reason` (why one of them is None) and `runs`, the coefficient of every
        seed; beside them `over`, what the interval is over, and `blocks`, how many blocks there were to compare.
    """
    rows = complete(x, y, drop_first)
    alone = [correlate(a, b, resamples=0) for a, b in rows]
    found: dict[str, Any] = {
        "over": "blocks and seeds" if len(rows) > 1 else "blocks",
        "blocks": len(rows[0][0]) if rows else 0,
    }
    for kind in KINDS:
        values = [one[kind].value for one in alone]
        reason = next((one[kind].reason for one in alone if one[kind].value is None), None)
        if len(rows) == 1:
            one = correlate(*rows[0], seed=seed)[kind]
            found[kind] = _as_data(one, values)
        elif not values or None in values:
            found[kind] = _as_data(Correlation(value=None, reason=reason or "no run finished"), values)
        else:
            known = [value for value in values if value is not None]
            low, high = covering(resampled(rows, kind, seed=seed), np.array(known))
            found[kind] = _as_data(Correlation(value=float(np.mean(known)), low=low, high=high), values)
    return found


def over_seeds_of(coefficients_of_seeds: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a coefficient over seeds: Student's t of atanh of each. Two seeds or more.

    A coefficient of 1 has no atanh; it counts as the nearest one that has 3 decimals.
    """
    limited = [math.atanh(max(-MOST, min(MOST, value))) for value in coefficients_of_seeds]
    found = interval(limited)
    return (-1.0, 1.0) if found.low is None or found.high is None else (math.tanh(found.low), math.tanh(found.high))


def covering(drawn: Numbers, runs: Numbers, *, bounded: bool = True) -> tuple[float | None, float | None]:
    """The smallest interval that holds the bootstrap's and Student's t over seeds; none where the first is none.

    Args:
        drawn: the mean over seeds in every resample.
        runs: the value of every seed.
        bounded: a coefficient in [-1, 1], of which Student's t takes atanh.
    """
    low, high = central(drawn)
    if low is None or high is None or len(runs) < 2:
        return low, high
    of_seeds = interval(runs.tolist())
    other = over_seeds_of(runs.tolist()) if bounded else (of_seeds.low, of_seeds.high)
    return (None, None) if None in other else (min(low, float(other[0] or 0.0)), max(high, float(other[1] or 0.0)))


def late(delta: Row, count: int, *, drop_first: bool = False) -> float | None:
    """The mean ΔM of the last `count` blocks over the mean of all blocks, or of all but the first.

    None where a value is missing, or where leaving blocks out does not cost anything on average.
    """
    whole = list(delta[1:] if drop_first else delta)
    known = [value for value in whole if value is not None]
    if len(known) < len(whole) or not 0 < count <= len(whole):
        return None
    mean = float(np.mean(known))
    return float(np.mean(known[-count:])) / mean if mean > 0 else None


def late_count(blocks: int) -> int:
    """How many blocks are late."""
    return max(1, blocks // THIRD)


def over_seeds(values: Mapping[int, float | None]) -> dict[str, Any] | None:
    """`mean`, `low`, `high` of the values by seed, which are there too; None where there are none."""
    known = [value for value in values.values() if value is not None]
    if not known:
        return None
    found = interval(known)
    by_seed = {str(seed): value for seed, value in values.items()}
    return {"mean": found.mean, "low": found.low, "high": found.high, "by_seed": by_seed}


def paired(values: Mapping[int, float | None], control: Mapping[int, float | None]) -> dict[str, Any] | None:
    """`values − control` over the seeds that both have, as `over_seeds`; None where they share none."""
    pairs: dict[int, float | None] = {}
    for seed, value in values.items():
        other = control.get(seed)
        if value is not None and other is not None:
            pairs[seed] = value - other
    return over_seeds(pairs)


def complete(x: Sequence[Row], y: Sequence[Row], drop_first: bool = False) -> list[Pair]:
    """The rows without the blocks that lack a value somewhere."""
    blocks = range(int(drop_first), min((len(row) for row in (*x, *y)), default=0))
    kept = [block for block in blocks if all(row[block] is not None for row in (*x, *y))]
    return [
        ([float(a[block] or 0.0) for block in kept], [float(b[block] or 0.0) for block in kept])
        for a, b in zip(x, y, strict=True)
    ]


def resampled(
    rows: Sequence[Pair], kind: str, of: Callable[[Numbers], Numbers] = lambda value: value, *, seed: int = 0
) -> Numbers:
    """The mean over seeds of `of(coefficient)` in every resample of blocks, the same for all seeds, and of seeds."""
    blocks = len(rows[0][0])
    if blocks == 0:
        return np.zeros(0)
    random = np.random.default_rng(seed)
    items = random.integers(blocks, size=(RESAMPLES, blocks))
    counts = (items[:, :, None] == np.arange(blocks)).sum(axis=1).astype(np.float64)
    of_seed = [of(coefficients(kind, np.array(a), np.array(b), counts)) for a, b in rows]
    times = random.multinomial(len(rows), [1 / len(rows)] * len(rows), RESAMPLES) / len(rows)
    mean: Numbers = (times * np.stack(of_seed, axis=1)).sum(axis=1)
    return mean


def _as_data(found: Correlation, runs: Sequence[float | None]) -> dict[str, Any]:
    return {
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "reason": found.reason,
        "runs": list(runs),
    }
