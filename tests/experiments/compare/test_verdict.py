from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from leadline.experiments.compare.verdict import AT_512, verdict
from leadline.experiments.statistics import Difference, differences


def design(name: str, values: list[float | None], speed: float = 1000.0, **other: Any) -> dict[str, Any]:
    known = [v for v in values if v is not None]
    mean = {"mean": sum(known) / len(known), "low": None, "high": None, "values": values} if known else None
    status = "ok" if len(known) == len(values) else ("partial" if known else "failed")
    return {
        "name": name,
        "status": status,
        "error": None if status == "ok" else "loss is not finite at step 3",
        "bits_per_byte": mean,
        "difference": None,
        "speed": {"seconds": [wave / speed for wave in (1.0, 1.3, 1.1, 0.9, 1.2, 1.0)]} if speed else None,
        "tokens_per_second": 1.0,
        "peak_memory_bytes": 10**9,
        **other,
    }


def as_data(difference: Difference) -> dict[str, Any]:
    own = difference.interval
    text = difference.text
    return {
        "mean": own.mean,
        "low": own.low,
        "high": own.high,
        "beyond_noise": difference.beyond_noise,
        "text": None if text is None else {"low": text.low, "high": text.high},
        "too_little_text": difference.too_little_text,
    }


def results(*designs: dict[str, Any], rates: Any = (), sequences: Any = None, dim: int = 72) -> dict[str, Any]:
    values = {
        d["name"]: {s: v for s, v in enumerate(d["bits_per_byte"]["values"]) if v is not None}
        for d in designs
        if d["bits_per_byte"] is not None
    }
    found = differences(values, "prenorm", sequences)
    for one in designs:
        if one["name"] in found:
            one["difference"] = as_data(found[one["name"]])
    return {
        "arms": list(designs),
        "baseline": "prenorm",
        "learning_rates": list(rates),
        "budget": {"tokens": 512000},
        "preset": {"name": "tiny", "blocks": 24, "dim": dim},
        "data": {"read_bytes": 4096},
    }


def text(of: dict[str, Any]) -> str:
    return " ".join([of["headline"], *of["sentences"]])


def test_a_clear_winner_with_its_price() -> None:
    got = verdict(
        results(
            design("prenorm", [2.70, 2.71, 2.69]),
            design("attnres", [2.580, 2.592, 2.569], speed=800.0),
            design("lns", [2.80, 2.812, 2.789]),
            design("peri", [2.702, 2.708, 2.691]),
        )
    )
    assert got["headline"] == "Choose attnres: 0.120 bits per byte below prenorm."
    said = text(got)
    assert "takes more time for a step than prenorm (1.25 times, 1.25 to 1.25)" in said
    assert "Behind prenorm: lns +0.100." in said
    assert "peri differs from prenorm not beyond noise" in said
    assert "512,000 tokens" in said
    assert "One seed" not in said


def test_a_faster_design_that_is_level_with_the_best() -> None:
    got = verdict(
        results(
            design("prenorm", [2.70, 2.71, 2.69]),
            design("attnres", [2.580, 2.592, 2.569], speed=400.0),
            design("block", [2.581, 2.590, 2.573], speed=900.0),
        )
    )
    assert got["headline"].startswith("Choose block")
    assert "attnres has the lowest loss" in text(got)


def test_no_difference_beyond_noise() -> None:
    got = verdict(results(design("prenorm", [2.70, 2.60, 2.8]), design("mgr", [2.6, 2.75, 2.7])))
    assert got["headline"] == "No design is ahead of prenorm beyond noise."
    assert "Keep prenorm" in text(got)


def test_the_baseline_wins() -> None:
    got = verdict(results(design("prenorm", [2.5, 2.6, 2.55]), design("mgr", [2.7, 2.8, 2.76])))
    assert got["headline"] == "Keep prenorm: every other design did worse."


def test_one_seed_says_that_it_is_one() -> None:
    got = verdict(results(design("prenorm", [2.70]), design("attnres", [2.58]), design("mgr", [2.68])))
    assert got["headline"] == "Ahead in one seed: attnres, 0.120 bits per byte below prenorm."
    assert "One seed: differences under 0.05 bits per byte should be read as noise" in text(got)
    assert "mgr differs from prenorm by less than 0.05 (mgr −0.020)." in text(got)
    small = verdict(results(design("prenorm", [2.70]), design("mgr", [2.66])))
    assert small["headline"] == "No design is ahead of prenorm by 0.05 bits per byte in one seed."


def test_a_faster_design_that_may_be_far_behind_is_not_recommended() -> None:
    """Within noise is not the same as no worse."""
    loud = design("post-ln", [3.0, 4.60, 2.96], speed=2000.0)
    got = verdict(results(design("prenorm", [2.9, 3.0, 2.95]), loud))
    assert "post-ln differs from prenorm not beyond noise" in text(got)
    assert "Keep prenorm" in text(got)
    assert "less time" not in text(got)
    near = design("block", [2.90, 3.001, 2.949], speed=2000.0)
    got = verdict(results(design("prenorm", [2.9, 3.0, 2.95]), near))
    assert "block takes less time for a step than prenorm" in text(got)
    assert "at a loss that differs by less than matters" in text(got)


def test_a_faster_design_that_is_behind_the_best_by_what_matters_is_not_chosen() -> None:
    quick = design("quick", [2.60, 2.50, 2.62], speed=2000.0)
    best = design("best", [2.46, 2.52, 2.44])
    got = verdict(results(design("prenorm", [2.90, 2.91, 2.89]), best, quick))
    assert got["headline"].startswith("Choose best"), "their difference is within noise, and may be large"


def test_failures_are_told() -> None:
    got = verdict(results(design("prenorm", [2.7, 2.71]), design("bhyt", [None, None]), design("mgr", [None, 2.7])))
    assert "bhyt failed: loss is not finite at step 3" in text(got)
    assert "mgr finished on some seeds only" in text(got)


def test_without_a_baseline_there_is_no_verdict() -> None:
    got = verdict(results(design("prenorm", [None]), design("mgr", [2.7]), design("lns", [2.6])))
    assert got["headline"] == "No verdict: the baseline prenorm did not finish."
    assert "lns has 2.600 and mgr has 2.700 bits per byte" in text(got)


def test_only_the_baseline_finished() -> None:
    got = verdict(results(design("prenorm", [2.7]), design("mgr", [None])))
    assert got["headline"].startswith("Only prenorm finished")


def test_a_rate_at_the_edge_is_warned_of() -> None:
    points = [{"learning_rate": r, "bits_per_byte": b} for r, b in ((0.002, 2.8), (0.004, 2.7), (0.008, 2.6))]
    curve = {"design": "prenorm", "points": points, "chosen": 0.008}
    said = text(verdict(results(design("prenorm", [2.7]), design("mgr", [2.7]), rates=[curve])))
    assert "prenorm liked the largest learning rate tried, 0.008" in said
    curve = {"design": "prenorm", "points": points, "chosen": 0.004}
    assert "liked" not in text(verdict(results(design("prenorm", [2.7]), design("mgr", [2.7]), rates=[curve])))


def test_speed_within_noise_breaks_no_tie() -> None:
    fast = design("block", [2.581, 2.590, 2.573], speed=900.0)
    fast["speed"]["seconds"] = [0.001, 0.004, 0.001, 0.001, 0.001, 0.001]
    best = design("attnres", [2.580, 2.592, 2.569], speed=400.0)
    got = verdict(results(design("prenorm", [2.70, 2.71, 2.69]), best, fast))
    assert got["headline"].startswith("Choose attnres")
    few = design("block", [2.581, 2.590, 2.573], speed=900.0)
    few["speed"]["seconds"] = few["speed"]["seconds"][:3]
    best["speed"]["seconds"] = best["speed"]["seconds"][:3]
    prenorm = design("prenorm", [2.70, 2.71, 2.69])
    prenorm["speed"]["seconds"] = prenorm["speed"]["seconds"][:3]
    got = verdict(results(prenorm, best, few))
    assert got["headline"].startswith("Choose attnres"), "three rounds have no interval of 95 %"
    assert "was timed in too few rounds beside prenorm" in text(got)


def test_without_a_measured_speed_nothing_is_said_of_it() -> None:
    got = verdict(results(design("prenorm", [2.70, 2.71], speed=0), design("mgr", [2.5, 2.51], speed=0)))
    assert got["headline"].startswith("Choose mgr")
    assert "time" not in text(got)


def test_a_small_width_says_that_overheads_shrink() -> None:
    designs = (design("prenorm", [2.70, 2.71, 2.69]), design("attnres", [2.58, 2.59, 2.57]))
    assert "At width 72 a design's own operations weigh most" in text(verdict(results(*designs)))
    assert (
        "at width 512 attnres took 1.11 (0.99–1.16) times as long as prenorm, forward and backward with compiled"
        in text(verdict(results(*designs)))
    )
    assert "weigh most" not in text(verdict(results(*designs, dim=512)))


def test_figures_at_512_are_those_of_the_benchmarks() -> None:
    table = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for name, figure in AT_512.items():
        assert f"| {name} | {figure}" in table


def test_beyond_noise_but_too_small_to_matter() -> None:
    got = verdict(results(design("prenorm", [2.70, 2.71, 2.69]), design("peri", [2.68, 2.6901, 2.67])))
    assert got["headline"] == "No design is ahead of prenorm by 0.05 bits per byte."
    assert "peri differs from prenorm beyond noise, but by less than the 0.05" in text(got)


def test_too_little_text_is_the_verdict() -> None:
    found = results(design("prenorm", [2.7, 2.71]), design("mgr", [2.6, 2.61]), sequences=noisy(0.1, 0.5, 16))
    got = verdict(found)
    assert got["headline"].startswith("Too little text: 4,096 held-out bytes")
    assert "would do" in text(got)
    assert "Choose" not in text(got)
    one = verdict(results(design("prenorm", [2.7]), design("mgr", [2.6]), sequences=noisy(0.1, 0.5, 16)))
    assert one["headline"].startswith("Too little text")
    enough = verdict(results(design("prenorm", [2.7]), design("mgr", [2.6]), sequences=noisy(0.1, 0.01, 16)))
    assert enough["headline"].startswith("Ahead in one seed: mgr")
    assert "interval over held-out text alone" in text(enough)


def noisy(gap: float, spread: float, count: int) -> dict[str, dict[int, Any]]:
    """Losses by sequence of prenorm and mgr on two seeds, whose difference is -gap and varies over the text."""
    wave = spread * np.resize([1.0, -1.0], count)
    return {
        "prenorm": {s: np.full(count, 2.7 + 0.01 * s) for s in range(2)},
        "mgr": {s: 2.7 + 0.01 * s - gap + wave for s in range(2)},
    }
