"""How ḡ, φ and ΔM go together over blocks, and how much the late blocks are worth; both over seeds.

    correlation     of two rows of numbers by block, one pair of rows a seed: the mean over seeds, and an interval that
                    covers two others, both of 95 %: a bootstrap's that redraws blocks and seeds together, and
                    Student's t over the seeds' coefficients, of their Fisher z. The first knows how few blocks there
                    are, but a bootstrap of three seeds is too narrow; the second knows how few seeds there are
    late            mean ΔM of the last blocks / mean ΔM of all blocks: 1 where all matter alike
    paired          one arm minus another, seed by seed, with Student's t over seeds

With one seed there is an interval over blocks alone, which says nothing of other seeds, and none by Student's t.

How much the late blocks are worth has three readings:

    third   the last third of the blocks: what the claim about equalised gradients is of
    last    the last K blocks, which the repeated arm repeats: what the claim about repeating is of
    single  the last K with one place of a repeated block left out at a time, the mean over its places

each with `late`, and as `…_rest` without the first block, which often outweighs all others. What φ predicts is the same
ratio with ΔM in proportion to φ, and a rise is that of the arm's φ over the control's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.experiments.runs import mean_of
from leadline.experiments.statistics import interval
from leadline.probes.correlation import KINDS, RESAMPLES, Correlation, central, coefficients, correlate

Row = Sequence[float | None]
Numbers = NDArray[np.float64]
Pair = tuple[list[float], list[float]]
Run = Mapping[str, Any]
MOST = 0.999
THIRD = 3
"""The late blocks are the last of so many equal parts."""
PARTS = tuple(f"{reading}{rest}" for reading in ("third", "last", "single") for rest in ("", "_rest"))
"""Every reading of late importance, with all blocks and without the first."""


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
    over_blocks = correlate(*rows[0], seed=seed) if len(rows) == 1 else {}
    found: dict[str, Any] = {
        "over": "blocks and seeds" if len(rows) > 1 else "blocks",
        "blocks": len(rows[0][0]) if rows else 0,
    }
    for kind in KINDS:
        values = [one[kind].value for one in alone]
        known = [value for value in values if value is not None]
        if over_blocks:
            whole = over_blocks[kind]
        elif not known or len(known) < len(values):
            reasons = [one[kind].reason for one in alone if one[kind].value is None]
            whole = Correlation(value=None, reason=next(iter(reasons), None) or "no run finished")
        else:
            low, high = covering(resampled(rows, kind, seed=seed), np.array(known))
            whole = Correlation(value=float(np.mean(known)), low=low, high=high)
        found[kind] = {**asdict(whole), "runs": values}
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
    ends = over_seeds_of(runs.tolist()) if bounded else (of_seeds.low, of_seeds.high)
    known = [end for end in ends if end is not None]
    return min([low, *known]), max([high, *known])


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
    return {**asdict(interval(known)), "by_seed": {str(s): v for s, v in values.items()}} if known else None


def paired(values: Mapping[int, float | None], control: Mapping[int, float | None]) -> dict[str, Any] | None:
    """`values − control` over the seeds that both have, as `over_seeds`; None where they share none."""
    pairs = {seed: _minus(value, control.get(seed)) for seed, value in values.items()}
    return over_seeds({seed: value for seed, value in pairs.items() if value is not None})


def late_importance(runs: Sequence[Run | None], third: int, last: int) -> dict[str, Any]:
    """By part `mean`, `low`, `high`, `by_seed` of the runs; beside them `predicted`, by part what φ says."""
    done = [run for run in runs if run is not None]

    def ratio(part: str, run: Run, values: Callable[[Run, bool], Row]) -> float | None:
        row, count = values(run, part.startswith("single")), third if part.startswith("third") else last
        return late(row, count, drop_first=part.endswith("_rest"))

    predicted = {part: mean_of([ratio(part, run, _fan_in) for run in done]) for part in PARTS}
    of_runs = {part: over_seeds({run["seed"]: ratio(part, run, _importance) for run in done}) for part in PARTS}
    return {**of_runs, "predicted": predicted}


def against(arm: Mapping[str, Any], control: Mapping[str, Any]) -> dict[str, Any]:
    """By part the arm's late importance minus the control's, by pairs of a seed, and the rise that φ predicts."""
    mine, other = (side["late"] or {} for side in (arm, control))
    rises = {part: _minus(*(side.get("predicted", {}).get(part) for side in (mine, other))) for part in PARTS}
    return {**{part: paired(_by_seed(mine, part), _by_seed(other, part)) for part in PARTS}, "predicted": rises}


def _by_seed(late: Mapping[str, Any], part: str) -> dict[int, float | None]:
    return {int(seed): value for seed, value in (late.get(part) or {"by_seed": {}})["by_seed"].items()}


def _minus(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def _importance(run: Run, single: bool) -> Row:
    """ΔM of every block; with one of its places left out, the mean over its places, where there are several."""
    if not single or run["place_delta"] is None:
        nats: Row = run["delta"]["nats"]
        return nats
    places = list(zip(run["order"], run["place_delta"]["nats"], strict=True))
    return [mean_of([value for place, value in places if place == block]) for block in range(len(run["fan_in"]))]


def _fan_in(run: Run, single: bool) -> Row:
    """φ of every block, or its mean over the block's places."""
    phi: list[float] = run["fan_in"]
    return [value / run["order"].count(block) for block, value in enumerate(phi)] if single else phi


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
