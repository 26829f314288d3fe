from __future__ import annotations

import math

import pytest

from leadline.compare.statistics import differences, holm, interval, student_quantile, student_two_sided

# Two-sided 95 % and 99 % quantiles as any table of Student's t prints them.
TABLE = {1: (12.706, 63.657), 2: (4.303, 9.925), 3: (3.182, 5.841), 4: (2.776, 4.604), 5: (2.571, 4.032)}
TABLE |= {10: (2.228, 3.169), 14: (2.145, 2.977), 30: (2.042, 2.750), 120: (1.980, 2.617)}


@pytest.mark.parametrize("freedom", TABLE)
def test_quantiles_are_the_tables(freedom: int) -> None:
    for level, expected in zip((0.95, 0.99), TABLE[freedom], strict=True):
        quantile = student_quantile(level, freedom)
        assert quantile == pytest.approx(expected, abs=6e-4)
        assert student_two_sided(quantile, freedom) == pytest.approx(1 - level, abs=1e-9)


def test_tails_known_in_closed_form() -> None:
    assert student_two_sided(1.0, 1) == pytest.approx(0.5)  # the Cauchy distribution
    assert student_two_sided(2.0, 2) == pytest.approx(1 - 2 / math.sqrt(6))
    assert student_two_sided(0.0, 7) == 1
    assert student_two_sided(math.inf, 3) == 0
    assert student_two_sided(-1.5, 4) == student_two_sided(1.5, 4)
    with pytest.raises(ValueError, match="at least 1"):
        student_two_sided(1.0, 0)


def test_interval_of_three_values() -> None:
    got = interval([1.0, 2.0, 3.0])
    half = 4.302652729911275 / math.sqrt(3)
    assert (got.mean, got.low, got.high) == pytest.approx((2.0, 2 - half, 2 + half))


def test_one_value_has_no_interval() -> None:
    got = interval([2.5])
    assert (got.mean, got.low, got.high) == (2.5, None, None)
    difference = differences({"a": {0: 1.0}, "b": {0: 0.5}}, "a")["b"]
    assert difference.pairs == (-0.5,)
    assert difference.beyond_noise is None
    assert difference.p_value is None


def test_pairs_use_the_seeds_both_finished() -> None:
    got = differences({"base": {0: 3.0, 1: 3.5, 2: 3.2}, "new": {1: 3.25, 2: 3.0}, "gone": {}}, "base")
    assert got["new"].pairs == pytest.approx((-0.25, -0.2))
    assert "gone" not in got
    assert "base" not in got


def test_two_designs_are_the_paired_t_test() -> None:
    base, new = [3.0, 3.4, 3.1], [2.9, 3.25, 3.02]
    pairs = [n - b for n, b in zip(new, base, strict=True)]
    got = differences({"base": dict(enumerate(base)), "new": dict(enumerate(new))}, "base")["new"]
    mean = sum(pairs) / 3
    spread = math.sqrt(sum((p - mean) ** 2 for p in pairs) / 2 / 3)
    assert got.p_value == pytest.approx(student_two_sided(mean / spread, 2))
    assert got.beyond_noise is True
    assert got.interval.high is not None
    assert got.interval.high < 0


def test_seed_effects_shared_by_all_designs_are_no_noise() -> None:
    seeds = {0: 0.0, 1: 0.5, 2: -0.4}
    wobble = {0: 0.001, 1: -0.001, 2: 0.0}
    values = {
        "base": {s: 3 + e for s, e in seeds.items()},
        "better": {s: 2.9 + e + wobble[s] for s, e in seeds.items()},
        "same": {s: 3 + e - wobble[s] for s, e in seeds.items()},
    }
    got = differences(values, "base")
    assert got["better"].beyond_noise is True
    assert got["same"].beyond_noise is False


def test_a_noisy_design_is_not_judged_by_the_quiet_ones() -> None:
    """Nine quiet designs make the pooled noise small; the noisy one's own interval still includes zero."""
    quiet = {f"q{i}": {s: 3.0 + 1e-4 * ((i + s) % 3) for s in range(3)} for i in range(9)}
    values = {"base": {0: 3.0, 1: 3.0, 2: 3.0}, **quiet, "noisy": {0: 2.7, 1: 2.95, 2: 2.8}}
    got = differences(values, "base")["noisy"]
    assert got.p_value is not None
    assert got.p_value < 0.05
    assert got.beyond_noise is False


def test_many_designs_of_pure_noise_rarely_win() -> None:
    import random

    generator, wins = random.Random(0), 0
    for _ in range(200):
        values = {f"d{i}": {s: generator.gauss(0, 1) for s in range(3)} for i in range(8)}
        wins += any(d.beyond_noise for d in differences(values, "d0").values())
    assert wins / 200 < 0.06


def test_identical_runs_differ_by_nothing() -> None:
    same = {0: 2.5, 1: 2.6}
    got = differences({"a": same, "b": dict(same)}, "a")["b"]
    assert got.interval.mean == 0
    assert got.beyond_noise is False


def test_a_constant_difference_is_beyond_noise() -> None:
    got = differences({"a": {0: 2.0, 1: 3.0}, "b": {0: 1.5, 1: 2.5}}, "a")["b"]
    assert got.p_value == 0
    assert got.beyond_noise is True


def test_holm_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({}) == {}


def test_interval_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        interval([])
