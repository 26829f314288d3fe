from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from toy_stack import ToyStack, rows

from leadline.probes import Activations, run_measures
from leadline.probes.activations import Moments, Sizes


def sizes_of(*parts: torch.Tensor) -> dict[str, float | None]:
    sizes = Sizes()
    for part in parts:
        sizes.add(part)
    return sizes.result()


def test_a_doubling_stack() -> None:
    """Every block adds what it reads: sizes double, and the update is as large as the residual."""
    stack = ToyStack(2.0 * torch.eye(4), [torch.eye(4)] * 3)
    measure = Activations(stack)
    run_measures(stack, rows([0, 1, 2], [3]), [measure])
    found = measure.result()
    assert found["tokens"] == 4
    assert found["input"]["rms"] == pytest.approx(1.0)
    assert found["blocks"]["rms"] == pytest.approx([2, 4, 8])
    assert found["blocks"]["max"] == pytest.approx([4, 8, 16])
    assert found["sublayers"]["rms"] == [pytest.approx([1]), pytest.approx([2]), pytest.approx([4])]
    assert found["residual_to_update"] == pytest.approx([1, 1, 1])


def test_sublayers_apart() -> None:
    """Attention adds x, the MLP adds half of what it reads."""
    stack = ToyStack(torch.full((1, 4), 1.0), [torch.eye(4), 0.5 * torch.eye(4)], sublayers_per_block=2)
    measure = Activations(stack)
    run_measures(stack, rows([0, 0]), [measure])
    found = measure.result()
    assert found["sublayers"]["rms"] == [pytest.approx([1.0, 1.0])]
    assert found["blocks"]["rms"] == pytest.approx([3.0])
    assert found["residual_to_update"] == pytest.approx([0.5])


def test_a_block_that_does_nothing_has_no_ratio() -> None:
    stack = ToyStack(torch.eye(4), [torch.zeros(4, 4), torch.eye(4)])
    measure = Activations(stack)
    run_measures(stack, rows([0, 1]), [measure])
    assert measure.residual_to_update() == [None, pytest.approx(1.0)]
    assert measure.result()["sublayers"]["kurtosis"][0] == [None]
    assert measure.result()["sublayers"]["massive_ratio"][0] == [None]


def test_tokens_of_zeros_and_tokens_left_alone_in_the_ratio() -> None:
    """Token 0 is zero; token 1 stays; token 2 doubles: the mean relative update of the two that count is 1/2."""
    embedding = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    stack = ToyStack(embedding, [torch.tensor([[0.0, 0.0], [0.0, 1.0]])])
    measure = Activations(stack)
    run_measures(stack, rows([0, 1, 2]), [measure])
    assert measure.residual_to_update() == pytest.approx([2.0])


def test_all_five_numbers_against_numpy_and_scipy() -> None:
    x = torch.randn(3, 7, 32, generator=torch.Generator().manual_seed(0)).exp() * 3
    found = sizes_of(x[:1], x[1:, :2], x[1:, 2:])
    flat = x.double().flatten().numpy()
    assert found["rms"] == pytest.approx(float(x.square().mean(-1).sqrt().mean()), rel=1e-6)
    assert found["max"] == pytest.approx(np.abs(flat).max())
    assert found["median"] == pytest.approx(np.median(np.abs(flat)), rel=1 / 256 + 1e-6)
    assert found["kurtosis"] == pytest.approx(stats.kurtosis(flat), rel=1e-9)
    assert found["massive_ratio"] == pytest.approx(found["max"] / found["median"])


@pytest.mark.parametrize("size", [1e-30, 3e-5, 0.7, 1.0, 1.99, 300.0, 1e30])
def test_the_median_is_within_its_error(size: float) -> None:
    assert sizes_of(torch.full((2, 3), -size))["median"] == pytest.approx(size, rel=1 / 256 + 1e-6)


def test_the_median_of_an_even_count_lies_between() -> None:
    assert sizes_of(torch.tensor([[1.0, 2.0, 4.0, 64.0]]))["median"] == pytest.approx(3.0, rel=1 / 128)
    assert sizes_of(torch.tensor([[0.0, 0.0, 0.0, 64.0]]))["median"] == 0.0
    assert sizes_of(torch.tensor([[0.0, 0.0, 0.0, 64.0]]))["massive_ratio"] is None


def test_a_massive_activation_is_seen() -> None:
    x = torch.ones(1, 8, 16)
    x[0, 0, 3] = 1000.0
    assert sizes_of(x)["massive_ratio"] == pytest.approx(1000, rel=1 / 128)


def test_moments_keep_their_digits_far_from_zero() -> None:
    """Sums of fourth powers would lose all digits of a variance 1e-6 beside a mean of 1000."""
    x = 1000 + 1e-3 * torch.randn(4, 500, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moments = Moments()
    for part in (x[:1, :100], x[:1, 100:], x[1:]):
        moments.add(part)
    assert moments.excess_kurtosis() == pytest.approx(stats.kurtosis(x.flatten().numpy()), abs=1e-5)


def test_constants_have_no_kurtosis() -> None:
    assert sizes_of(torch.full((5, 7), 0.1), torch.full((2, 7), 0.1))["kurtosis"] is None
    two_points = torch.tensor([[-1.0, 1.0]])
    assert sizes_of(two_points)["kurtosis"] == pytest.approx(-2.0)


def test_nothing_seen_is_none() -> None:
    assert set(sizes_of(torch.zeros(0, 4)).values()) == {None}


def test_bfloat16_is_measured_wide() -> None:
    x = torch.tensor([[1.0, 1.0, 1.0, 3.0]], dtype=torch.bfloat16)
    assert sizes_of(x)["rms"] == pytest.approx(math.sqrt(3.0), rel=1e-6)
