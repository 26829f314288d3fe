from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import leadline.experiments.compare.speed as speed
from leadline.experiments.compare.speed import decides, measured_speeds, ratio_of
from leadline.training import RunConfig


def test_a_ratio_is_formed_within_a_round() -> None:
    got = ratio_of([2.0, 20.0, 3.0, 2.2, 2.0, 2.0], [1.0, 10.0, 1.5, 1.0, 1.0, 1.0])
    assert (got.median, got.low, got.high) == pytest.approx((2.0, 2.0, 2.2))
    assert decides(got)
    assert not decides(ratio_of([2.0, 2.0], [1.0, 1.0])), "two rounds have no interval of 95 %"
    assert not decides(ratio_of([2.0] * 5 + [0.9], [1.0] * 6))


def test_more_rounds_tell_more() -> None:
    """The interval is of the median, not of all rounds."""
    draw = random.Random(0)
    told = dict.fromkeys((6, 51), 0)
    for rounds in told:
        for _ in range(200):
            told[rounds] += decides(ratio_of([0.92 * draw.gauss(1, 0.05) for _ in range(rounds)], [1.0] * rounds))
    assert told[51] > 195 > told[6]


@pytest.mark.parametrize(
    "content", ["[" * 100_000, "{}", '{"designs": ["a", "b"], "rounds": 3, "seconds": {"a": [Infinity]}}']
)
def test_a_damaged_measurement_is_made_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setattr(speed, "_measure", lambda configs, rounds, threads: {name: [0.5] * rounds for name in configs})
    configs = dict.fromkeys(("a", "b"), RunConfig.of("prenorm"))
    right = measured_speeds(tmp_path, configs, 3, 1)
    kept = (tmp_path / "speed.json").read_text()
    for damaged in (content, kept.replace("0.5", "0.9", 1)):
        (tmp_path / "speed.json").write_text(damaged)
        assert measured_speeds(tmp_path, configs, 3, 1) == right


def test_a_measurement_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def measure(configs: dict[str, Any], rounds: int, threads: int) -> dict[str, list[float]]:
        calls.append(rounds)
        return {name: [0.5] * rounds for name in configs}

    monkeypatch.setattr(speed, "_measure", measure)
    configs = dict.fromkeys(("a", "b"), RunConfig.of("prenorm"))
    first = measured_speeds(tmp_path, configs, 3, 1)
    assert measured_speeds(tmp_path, configs, 3, 1) == first
    assert calls == [3]
    measured_speeds(tmp_path, configs, 4, 1)
    (tmp_path / "speed.json").write_text('{"designs": ["a", "b"], "rounds": 4, "seconds": {"a": [1], "b": 2}}')
    measured_speeds(tmp_path, configs, 4, 1)
    assert calls == [3, 4, 4], "another number of rounds, or a damaged file, is measured again"
    assert measured_speeds(tmp_path, configs, 0, 1) == {}
