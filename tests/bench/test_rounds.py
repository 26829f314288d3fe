"""Interleaving, on a clock that the test moves."""

from __future__ import annotations

import gc

import pytest
import torch

from leadline.bench.rounds import Candidate, calls_for, on_clock, order, run_rounds, timer_for, what_is_timed


class FakeClock:
    """A clock that moves only when work is done."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def candidate(self, name: str, seconds: float, calls: int = 1) -> Candidate:
        def work() -> None:
            self.log.append(name)
            self.now += seconds

        def after() -> None:
            self.log.append(f"{name} after")
            self.now += 100.0

        return Candidate(name=name, call=work, after=after, calls=calls)


def test_every_candidate_once_a_round() -> None:
    clock = FakeClock()
    found = run_rounds([clock.candidate("a", 1.0), clock.candidate("b", 3.0)], 4, on_clock(clock), warm=2)
    assert found.seconds == {"a": [1.0] * 4, "b": [3.0] * 4}, "what comes after a turn is not timed"
    assert found.rounds == 4
    assert not found.interrupted
    turns = [name for name in clock.log if "after" not in name]
    assert len(turns) == 2 * (2 + 4)
    assert all(set(turns[i : i + 2]) == {"a", "b"} for i in range(0, len(turns), 2))


def test_a_turn_of_several_calls_is_divided() -> None:
    clock = FakeClock()
    found = run_rounds([clock.candidate("a", 0.5, calls=4)], 2, on_clock(clock), warm=0)
    assert found.seconds == {"a": [0.5, 0.5]}
    assert clock.log == ["a"] * 4 + ["a after"] + ["a"] * 4 + ["a after"]


def test_the_order_changes() -> None:
    orders = [order(4, number) for number in range(8)]
    assert all(sorted(found) == [0, 1, 2, 3] for found in orders)
    assert {found[0] for found in orders} == {0, 1, 2, 3}, "everyone is first at some time"
    before = {(found[i], found[i + 1]) for found in orders for i in range(3)}
    assert all(len({first for first, second in before if second == one}) > 1 for one in range(4))


def test_an_interruption_keeps_finished_rounds() -> None:
    clock = FakeClock()
    turns = 0

    def stops() -> None:
        nonlocal turns
        turns += 1
        clock.now += 2.0
        if turns == 4:
            raise KeyboardInterrupt

    found = run_rounds([clock.candidate("a", 1.0), Candidate(name="b", call=stops)], 9, on_clock(clock), warm=1)
    assert found.interrupted
    assert found.seconds == {"a": [1.0, 1.0], "b": [2.0, 2.0]}
    assert gc.isenabled()


def test_an_end_to_the_time() -> None:
    clock = FakeClock()
    found = run_rounds(
        [clock.candidate("a", 1.0)], 50, on_clock(clock), warm=0, until=lambda: clock.log.count("a") >= 3
    )
    assert found.seconds == {"a": [1.0] * 3}
    assert not found.interrupted


def test_one_round_is_always_made() -> None:
    clock = FakeClock()
    assert run_rounds([clock.candidate("a", 1.0)], 5, on_clock(clock), until=lambda: True).rounds == 1


def test_progress() -> None:
    clock, said = FakeClock(), []
    run_rounds([clock.candidate("a", 1.0)], 2, on_clock(clock), say=said.append)
    assert [text.split("  ")[0] for text in said] == ["round 1/2", "round 2/2"]


def test_nothing_to_time() -> None:
    assert run_rounds([], 3, on_clock(FakeClock())).rounds == 0


@pytest.mark.parametrize(("seconds", "calls"), [(1.0, 1), (0.01, 3), (1e-9, 1000)])
def test_how_many_calls_fill_a_turn(seconds: float, calls: int) -> None:
    clock = FakeClock()
    assert calls_for(clock.candidate("a", seconds).call, on_clock(clock), 0.03) == calls


def test_clocks() -> None:
    cpu = torch.device("cpu")
    assert timer_for(cpu, "wall")(lambda: None) >= 0
    assert timer_for(cpu, "process")(lambda: None) >= 0
    assert what_is_timed(cpu, "wall") != what_is_timed(cpu, "process") != what_is_timed(torch.device("cuda"), "wall")
