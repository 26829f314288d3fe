"""Timing warms up, waits for the device, takes turns, and forms ratios within rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from leadline.errors import UsageError
from leadline.pruning import Timing, compare_speed, open_model
from leadline.pruning.speed import interleaved


class Machine:
    """A clock, and work that takes the time it is told; what is launched counts only once the device is waited for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pending = 0.0
        self.log: list[str] = []
        self.calls = {"a": 0, "b": 0}

    def clock(self) -> float:
        return self.now

    def work(self, name: str, seconds: float, first: float = 0.0) -> Any:
        def call() -> None:
            self.log.append(name)
            self.calls[name] += 1
            self.pending += seconds + (first if self.calls[name] == 1 else 0.0)

        return call

    def wait(self) -> None:
        self.now += self.pending
        self.pending = 0.0


def test_warm_up_and_waiting() -> None:
    machine = Machine()
    calls = [machine.work("a", 1.0, first=100.0), machine.work("b", 0.5)]
    kept = interleaved(calls, rounds=4, warm=1, wait=machine.wait, clock=machine.clock)
    # Nothing of the slow first call, and all of what was still running when the call came back.
    assert kept == [[1.0] * 4, [0.5] * 4]
    assert machine.log[2:] == ["a", "b", "b", "a", "a", "b", "b", "a"]


def test_short_turns_are_repeated() -> None:
    machine = Machine()
    kept = interleaved([machine.work("a", 0.01)], rounds=2, warm=1, wait=machine.wait, clock=machine.clock)
    assert kept[0] == pytest.approx([0.01, 0.01])
    assert machine.calls["a"] == 1 + 2 * 5


def test_two_models(saved: Any) -> None:
    stack = open_model(saved("prenorm")).stack
    said: list[str] = []
    timing = Timing(batch_sizes=(1, 2), rounds=2, warm=1, prompt=8, tokens=3)
    found = compare_speed(stack, stack, timing, said.append)
    assert [(one["work"], one["batch_size"]) for one in found] == [
        ("prefill", 1),
        ("generation", 1),
        ("prefill", 2),
        ("generation", 2),
    ]
    for one in found:
        assert one["ratio_low"] <= one["ratio"] <= one["ratio_high"]
        assert len(one["ratios"]) == 2
        assert one["before"] > 0
    assert len(said) == 4
    assert all(p.grad is None for p in stack.model.parameters())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("options", [{"batch_sizes": ()}, {"batch_sizes": (0,)}, {"rounds": 0}, {"warm": 0}])
def test_values_that_do_not_work(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Timing(**options)


def test_the_least_that_works() -> None:
    assert Timing(batch_sizes=(1,), prompt=1, tokens=1, rounds=1, warm=1).batch_sizes == (1,)
