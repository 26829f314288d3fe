"""`leadline bench models`, small and quick; nothing here looks at how long anything took."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from leadline.bench import bench_models, models, running
from leadline.bench.models import ModelOptions, has_operators, subjects_for, usable_backends
from leadline.bench.rounds import Timings
from leadline.bench.shapes import SHAPES, BenchShape, shape_named
from leadline.connections import AttentionResiduals
from leadline.designs import resolve
from leadline.errors import UsageError

TINY = BenchShape(blocks=2, dim=16, heads=2, context=8, batch=2)
CPU = torch.device("cpu")


def options(*designs: str, **more: Any) -> ModelOptions:
    return ModelOptions(designs=designs, shape=TINY, **{"backends": ("lean",), "rounds": 3, **more})


def subjects(designs: tuple[str, ...], backends: tuple[Any, ...]) -> list[models.Subject]:
    return subjects_for(options(*designs, backends=backends), TINY, training=True)[0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Replaces time: each candidate takes what is written here, else a second."""
    seconds: dict[str, float] = {}

    def run(candidates: Any, rounds: int, timer: object, **more: object) -> Timings:
        for candidate in candidates:
            candidate.call()
            candidate.after()
        return Timings({c.name: [seconds.get(c.name, 1.0) * (n + 1) for n in range(rounds)] for c in candidates})

    monkeypatch.setattr(running, "run_rounds", run)
    return seconds


def test_rows_and_ratios(clock: dict[str, float]) -> None:
    clock.update({"prenorm": 2.0, "mgr-competitive lean": 3.0})
    result = bench_models(options("mgr", "peri-ln"), {"cpu": "test"})
    rows = {row.name: row for row in result.rows}
    assert list(rows) == ["prenorm", "mgr-competitive lean", "peri-ln"]
    assert [row.backend for row in result.rows] == ["-", "lean", "-"]
    assert rows["mgr-competitive lean"].seconds == [3.0, 6.0, 9.0]
    assert rows["mgr-competitive lean"].ratios == [1.5, 1.5, 1.5]
    assert rows["prenorm"].ratio is not None
    assert rows["prenorm"].ratio.median == 1.0
    assert rows["prenorm"].numbers["saved_ratio"] == rows["prenorm"].numbers["peak_ratio"] == 1.0
    assert rows["mgr-competitive lean"].numbers["saved_ratio"] > 1.1
    assert rows["peri-ln"].numbers["peak_bytes"] > rows["peri-ln"].numbers["saved_bytes"] > 0
    assert not result.failed
    assert result.rounds == 3
    assert any("targets are stated" in note for note in result.notes)


def test_two_phases_stand_beside_one(clock: dict[str, float]) -> None:
    """Checked against one phase of the reference, timed, and compared within a round; PreNorm has one way to read."""
    clock.update({"attnres lean": 2.0, "attnres, two phases lean": 3.0})
    result = bench_models(options("attnres", two_phase=True), {"cpu": "test"})
    rows = {row.name: row for row in result.rows}
    assert list(rows) == ["prenorm", "attnres lean", "attnres, two phases lean"]
    assert rows["attnres, two phases lean"].label == "attnres, two phases"
    assert not result.failed
    assert any(
        note.startswith("attnres, two phases lean takes 1.500 [1.500, 1.500] times as long as in one phase")
        for note in result.notes
    )


def test_two_phases_are_run_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read ahead goes wrong: that row alone fails."""
    right = AttentionResiduals.prefetch

    def wrong(self: Any, state: Any, sites: Any) -> Any:
        state = right(self, state, sites)
        return state._replace(ahead=tuple(entry._replace(mix=entry.mix * 1.1) for entry in state.ahead))

    monkeypatch.setattr(AttentionResiduals, "prefetch", wrong)
    asked = options("attnres", two_phase=True, check_only=True, backends=("reference", "lean"))
    failed = {row.name: bool(row.failed) for row in bench_models(asked, {}).rows}
    assert failed == {
        "prenorm": False,
        "attnres reference": False,
        "attnres, two phases reference": True,
        "attnres lean": False,
        "attnres, two phases lean": True,
    }


def test_two_phases_need_a_design_that_has_them() -> None:
    with pytest.raises(UsageError, match=r"--two-phase .* attnres and attnres-block work"):
        bench_models(options("mgr", two_phase=True), {})


def test_it_is_plain_data(clock: dict[str, float]) -> None:
    found = json.loads(json.dumps(bench_models(options("hc"), {"cpu": "test"}).as_json(), allow_nan=False))
    assert found["bench"] == "models"
    assert found["machine"] == {"cpu": "test"}
    assert found["options"]["shape"] == {"blocks": 2, "dim": 16, "heads": 2, "context": 8, "batch": 2}
    assert found["options"]["threads"] == torch.get_num_threads()
    assert found["versions"]["torch"]
    assert found["rows"][1]["ratio"]["coverage"] == 0.75
    assert len(found["rows"][1]["seconds"]) == 3


@pytest.mark.parametrize(("taken", "met"), [(1.1, True), (1.2, False)])
def test_targets(clock: dict[str, float], monkeypatch: pytest.MonkeyPatch, taken: float, met: bool) -> None:
    """At a shape that has targets; the shape is made small for the test."""
    monkeypatch.setitem(SHAPES, "a", TINY)
    clock["attnres lean"] = taken
    result = bench_models(options("attnres", "peri-ln", shape_name="a"), {})
    attnres, peri = result.rows[1], result.rows[2]
    assert [(verdict.what, verdict.target) for verdict in attnres.verdicts] == [("time", 1.15), ("saved", 1.12)]
    assert attnres.verdicts[0].met is attnres.verdicts[0].by_median is met
    assert attnres.verdicts[1].met is (round(attnres.numbers["saved_ratio"], 2) <= 1.12)
    assert peri.verdicts == ()
    assert result.notes == ()


def test_a_wrong_backend_is_not_timed(clock: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    right = models.gradients

    def broken(subject: models.Subject, batch: Any) -> list[Tensor | None]:
        found = right(subject, batch)
        if subject.backend == "lean":
            found[-1] = None if found[-1] is None else found[-1] * 1.5
        return found

    monkeypatch.setattr(models, "gradients", broken)
    result = bench_models(options("mgr", "hc"), {})
    assert result.failed
    rows = {row.name: row for row in result.rows}
    assert "is off by" in rows["mgr-competitive lean"].failed
    assert rows["mgr-competitive lean"].time is None
    assert rows["mgr-competitive lean"].numbers == {}
    assert rows["prenorm"].time is not None


def test_low_precision_is_held_against_float32(clock: dict[str, float]) -> None:
    result = bench_models(options("attnres-block", "mhc-lite", dtype=torch.bfloat16), {})
    assert [row.failed for row in result.rows] == ["", "", ""]


def test_only_checks(clock: dict[str, float]) -> None:
    result = bench_models(options("mgr", check_only=True), {})
    assert result.rounds == 0
    assert all(row.time is None and not row.failed and row.numbers == {} for row in result.rows)


def test_interrupted_while_checking(monkeypatch: pytest.MonkeyPatch) -> None:
    right = models._checked

    def stops(*args: Any) -> Iterator[Any]:
        yield next(right(*args))
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "_checked", stops)
    result = bench_models(options("mgr"), {})
    assert result.interrupted
    assert [row.name for row in result.rows] == ["prenorm"]
    assert result.rows[0].time is None


def test_interrupted_while_timing() -> None:
    """What was measured until then is kept."""
    done = 0

    def until() -> bool:
        nonlocal done
        done += 1
        if done == 5:  # twice between checks, then before rounds 2, 3 and 4
            raise KeyboardInterrupt
        return False

    result = bench_models(options("mgr", rounds=50), {}, until=until)
    assert result.interrupted
    assert result.rounds == 3
    assert all(len(row.ratios) == 3 for row in result.rows)


def test_no_time_left(clock: dict[str, float]) -> None:
    result = bench_models(options("mgr", "hc"), {}, until=lambda: True)
    assert [row.name for row in result.rows] == ["prenorm"]
    assert "what follows prenorm is left out" in result.notes[0]


def test_every_design_runs() -> None:
    """The default ones on a real clock, one round."""
    result = bench_models(options(*models.DESIGNS, rounds=1), {})
    assert [row.failed for row in result.rows] == [""] * 10
    assert result.rounds == 1


def test_backends_share_a_model_and_operators_decide() -> None:
    found = subjects(("hc", "peri-ln", "bhyt"), ("lean", "reference"))
    assert [subject.name for subject in found] == [
        "prenorm", "hc lean", "hc reference", "peri-ln", "bhyt lean", "bhyt reference",
    ]  # fmt: skip
    assert found[1].model is found[2].model
    assert has_operators(resolve("bhyt").decoder(TINY.config, 256))
    assert not has_operators(resolve("lns").decoder(TINY.config, 256))


def test_a_design_twice_runs_once() -> None:
    found = subjects(("mgr", "mgr-competitive", "prenorm"), ("lean",))
    assert [subject.name for subject in found] == ["prenorm", "mgr-competitive lean"]


def test_a_connection_starts_off_its_start() -> None:
    found = subjects(("attnres",), ("lean",))
    assert float(found[1].model.sites()[2].query.detach().abs().max()) > 0


def test_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"--backend triton can't run here.*lean and reference run everywhere"):
        usable_backends(("triton",), CPU)
    with pytest.raises(UsageError, match="--backend fast is not known; auto, reference"):
        usable_backends(("fast",), CPU)
    assert usable_backends(("lean", "lean"), CPU) == (("lean",), [])
    assert usable_backends((), CPU, training=False) == (("auto",), [])

    def without(name: str, device: str) -> str | None:
        return None if name == "lean" else "no compiler"

    monkeypatch.setattr(models, "why_not", without)
    assert usable_backends((), CPU) == (("lean",), ["backend compiled is left out: no compiler"])


@pytest.mark.parametrize("name", ["a", "b"])
def test_shapes(name: str) -> None:
    shape, named = shape_named(name)
    assert named == name
    assert shape.hidden % 8 == 0
    assert abs(shape.hidden - shape.dim * 8 / 3) <= 4
    other, named = shape_named(name, dim=256, blocks=3)
    assert (other.dim, other.blocks, other.context, named) == (256, 3, shape.context, None)
    assert 256 // other.heads == {"a": 64, "b": 32}[name]
    assert shape_named(name, dim=shape.dim, heads=shape.heads)[1] == name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"blocks": 0}, "--blocks 0 is too small; 1 or more work"),
        ({"dim": 100, "heads": 3}, "--heads 3 does not make even heads of --dim 100; 1, 2, 5, 10, 25, 50 work"),
        ({"dim": 7}, "an even --dim works"),
    ],
)
def test_shapes_that_do_not_work(given: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError) as error:
        shape_named("a", **given)
    assert said in str(error.value)
