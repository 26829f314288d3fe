"""Healing lowers the loss, is repeatable, and leaves everything else as it was."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch

from leadline.errors import LeadlineError, UsageError
from leadline.hub import heldout_batches
from leadline.pruning import EvaluationSettings, Healing, dataset_for, heal, open_model, quality
from leadline.pruning.healing import rate_at
from leadline.stacks import Stack, stack_of

READING = EvaluationSettings(context=16, stride=16, tokens=128)


def healing(**more: Any) -> Healing:
    return Healing(**{"tokens": 10 * 64, "learning_rate": 0.01, "batch_size": 4, "context": 16, **more})


def copied(stack: Stack) -> Stack:
    return stack_of(copy.deepcopy(stack.model))


def test_it_lowers_the_loss_and_is_repeatable(saved: Any, trained: Any) -> None:
    opened = open_model(saved("prenorm"))
    data = dataset_for(opened, str(trained.data))
    text = heldout_batches(opened, data, **dataclasses.asdict(READING))
    one, two, other = (copied(opened.stack) for _ in range(3))
    told: list[tuple[int, int]] = []
    heal(one, data.train, healing(), lambda step, steps, loss: told.append((step, steps)))
    heal(two, data.train, healing())
    heal(other, data.train, healing(seed=1))
    assert told == [(step, 10) for step in range(1, 11)]
    assert quality(one, text) == quality(two, text)
    assert quality(one, text) != quality(other, text)
    assert quality(one, text).loss < quality(opened.stack, text).loss
    assert not one.model.training
    assert all(p.grad is None for p in one.model.parameters())


def test_frozen_parameters_come_back_frozen(saved: Any, trained: Any) -> None:
    opened = open_model(saved("prenorm"))
    stack = copied(opened.stack)
    stack.model.requires_grad_(False)
    heal(stack, dataset_for(opened, str(trained.data)).train, healing(tokens=64))
    assert not any(p.requires_grad for p in stack.model.parameters())


def test_half_precision_is_trained_in_float32(saved: Any, trained: Any) -> None:
    opened = open_model(saved("prenorm"))
    data = dataset_for(opened, str(trained.data))
    stack = copied(opened.stack)
    stack.model.bfloat16()
    stack.model.register_buffer("table", torch.ones(2, dtype=torch.bfloat16))
    buffers = {name: b.dtype for name, b in stack.model.named_buffers()}
    before = [p.clone() for p in stack.model.parameters()]
    seen: set[torch.dtype] = set()
    rate = healing(learning_rate=1e-2)
    heal(stack, data.train, rate, lambda step, steps, loss: seen.update(p.dtype for p in stack.model.parameters()))
    assert seen == {torch.float32}
    assert {p.dtype for p in stack.model.parameters()} == {torch.bfloat16}
    assert {name: b.dtype for name, b in stack.model.named_buffers()} == buffers
    assert any(not torch.equal(p, b) for p, b in zip(stack.model.parameters(), before, strict=True))


def test_a_loss_that_is_not_finite(saved: Any, trained: Any) -> None:
    opened = open_model(saved("prenorm"))
    stack = copied(opened.stack)
    with torch.no_grad():
        next(stack.model.parameters()).fill_(torch.nan)
    with pytest.raises(LeadlineError, match="healing step 1 is not finite; a lower --heal-lr"):
        heal(stack, dataset_for(opened, str(trained.data)).train, healing())


def test_the_rate_rises_then_falls_to_a_tenth() -> None:
    rates = [rate_at(step, 100) for step in range(1, 101)]
    assert rates[0] == pytest.approx(1 / 5)
    assert max(rates) == rates[4] == 1.0
    assert rates[-1] == pytest.approx(0.1)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rate_at(1, 1) == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "--heal-tokens 0"),
        ({"learning_rate": 0.0}, "--heal-lr 0"),
        ({"learning_rate": -1.0}, "-1"),
        ({"learning_rate": float("nan")}, "--heal-lr nan"),
        ({"learning_rate": 1e38}, r"--heal-lr 1e\+38 .*, to 1000, works"),
    ],
)
def test_values_that_do_not_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        healing(**options)


def test_one_token_is_one_step() -> None:
    assert healing(tokens=1).steps == 1
