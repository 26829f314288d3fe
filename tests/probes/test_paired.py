"""Which means over the same sequences can be told apart, and how far their ratios are known: in both directions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from leadline.probes.paired import Array, Bounds, PairedMeans


def measured(sums: Array, tokens: Array | None = None) -> PairedMeans:
    found = PairedMeans(sums.shape[1])
    tokens = np.full(len(sums), 16.0) if tokens is None else tokens
    # In batches of unlike sizes, as a probe adds them.
    for part in np.array_split(np.arange(len(sums)), 3):
        found.add(sums[part], tokens[part])
    return found


def test_a_pair_is_tested_by_its_differences() -> None:
    """Against SciPy, where all sequences have the same length; far smaller than the spread of either mean."""
    random = np.random.default_rng(0)
    text = random.normal(0, 100, (12, 1))
    sums = text + np.array([0.0, 1.0]) + random.normal(0, 0.8, (12, 2))
    found = measured(sums)
    p, difference = found._test(0, 1)
    assert p == pytest.approx(stats.ttest_rel(sums[:, 0], sums[:, 1]).pvalue, rel=1e-6)
    assert difference == pytest.approx((sums[:, 0] - sums[:, 1]).mean() / 16)
    assert found.places() == [(1, 1), (2, 2)]
    assert found.places([1]) == [(1, 1)]


def test_noise_tells_nothing_apart_more_often_than_it_may() -> None:
    random = np.random.default_rng(1)
    wrong = 0
    for _ in range(300):
        noise = random.standard_t(5, (6, 8)) + random.normal(0, 3, (6, 1))
        places = measured(noise).places()
        assert places is not None
        wrong += places != [(1, 8)] * 8
    # At most 5 % of 300, and three standard errors.
    assert wrong <= 15 + 12


def test_what_is_told_apart_has_its_place_and_what_is_not_shares_one() -> None:
    random = np.random.default_rng(2)
    sums = random.normal(0, 1.0, (64, 4)) + np.array([50.0, 0.0, 0.0, 200.0])
    assert measured(sums).places() == [(3, 3), (1, 2), (1, 2), (4, 4)]


def test_few_sequences_and_numbers_that_are_none() -> None:
    one = measured(np.array([[1.0, 2.0]]))
    assert one.sequences == 1
    assert one.places() == [(1, 2), (1, 2)]
    assert one.share(1) == Bounds(pytest.approx(1 / 3), None, None)
    assert measured(np.array([[np.nan, 2.0], [1.0, 2.0]])).places() is None
    assert PairedMeans(2).places() is None
    assert PairedMeans(2).share(1) == Bounds(None, None, None)
    same = measured(np.tile([[0.1, 0.1, 0.3]], (7, 1)))
    assert same.places() == [(1, 2), (1, 2), (3, 3)]
    empty = measured(np.array([[1.0, 2.0], [5.0, 5.0]]), np.array([4.0, 0.0]))
    assert empty.sequences == 1


def test_means_and_their_intervals_are_student_s() -> None:
    random = np.random.default_rng(3)
    sums = random.normal(5, 2, (10, 1))
    (found,) = measured(sums, np.ones(10)).intervals()
    low, high = stats.t.interval(0.95, 9, sums.mean(), stats.sem(sums[:, 0]))
    assert found == pytest.approx((sums.mean(), low, high))


def test_the_interval_of_a_share_holds_it_as_often_as_it_says() -> None:
    random = np.random.default_rng(4)
    held, excluded = 0, 0
    for _ in range(400):
        sums = random.normal(0, 1, (8, 4)) + np.array([4.0, 2.0, 1.0, 1.0])
        _, low, high = measured(sums).share(2)
        assert low is not None
        assert high is not None
        held += low <= 0.75 <= high
        excluded += low > 0.5
    assert 0.92 <= held / 400 <= 0.98
    assert excluded > 300


def test_a_share_of_nothing_has_no_bounds() -> None:
    random = np.random.default_rng(5)
    value, low, high = measured(random.normal(0, 1, (8, 4))).share(2)
    assert value is not None
    assert (low, high) == (None, None)
