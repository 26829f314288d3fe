"""`leadline bench decode`, small and quick."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from leadline.bench import bench_decode, decode, running
from leadline.bench.decode import DecodeOptions
from leadline.bench.rounds import Timings
from leadline.bench.shapes import BenchShape
from leadline.errors import UsageError

TINY = BenchShape(blocks=2, dim=16, heads=2, context=5, batch=1)


def options(*designs: str, **more: Any) -> DecodeOptions:
    return DecodeOptions(designs=designs, **{"shape": TINY, "rounds": 2, "warm": 1, "group": 3, **more})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    seconds: dict[str, float] = {}

    def run(candidates: Any, rounds: int, timer: object, **more: object) -> Timings:
        return Timings({c.name: [seconds.get(c.name, 1.0)] * rounds for c in candidates})

    monkeypatch.setattr(running, "run_rounds", run)
    return seconds


@pytest.mark.filterwarnings("error")
def test_a_real_run() -> None:
    """Every design generates as many tokens as were asked for, and no warning about long texts comes."""
    result = bench_decode(options(*decode.DESIGNS), {})
    assert [row.failed for row in result.rows] == [""] * 9
    assert all(len(row.seconds) == 2 and len(row.ratios) == 2 for row in result.rows)
    assert {row.backend for row in result.rows} == {"-", "auto"}


@pytest.mark.parametrize(("taken", "met"), [(1.05, True), (1.09, False)])
def test_targets(clock: dict[str, float], monkeypatch: pytest.MonkeyPatch, taken: float, met: bool) -> None:
    monkeypatch.setattr(decode, "SHAPE", TINY)
    clock["mgr-competitive"] = taken
    result = bench_decode(options("mgr", "hc"), {})
    assert [(v.what, v.target, v.met) for v in result.rows[1].verdicts] == [("time", 1.08, met)]
    assert result.rows[2].verdicts == ()
    assert result.notes == ()


def test_targets_are_for_their_shape(clock: dict[str, float]) -> None:
    result = bench_decode(options("mgr"), {})
    assert result.rows[1].verdicts == ()
    assert "targets are stated for 12 blocks, D=512" in result.notes[0]


def test_a_cache_that_errs_is_not_timed(clock: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    right = decode.check
    monkeypatch.setattr(
        decode, "check", lambda subject, *rest: "wrong" if subject.design == "hc" else right(subject, *rest)
    )
    result = bench_decode(options("hc", "mgr"), {})
    assert [(row.failed, row.time is None) for row in result.rows] == [("", False), ("wrong", True), ("", False)]
    assert result.failed


@pytest.mark.filterwarnings("ignore:this model was trained")
def test_the_check_sees_a_wrong_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    subjects, _ = decode.subjects_for(options("attnres", backends=("lean",)), TINY, training=False)
    prompt = torch.zeros(1, 5, dtype=torch.int64)
    assert decode.check(subjects[1], prompt, 1e-4) == ""

    class Off:
        def __init__(self, model: Any) -> None:
            self.model = model

        def __call__(self, tokens: torch.Tensor, cache: Any = None) -> torch.Tensor:
            return self.model(tokens, cache=cache) * (1.0 if cache is None else 1.01)

    off: Any = Off(subjects[1].model)
    wrong = decode.Subject(design="x", backend="lean", model=off)
    assert decode.check(wrong, prompt, 1e-4).startswith("cached logits are off by 1.0e-02")


def test_two_phases_stand_beside_one(clock: dict[str, float]) -> None:
    result = bench_decode(options("attnres", two_phase=True), {})
    assert [row.name for row in result.rows] == ["prenorm", "attnres", "attnres, two phases"]
    assert not result.failed
    assert any(note.startswith("attnres, two phases takes 1.000") for note in result.notes)


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(candidates: Any, rounds: int, timer: object, **more: object) -> Timings:
        return Timings({c.name: [1.0] for c in candidates}, interrupted=True)

    monkeypatch.setattr(running, "run_rounds", stops)
    result = bench_decode(options("mgr"), {})
    assert result.interrupted
    assert result.rounds == 1
    assert result.rows[1].ratios == [1.0]


def test_bad_options() -> None:
    with pytest.raises(UsageError, match="--group 0 is too small; 1 or more work"):
        options(group=0)
