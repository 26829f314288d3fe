from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from scipy import stats

from leadline.errors import UsageError
from leadline.probes import correlate, correlate_runs
from leadline.probes.correlation import _RESAMPLED, KINDS, _resampled_counts

SCIPY = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}


def some(size: int, seed: int, ties: bool = False) -> tuple[list[float], list[float]]:
    random = np.random.default_rng(seed)
    x = random.normal(size=size)
    y = x + random.normal(size=size)
    return ((x * 2).round().tolist(), (y * 2).round().tolist()) if ties else (x.tolist(), y.tolist())


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_scipys(kind: str, ties: bool) -> None:
    for seed in range(5):
        x, y = some(13, seed, ties)
        assert correlate(x, y, resamples=10)[kind].value == pytest.approx(SCIPY[kind](x, y).statistic)


@pytest.mark.parametrize("kind", KINDS)
def test_every_resample_is_scipys_of_the_drawn_pairs(kind: str) -> None:
    x, y = (np.array(values) for values in some(9, 0, ties=True))
    counts = _resampled_counts(9, 50, seed=1)
    for row, value in zip(counts, _RESAMPLED[kind](x, y, counts), strict=True):
        drawn = np.repeat(np.arange(9), row.astype(int))
        assert value == pytest.approx(SCIPY[kind](x[drawn], y[drawn]).statistic)


def test_known_lists() -> None:
    found = correlate([1, 2, 3, 4], [10, 20, 30, 1000])
    assert found["spearman"].value == found["kendall"].value == pytest.approx(1)
    assert 0.7 < found["pearson"].value < 0.9
    assert correlate([1, 2, 3], [3, 2, 1])["kendall"].value == pytest.approx(-1)
    # One swap among three pairs of pairs: (2 − 1) / 3.
    assert correlate([1, 2, 3], [1, 3, 2])["kendall"].value == pytest.approx(1 / 3)


def test_intervals_are_seeded_and_cover() -> None:
    x, y = some(40, 3)
    first = correlate(x, y, seed=5)
    assert first == correlate(x, y, seed=5)
    assert first["pearson"].low != correlate(x, y, seed=6)["pearson"].low
    for found in first.values():
        assert found.low < found.value < found.high
        assert found.reason is None
    # Fisher's interval for a normal sample, as a check on the width.
    z, half = math.atanh(first["pearson"].value), 1.96 / math.sqrt(37)
    assert first["pearson"].low == pytest.approx(math.tanh(z - half), abs=0.15)
    assert first["pearson"].high == pytest.approx(math.tanh(z + half), abs=0.15)


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([], [], "0 pairs"),
        ([1, 2], [1, 2], "2 pairs"),
        ([1, None, 3, 4], [1, 2, None, 4], "2 pairs"),
        ([1, 1, 1], [1, 2, 3], "first list is constant"),
        ([1, 2, 3], [0.1 + 0.2, 0.3, 0.3], "second list is constant"),
        ([1, 2, 3], [1, 2, math.nan], "not finite"),
        ([0, 0, 0, 0], [0, 0, 0, 0], "first list is constant"),
    ],
)
def test_what_is_not_defined_is_none_with_a_reason(x: list, y: list, reason: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for found in correlate(x, y).values():
            assert found.value is found.low is found.high is None
            assert reason in found.reason
        many = correlate_runs([x, x], [y, y])["kendall"]
    assert many.value is None
    assert reason in many.reason


def test_resamples_that_are_constant_do_not_count() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = correlate([0, 0, 1], [0, 1, 1])
    for coefficient in found.values():
        assert -1 <= coefficient.low <= coefficient.high <= 1


def test_pairs_with_none_are_left_out() -> None:
    assert correlate([1, 2, None, 3, 4], [1, 5, 9, 3, 4]) == correlate([1, 2, 3, 4], [1, 5, 3, 4])


def test_several_runs_are_resampled_by_runs() -> None:
    pairs = [some(20, seed) for seed in range(4)]
    found = correlate_runs([x for x, _ in pairs], [y for _, y in pairs])
    for kind in KINDS:
        own = [correlate(x, y)[kind].value for x, y in pairs]
        assert found[kind].runs == pytest.approx(tuple(own))
        assert found[kind].value == pytest.approx(np.mean(own))
        assert min(own) <= found[kind].low < found[kind].value < found[kind].high <= max(own)


def test_one_run_is_resampled_by_pairs_and_a_broken_run_is_left_out() -> None:
    x, y = some(10, 0)
    assert correlate_runs([x], [y]) == correlate(x, y)
    found = correlate_runs([x, [1.0] * 10], [y, y])["pearson"]
    assert found.value == pytest.approx(correlate(x, y)["pearson"].value)
    assert found.runs[1] is None
    assert found.low is None
    assert found.reason == "one run alone has a coefficient; 1 of 2 runs left out: the first list is constant"


def test_runs_that_are_left_out_are_told() -> None:
    (x, y), (u, v) = some(10, 0), some(10, 1)
    for kind, found in correlate_runs([x, [1.0] * 10, u, [2.0] * 10], [y, y, v, [3.0] * 10]).items():
        own = [correlate(x, y)[kind].value, correlate(u, v)[kind].value]
        assert found.value == pytest.approx(np.mean(own))
        assert found.low is not None
        assert found.reason == "2 of 4 runs left out: the first list is constant"
    mixed = correlate_runs([x, u, [1.0] * 10, [1.0, 2.0]], [y, v, y, [1.0, 2.0]])["kendall"]
    assert mixed.reason == "2 of 4 runs left out: the first list is constant; 2 pairs are too few; it takes 3"
    assert correlate_runs([x, u], [y, v])["kendall"].reason is None


def test_lists_of_different_lengths_are_errors() -> None:
    with pytest.raises(UsageError, match="3 and 2 values"):
        correlate([1, 2, 3], [1, 2])
    with pytest.raises(UsageError, match="1 runs on one side and 2"):
        correlate_runs([[1, 2, 3]], [[1, 2, 3], [1, 2, 3]])
