from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from toy_stack import Batch, ToyStack, rows

from leadline.errors import LeadlineError
from leadline.probes import LossRise, ablation
from leadline.probes.ablation import sequence_losses


def loss(size: float) -> float:
    """Of logits that are `size` at the target and 0 at the other of two tokens."""
    return math.log1p(math.exp(-size))


def test_every_unit_of_a_linear_stack() -> None:
    """Blocks multiply by 4 (2 · 2), 1 (1 · 1) and 3 (3 · 1); the stream starts at 0.1."""
    eye, zero = torch.eye(2), torch.zeros(2, 2)
    stack = ToyStack(0.1 * eye, [eye, eye, zero, zero, 2 * eye, zero], sublayers_per_block=2)
    found = ablation(stack, rows([0, 1], [1, 1, 0]), bytes_per_token=2.0)
    whole = loss(1.2)
    assert found["loss"] == pytest.approx(whole)
    assert found["bits_per_byte"] == pytest.approx(whole / math.log(4))
    assert found["tokens"] == 5
    assert found["sequences"] == 2
    blocks = [loss(0.3) - whole, 0, loss(0.4) - whole]
    assert found["blocks"]["nats"] == pytest.approx(blocks, abs=1e-6)
    assert found["blocks"]["bits_per_byte"] == pytest.approx([rise / math.log(4) for rise in blocks], abs=1e-6)
    halves = [[loss(0.6) - whole] * 2, [0, 0], [loss(0.4) - whole, 0]]
    assert found["sublayers"]["nats"] == [pytest.approx(pair, abs=1e-6) for pair in halves]
    # All tokens have one loss, so the interval has no width.
    assert found["blocks"]["nats_low"] == pytest.approx(blocks, abs=1e-6)
    assert found["blocks"]["nats_high"] == pytest.approx(blocks, abs=1e-6)
    assert stack.passes == 2 * (1 + 3 + 6)


def test_a_block_that_does_nothing_is_worth_exactly_nothing() -> None:
    stack = ToyStack(torch.eye(3), [torch.zeros(3, 3), torch.eye(3)])
    found = ablation(stack, rows([0, 1, 2], [1], [2, 2]))
    for name in ("nats", "nats_low", "nats_high"):
        assert found["blocks"][name][0] == 0.0
    assert found["blocks"]["nats"][1] > 0.1


def test_one_kind_alone() -> None:
    stack = ToyStack(torch.eye(3), [torch.eye(3)])
    found = ablation(stack, rows([0]), kinds=("block",))
    assert found["sublayers"] is None
    assert found["blocks"]["nats_low"] == [None]


def test_no_tokens_is_an_error_and_modes_come_back() -> None:
    stack = ToyStack(torch.eye(3), [torch.eye(3)])
    stack.model.train()
    with pytest.raises(LeadlineError, match="no tokens"):
        ablation(stack, [])
    assert stack.model.training


def test_losses_of_sequences() -> None:
    logits = torch.zeros(2, 3, 4)
    logits[1] = torch.tensor([0.0, 0.0, 0.0, math.log(3)])
    targets = torch.full((2, 3), 3)
    assert sequence_losses(logits, targets).tolist() == pytest.approx([3 * math.log(4), 3 * math.log(2)])


def test_the_interval_is_that_of_the_mean_over_sequences() -> None:
    """500 sequences whose rise is normal around 0.3 with deviation 1: the mean's 95 % interval is ±1.96/√500."""
    random = np.random.default_rng(0)
    rise = LossRise(2, seed=3)
    rises = random.normal(0.3, 1.0, 500)
    for part in np.split(rises, 10):
        part = torch.tensor(part)
        rise.add([torch.zeros(50), part, torch.zeros(50)], 1)
    (low, high), nothing = rise.intervals()
    half = 1.96 * rises.std() / math.sqrt(500)
    assert low == pytest.approx(rises.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(rises.mean() + half, abs=0.1 * half)
    assert nothing == (0.0, 0.0)
    assert rise.rises() == [pytest.approx(rises.mean()), 0.0]


def test_the_interval_is_the_same_every_time_and_covers_its_value() -> None:
    generator = torch.Generator().manual_seed(0)
    stack = ToyStack(torch.randn(6, 6, generator=generator), [0.5 * torch.randn(6, 6, generator=generator)] * 2)
    batches = [Batch(*torch.randint(0, 6, (2, 4, 3), generator=generator)) for _ in range(3)]
    first, again = ablation(stack, batches, seed=1), ablation(stack, batches, seed=1)
    assert first == again
    assert first["blocks"]["nats_low"] != ablation(stack, batches, seed=2)["blocks"]["nats_low"]
    for low, value, high in zip(*(first["blocks"][n] for n in ("nats_low", "nats", "nats_high")), strict=True):
        assert low < value < high
