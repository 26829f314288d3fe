"""`leadline bench ops`, small and quick: checks decide whether there is a speed to show."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import pytest
import torch

from leadline.bench import bench_operators, operators, running
from leadline.bench.cases import CASES, Inputs, Maker, Sizes
from leadline.bench.operators import OperatorOptions, check, values_and_gradients
from leadline.bench.peers import PEERS, PeerCase
from leadline.bench.rounds import Timings
from leadline.bench.table import print_result
from leadline.connections import AttentionResiduals
from leadline.errors import UsageError

SMALL = Sizes(tokens=5, dim=12, count=4)


def options(*cases: str, **more: Any) -> OperatorOptions:
    return OperatorOptions(cases=cases, **{"sizes": SMALL, "backends": ("lean",), "rounds": 3, **more})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Replaces time: each candidate takes what is written here, else a second."""
    seconds: dict[str, float] = {}

    def run(candidates: Any, rounds: int, timer: object, **more: object) -> Timings:
        return Timings({c.name: [seconds.get(c.name, 1.0) * (n + 1) for n in range(rounds)] for c in candidates})

    monkeypatch.setattr(running, "run_rounds", run)
    monkeypatch.setattr(operators, "calls_for", lambda step, timer, seconds: 1)
    return seconds


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A depth attention that is wrong on lean."""
    case = CASES["depth attention"]

    def work(inputs: Inputs, backend: Any) -> Any:
        return [output * (1.01 if backend == "lean" else 1) for output in case.work(inputs, backend)]

    monkeypatch.setitem(CASES, case.name, dataclasses.replace(case, work=work))


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_right(name: str) -> None:
    result = bench_operators(options(name, check_only=True), {})
    assert [row.failed for row in result.rows] == [""] * len(result.rows)
    assert {"reference", "lean"} <= {row.label for row in result.rows}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_case_runs_in_every_dtype(name: str, dtype: torch.dtype) -> None:
    inputs = CASES[name].make(Maker(SMALL, dtype, torch.device("cpu")))
    values, names = values_and_gradients(lambda i: CASES[name].work(i, "lean"), inputs)
    assert len(values) == len(names) == len(set(names))
    assert values[0] is not None
    assert values[0].dtype == dtype
    assert all(value is not None for value in values), "every leaf has a gradient"
    assert CASES[name].rows(4) > 0


def test_a_block_is_read_in_one_phase_and_in_two(clock: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side, each checked; the case itself never reads ahead."""
    clock.update({"block of reads: lean": 4.0, "block of reads: lean, two phases": 3.0})
    result = bench_operators(options("block of reads"), {})
    assert [row.label for row in result.rows] == ["reference", "lean", "reference, two phases", "lean, two phases"]
    assert [row.failed for row in result.rows] == [""] * 4
    assert any(note.startswith("block of reads: lean, two phases takes 0.750") for note in result.notes)
    monkeypatch.setattr(AttentionResiduals, "prefetch", lambda *arguments: None)
    failed = [bool(row.failed) for row in bench_operators(options("block of reads"), {}).rows]
    assert failed == [False, False, True, True]


def test_inputs_are_the_same_numbers_in_every_dtype() -> None:
    for case in CASES.values():
        one, two = (
            case.make(Maker(SMALL, dtype, torch.device("cpu"))).leaves() for dtype in (torch.float32, torch.float64)
        )
        assert one.keys() == two.keys()
        assert all(torch.allclose(one[key].double(), two[key], atol=1e-6) for key in one)


def test_widened_inputs() -> None:
    inputs = CASES["block of reads"].make(Maker(SMALL, torch.bfloat16, torch.device("cpu")))
    wide = inputs.widened()
    assert inputs.leaves().keys() == wide.leaves().keys()
    assert all(tensor.dtype == torch.float64 for tensor in wide.leaves().values())
    assert all(torch.equal(inputs.leaves()[key].double(), tensor) for key, tensor in wide.leaves().items())


def test_speed_ups_and_targets(clock: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    clock.update({"depth attention: reference": 9.0, "depth attention: stacked read": 7.0})
    monkeypatch.setattr(OperatorOptions, "as_targeted", True)
    result = bench_operators(options("depth attention"), {})
    rows = {row.label: row for row in result.rows}
    assert rows["lean"].ratio is not None
    assert rows["lean"].ratio.median == pytest.approx(1 / 9)
    (verdict,) = rows["lean"].verdicts
    assert (verdict.what, verdict.target, verdict.met) == ("faster than stacked read", 6.0, True)
    assert verdict.found is not None
    assert verdict.found.median == pytest.approx(7.0)
    assert rows["stacked read"].verdicts == rows["reference"].verdicts == ()
    clock["depth attention: lean"] = 2.0
    assert bench_operators(options("depth attention"), {}).rows[1].verdicts[0].met is False


def test_targets_are_for_their_sizes(clock: dict[str, float]) -> None:
    result = bench_operators(options("depth attention"), {})
    assert all(row.verdicts == () for row in result.rows)
    assert any("targets are stated" in note for note in result.notes)


def test_no_speed_up_where_the_check_fails(clock: dict[str, float], broken: None) -> None:
    result = bench_operators(options("depth attention", "bounded tanh"), {})
    rows = {row.name: row for row in result.rows}
    bad = rows["depth attention: lean"]
    assert "output 0 is off by 1.0e-02" in bad.failed
    assert bad.time is None
    assert bad.ratio is None
    assert bad.verdicts == ()
    assert result.failed
    assert rows["depth attention: reference"].time is not None
    assert rows["bounded tanh: lean"].time is not None
    out = io.StringIO()
    print_result(result, out)
    (line,) = [text for text in out.getvalue().splitlines() if text.startswith("depth attention  lean")]
    assert "check failed" in line
    assert "[" not in line


def test_an_error_is_a_failed_check(clock: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    def work(inputs: Inputs) -> Any:
        raise RuntimeError("no such kernel\nmore")

    peer = PeerCase(case="depth attention", name="theirs", work=work)
    monkeypatch.setattr(operators, "PEERS", (peer,))
    result = bench_operators(options("depth attention"), {})
    assert result.rows[-1].failed == "RuntimeError: no such kernel"
    assert result.failed


def test_a_wrong_gradient_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(inputs: Inputs) -> Any:
        (mix,) = CASES["depth attention"].work(inputs, "reference")
        return [mix * 0.5 + (mix * 0.5).detach()]

    peer = PeerCase(case="depth attention", name="theirs", work=work)
    monkeypatch.setattr(operators, "PEERS", (peer,))
    subjects, _ = operators.subjects_of(CASES["depth attention"], (), options())
    assert check(subjects[-1], options()).startswith("the gradient of source0 is off by")


def test_peers(clock: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    absent = dataclasses.replace(PEERS[0], name="theirs", package="no-such-package")
    elsewhere = dataclasses.replace(PEERS[0], name="far", devices=("cuda",))
    monkeypatch.setattr(operators, "PEERS", (*PEERS[:1], absent, elsewhere))
    monkeypatch.setitem(__import__("leadline.bench.peers").bench.peers.IMPORTS, "no-such-package", "no_such_package")
    result = bench_operators(options("depth attention"), {})
    assert [row.label for row in result.rows] == ["reference", "lean", "stacked read"]
    assert "theirs is left out: no-such-package is not installed" in result.notes
    assert not any("far" in note for note in result.notes)
    without = bench_operators(options("depth attention", peers=False), {})
    assert [row.label for row in without.rows] == ["reference", "lean"]


def test_hyper_connections_does_what_we_say_it_does() -> None:
    """Where it is installed: its mHC against our statement of its maths."""
    pytest.importorskip("hyper_connections")
    subjects, _ = operators.subjects_of(CASES["mhc step"], (), options())
    assert check(next(subject for subject in subjects if subject.label == "hyper-connections"), options()) == ""


def test_it_is_plain_data(clock: dict[str, float]) -> None:
    found = json.loads(json.dumps(bench_operators(options("hc step"), {"cpu": "test"}).as_json(), allow_nan=False))
    assert found["options"]["sizes"] == {"tokens": 5, "dim": 12, "count": 4}
    assert [len(row["seconds"]) for row in found["rows"]] == [3, 3]
    assert found["rows"][1]["group"] == "hc step"


def test_one_real_run() -> None:
    result = bench_operators(options("bounded tanh", rounds=1, warm=0), {})
    assert all(row.time is not None for row in result.rows)


def test_interrupted(monkeypatch: pytest.MonkeyPatch, clock: dict[str, float]) -> None:
    right, seen = operators.check, []

    def stops(subject: Any, wish: Any) -> str:
        seen.append(subject.name)
        if subject.case == "hc step":
            raise KeyboardInterrupt
        return right(subject, wish)

    monkeypatch.setattr(operators, "check", stops)
    result = bench_operators(options("bounded tanh", "hc step", "mhc step"), {})
    assert result.interrupted
    assert {row.group for row in result.rows} == {"bounded tanh"}
    assert all(row.time is not None for row in result.rows)


def test_no_time_left(clock: dict[str, float]) -> None:
    result = bench_operators(options("bounded tanh", "hc step"), {}, until=lambda: True)
    assert {row.group for row in result.rows} == {"bounded tanh"}
    assert "hc step and what follows are left out: there was no time left" in result.notes


def test_bad_options() -> None:
    with pytest.raises(UsageError, match=r"operator 'depth atention' is not known; depth attention, .* Did you mean"):
        options("depth atention")
    with pytest.raises(UsageError, match="--tokens 0 is too small; 1 or more work"):
        OperatorOptions(sizes=Sizes(tokens=0))
