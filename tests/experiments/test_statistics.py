from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from leadline.experiments.statistics import Part, differences, interval, interval_of, p_value, quiet
from leadline.statistics import holm

# Two-sided 95 % and 99 % quantiles as any table of Student's t prints them.
TABLE = {1: (12.706, 63.657), 2: (4.303, 9.925), 3: (3.182, 5.841), 4: (2.776, 4.604), 5: (2.571, 4.032)}
TABLE |= {10: (2.228, 3.169), 14: (2.145, 2.977), 30: (2.042, 2.750), 120: (1.980, 2.617)}


@pytest.mark.parametrize("freedom", TABLE)
def test_one_part_is_students_t(freedom: int) -> None:
    for level, expected in zip((0.95, 0.99), TABLE[freedom], strict=True):
        assert p_value(expected, [Part(error=1.0, freedom=freedom)]) == pytest.approx(1 - level, abs=2e-4)


def test_two_parts_are_wider_than_each() -> None:
    parts = [Part(error=0.3, freedom=2), Part(error=0.1, freedom=40)]
    both = interval_of(1.0, parts)
    halves = [one.high - 1.0 for part in parts if (one := interval_of(1.0, [part])).high is not None]
    assert both.high is not None
    assert both.high - 1.0 == pytest.approx(math.hypot(*halves))
    assert p_value(both.high - 1.0, parts) == pytest.approx(0.05)


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
    assert got.p_value == pytest.approx(p_value(mean, [Part(error=spread, freedom=2)]))
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
    noise = {f"q{i}": {s: 3.0 + 1e-4 * ((i + s) % 3) for s in range(3)} for i in range(9)}
    values = {"base": {0: 3.0, 1: 3.0, 2: 3.0}, **noise, "noisy": {0: 2.7, 1: 2.95, 2: 2.8}}
    assert quiet(values) == ["base", *noise]
    got = differences(values, "base")["noisy"]
    assert got.p_value is not None
    assert got.p_value > 0.05
    assert got.beyond_noise is False


@pytest.mark.parametrize("unstable", [1, 2, 3])
def test_unstable_designs_hide_no_other(unstable: int) -> None:
    base = {0: 2.70, 1: 2.75, 2: 2.68}
    wobble = {"block": (-0.097, (0.003, -0.003, 0.001)), "mgr": (-0.056, (-0.004, 0.003, 0.002))}
    wobble |= {"lns": (0.1, (-0.004, 0.003, 0.002)), "peri": (0.0, (0.002, -0.003, 0.001))}
    values = {"base": base} | {d: {s: base[s] + gap + e[s] for s in base} for d, (gap, e) in wobble.items()}
    values |= {f"post-ln{i}": {i % 3: 3.68, (i + 1) % 3: 4.60, (i + 2) % 3: 4.10} for i in range(unstable)}
    assert quiet(values) == ["base", *wobble]
    got = differences(values, "base")
    assert got["block"].beyond_noise
    assert got["mgr"].beyond_noise
    assert not got["peri"].beyond_noise


def test_a_noisy_baseline_leaves_every_design_to_its_own_pairs() -> None:
    noise = {f"q{i}": {s: 3.0 + 1e-3 * ((i + s) % 3) for s in range(3)} for i in range(5)}
    values = {"base": {0: 3.0, 1: 3.4, 2: 3.2}, **noise}
    assert "base" not in quiet(values)
    assert not any(d.beyond_noise for d in differences(values, "base").values())


@pytest.mark.parametrize(("designs", "seeds"), [(3, 2), (8, 2), (8, 3)])
def test_designs_of_pure_noise_rarely_win(designs: int, seeds: int) -> None:
    generator, wins = np.random.default_rng(0), 0
    for _ in range(400):
        values = {f"d{i}": dict(enumerate(generator.normal(size=seeds))) for i in range(designs)}
        wins += any(d.beyond_noise for d in differences(values, "d0").values())
    assert wins / 400 < 0.06


def test_pooling_finds_more_where_noise_agrees() -> None:
    """A real difference among eight designs of equal noise, against the same with each design's own pairs alone."""
    generator, pooled, own = np.random.default_rng(0), 0, 0
    for _ in range(200):
        values = {f"d{i}": dict(enumerate(generator.normal(size=3) - 5.0 * (i == 1))) for i in range(8)}
        pooled += bool(differences(values, "d0")["d1"].beyond_noise)
        pairs = {d: [of[s] - values["d0"][s] for s in range(3)] for d, of in values.items() if d != "d0"}
        parts = {d: [Part(error=float(np.std(p, ddof=1)) / 3**0.5, freedom=2)] for d, p in pairs.items()}
        own += holm({d: p_value(float(np.mean(pairs[d])), parts[d]) for d in pairs})["d1"] < 0.05
    assert pooled > 2 * own


def noisy_text(generator: np.random.Generator, seeds: int, count: int, shift: float = 0.0) -> tuple[Any, Any]:
    """Losses of two designs that differ by `shift`, on text that each of them likes or not, and their means."""
    taste = generator.normal(size=(2, count)) * 0.3
    of = {
        name: {
            s: 3.0 + taste[i] + generator.normal() * 0.003 + shift * i + generator.normal(size=count) * 0.02
            for s in range(seeds)
        }
        for i, name in enumerate(("base", "new"))
    }
    return {name: {s: float(x.mean()) for s, x in by.items()} for name, by in of.items()}, of


@pytest.mark.parametrize("seeds", [2, 3])
def test_text_is_noise_too(seeds: int) -> None:
    """Designs that are alike but for their taste: by seeds alone the text decides; with its part seldom anything."""
    generator, alone, whole = np.random.default_rng(0), 0, 0
    for _ in range(300):
        values, of = noisy_text(generator, seeds, 12)
        alone += bool(differences(values, "base")["new"].beyond_noise)
        got = differences(values, "base", of)["new"]
        whole += bool(got.beyond_noise)
        assert got.sequences == 12
        assert got.interval.low is not None
        assert got.seeds.low is not None
        assert got.interval.low <= got.seeds.low
    assert alone > 90
    assert whole / 300 < 0.07


def test_much_text_tells_a_difference_that_little_text_does_not() -> None:
    generator = np.random.default_rng(1)
    much = differences(*reordered(noisy_text(generator, 3, 2000, -0.1)))["new"]
    assert much.beyond_noise
    assert not much.too_little_text
    little = differences(*reordered(noisy_text(generator, 3, 4, -0.6)))["new"]
    assert little.too_little_text, "four sequences are too few, whatever they say"
    assert little.beyond_noise is False


def reordered(found: tuple[Any, Any]) -> tuple[Any, str, Any]:
    return found[0], "base", found[1]


def test_a_run_without_sequences_leaves_the_seeds_alone() -> None:
    values, of = noisy_text(np.random.default_rng(0), 2, 12)
    del of["new"][1]
    got = differences(values, "base", of)["new"]
    assert got.text is None
    assert got.interval == got.seeds


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


def test_designs_none_of_whose_runs_finished() -> None:
    """Without a word from NumPy of means of nothing: warnings are errors here."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert quiet({"prenorm": {}, "mgr": {}, "lns": {}}) == ["prenorm", "mgr", "lns"]
