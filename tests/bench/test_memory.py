"""Bytes counted against what can be computed by hand."""

from __future__ import annotations

import pytest
import torch

from leadline.bench.memory import parameter_bytes, peak_bytes, saved_for_backward

CPU = torch.device("cpu")


def test_saved_bytes() -> None:
    x = torch.randn(100, 10)
    layer = torch.nn.Linear(10, 30)

    def forward() -> torch.Tensor:
        return layer(x).tanh().sum()

    assert saved_for_backward(forward, layer.parameters()) == 4 * (100 * 10 + 100 * 30)


def test_a_storage_counts_once_and_whole() -> None:
    x = torch.randn(100, 10, requires_grad=True)

    def part() -> torch.Tensor:
        return (x[:5] * x[5:10]).sum() + (x * x).sum()

    assert saved_for_backward(part, []) == 4 * 1000
    assert saved_for_backward(part, [x]) == 0, "a parameter is kept anyway"


def test_bytes_kept_elsewhere_count() -> None:
    x = torch.randn(10, requires_grad=True)
    assert saved_for_backward(lambda: x.exp().sum(), [x], lambda: 5) == 40 + 5


def test_saved_nothing() -> None:
    assert saved_for_backward(lambda: torch.randn(3).sum(), []) == 0


def test_the_peak_is_what_is_alive_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    def step() -> None:
        for _ in range(3):
            one = torch.empty(1 << 20, dtype=torch.uint8)
            two = torch.empty(1 << 19, dtype=torch.uint8)
            del one, two
        torch.empty(1 << 18, dtype=torch.uint8)

    assert peak_bytes(step, CPU) == pytest.approx((1 << 20) + (1 << 19), abs=4096)
    assert capfd.readouterr() == ("", "")


def test_the_peak_of_a_step_that_fails() -> None:
    def step() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        peak_bytes(step, CPU)


def test_parameter_bytes() -> None:
    one, shared = torch.zeros(10), torch.zeros(4, dtype=torch.float64)
    assert parameter_bytes([one, shared, shared[:2]]) == 40 + 32
