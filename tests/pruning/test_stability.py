"""Rank correlations with answers known by hand, and intervals that widen where they should."""

from __future__ import annotations

import pytest

from leadline.errors import LeadlineError
from leadline.pruning.stability import Gap, corrected, jaccard, kendall, paired_gap, spearman, stability, stability_gap

UP, DOWN, SWAPPED = [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 4.0, 3.0]


def test_correlations() -> None:
    assert (kendall(UP, UP), kendall(UP, DOWN)) == (1.0, -1.0)
    # Five pairs of six agree.
    assert kendall(UP, SWAPPED) == pytest.approx((5 - 1) / 6)
    assert spearman(UP, SWAPPED) == pytest.approx(1 - 6 * 2 / (4 * 15))
    # τ-b with one tie: 5 concordant, of √(5·6).
    assert kendall([1.0, 1.0, 3.0, 4.0], UP) == pytest.approx(5 / (5 * 6) ** 0.5)


def test_without_an_order_there_is_no_correlation() -> None:
    assert kendall([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None
    assert spearman([1.0], [1.0]) is None


def test_jaccard() -> None:
    assert jaccard({1, 2, 3}, {2, 3, 4}) == 0.5
    assert jaccard([1], [2]) == 0.0
    assert jaccard(set(), set()) == 1.0


def test_stability_is_the_mean_over_pairs() -> None:
    found = stability([UP, UP, DOWN], {"0.5": [{0, 1}, {0, 1}, {2, 3}], "0.25": [{0}, {0}, {0}]})
    assert found is not None
    assert found.kendall == pytest.approx((1 - 1 - 1) / 3)
    assert found.jaccard == {"0.5": pytest.approx(1 / 3), "0.25": 1.0}
    assert found.pairs == 3
    assert stability([UP], {}) is None
    with pytest.raises(LeadlineError, match="different depth"):
        stability([UP, [1.0, 2.0]], {})


def test_a_paired_gap() -> None:
    clear = paired_gap([1.0, 1.1, 0.9])
    # t(0.975, 2) = 4.303.
    assert (clear.mean, clear.high) == (pytest.approx(1.0), pytest.approx(1.0 + 4.3027 * 0.1 / 3**0.5, rel=1e-4))
    # With two degrees of freedom p = 1 − t / √(t² + 2), and t is 10 √3.
    assert clear.p_value == pytest.approx(1 - 300**0.5 / 302**0.5)
    assert clear.beyond_noise is True
    assert paired_gap([1.0, -1.0, 0.5]).beyond_noise is False
    assert paired_gap([1.0]).beyond_noise is None
    # A gap that is the same for each seed says nothing of how far the next one would be off, unless it is none.
    assert paired_gap([0.001] * 3).beyond_noise is None
    assert paired_gap([0.0] * 3).beyond_noise is False


def test_holm() -> None:
    gaps = {"a": Gap(mean=1.0, p_value=0.02), "b": Gap(mean=1.0, p_value=0.01), "c": Gap(mean=1.0, p_value=0.04)}
    found = corrected({**gaps, "d": None, "e": Gap(mean=1.0)})
    values = {name: None if gap is None else gap.p_value for name, gap in found.items()}
    assert values == {
        "a": pytest.approx(0.04),
        "b": pytest.approx(0.03),
        "c": pytest.approx(0.04),
        "d": None,
        "e": None,
    }
    assert [paired.beyond_noise for paired in found.values() if paired is not None] == [True, True, True, None]


def test_a_gap_of_stability() -> None:
    same = stability_gap([UP, UP, UP], [UP, UP, UP])
    assert same is not None
    assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)
    better = stability_gap([UP, UP, UP, UP], [UP, SWAPPED, DOWN, UP])
    # By hand: the mean τ-b of the others is −1/18; without each seed in turn the gaps are 4/3, 4/3, 2/9 and 4/3.
    assert better is not None
    assert better.mean == pytest.approx(19 / 18)
    error = (3 / 4 * (3 * (4 / 3 - 19 / 18) ** 2 + (2 / 9 - 19 / 18) ** 2)) ** 0.5
    assert better.low == pytest.approx(19 / 18 - 3.182446 * error, rel=1e-6)
    assert stability_gap([UP, UP], [UP, DOWN]).beyond_noise is None
    assert stability_gap([UP, UP], [[1.0] * 4, [1.0] * 4]) is None
