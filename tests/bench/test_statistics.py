"""Medians, their intervals, and targets."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from leadline.bench import targets
from leadline.statistics import Median, coverage, interval_rank, median_of, ratios


def test_coverage_by_counting_coins() -> None:
    """With n values, each below or above the median like a coin: the share of outcomes that the interval covers."""
    for count in range(1, 9):
        for rank in range(1, (count + 1) // 2 + 1):
            outcomes = list(itertools.product((0, 1), repeat=count))
            covered = sum(rank <= sum(coins) <= count - rank for coins in outcomes)
            assert coverage(count, rank) == pytest.approx(covered / len(outcomes), abs=1e-12)


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (5, 1), (6, 1), (8, 1), (9, 2), (15, 4), (25, 8)])
def test_the_rank(count: int, rank: int) -> None:
    """As in tables of the sign test."""
    assert interval_rank(count) == rank


def test_a_median() -> None:
    found = median_of([9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0])
    assert (found.median, found.low, found.high, found.values) == (5.0, 2.0, 8.0, 9)
    assert found.coverage == pytest.approx(1 - 2 * 10 / 512)
    assert found.divided_by(2.0) == Median(median=2.5, low=1.0, high=4.0, coverage=found.coverage, values=9)


def test_one_value_covers_nothing() -> None:
    found = median_of([3.0])
    assert (found.low, found.high, found.coverage) == (3.0, 3.0, 0.0)


def test_no_values() -> None:
    with pytest.raises((ValueError, ArithmeticError, IndexError)):
        median_of([])


def test_the_interval_covers_what_it_says() -> None:
    generator = random.Random(0)
    trials, covered = 2000, 0
    for _ in range(trials):
        found = median_of([generator.expovariate(1.0) for _ in range(9)])
        covered += found.low <= math.log(2) <= found.high
    assert covered / trials == pytest.approx(coverage(9, 2), abs=0.02)


def test_ratios_are_formed_within_a_round() -> None:
    """A disturbance that hits a whole round leaves its ratio alone."""
    assert ratios([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == [2.0, 2.0, 2.0]
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], [1.0, 2.0])


@pytest.mark.parametrize(("low", "met"), [(1.10, True), (1.15, False), (1.16, False)])
def test_a_ratio_meets_its_target_by_its_lower_end(low: float, met: bool) -> None:
    found = Median(median=1.2, low=low, high=1.3, coverage=0.96, values=9)
    assert targets.at_most(found, 1.15) is met
    assert targets.verdict(1.15, met, True) == f"target 1.15: {'met' if met else 'not met'}"


def test_a_wide_interval_alone_says_little() -> None:
    assert targets.verdict(1.15, True, False) == "target 1.15: met by the interval alone"
    assert targets.verdict(1.15, False, False) == "target 1.15: not met"


@pytest.mark.parametrize(("high", "met"), [(6.2, True), (6.0, False), (5.9, False)])
def test_a_speed_up_meets_its_target_by_its_upper_end(high: float, met: bool) -> None:
    found = Median(median=5.5, low=5.0, high=high, coverage=0.96, values=9)
    assert targets.at_least(found, 6.0) is met
    assert targets.verdict(6.0, met, True, least=True) == f"target at least 6: {'met' if met else 'not met'}"


@pytest.mark.parametrize(("ratio", "met"), [(1.0, True), (1.0049, True), (1.006, False)])
def test_bytes_meet_their_target_to_two_decimals(ratio: float, met: bool) -> None:
    assert targets.bytes_at_most(ratio, 1.00) is met


def test_targets_name_what_there_is() -> None:
    """Designs by their canonical expression, operators and peers by their name."""
    from leadline.bench.cases import CASES
    from leadline.bench.peers import PEERS
    from leadline.bench.shapes import SHAPES
    from leadline.designs import resolve

    for shape, stated in targets.MODELS.items():
        assert shape in SHAPES
        assert all(resolve(design).expression == design for design in stated)
    assert all(resolve(design).expression == design for design in targets.DECODE)
    peers = {(peer.case, peer.name) for peer in PEERS}
    for case, speeds in targets.OPERATORS.items():
        assert case in CASES
        assert all(speed.over == "reference" or (case, speed.over) in peers for speed in speeds)
