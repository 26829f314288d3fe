from __future__ import annotations

import math

import pytest
import torch
from toy_stack import ToyStack, rows

from leadline.probes import LogitLens, run_measures
from leadline.stacks import Unit


def measured(stack: ToyStack, batches: list, bytes_per_token: float = 1.0) -> dict:
    lens = LogitLens(stack, bytes_per_token)
    run_measures(stack, batches, [lens])
    return lens.result()


def test_every_exit_of_a_linear_stack() -> None:
    """Two blocks double one-hot embeddings of 4 tokens: logits are 2 and 4 at the token, 0 elsewhere."""
    stack = ToyStack(torch.eye(4), [torch.eye(4)] * 2)
    found = measured(stack, rows([0, 1, 2], [3]), bytes_per_token=2.0)

    def loss(size: float) -> float:
        return math.log(math.exp(size) + 3) - size

    assert found["loss"] == pytest.approx([loss(2), loss(4)])
    assert found["bits_per_byte"] == pytest.approx([loss(2) / math.log(4), loss(4) / math.log(4)])
    assert found["agreement"] == [1, 1]
    right = [math.exp(size) / (math.exp(size) + 3) for size in (2, 4)]
    other = [(1 - p) / 3 for p in right]
    entropy = [-(p * math.log(p) + 3 * q * math.log(q)) for p, q in zip(right, other, strict=True)]
    assert found["entropy"] == pytest.approx(entropy)
    kl = right[1] * math.log(right[1] / right[0]) + 3 * other[1] * math.log(other[1] / other[0])
    assert found["kl"] == [pytest.approx(kl), 0]
    assert found["final"] == {
        "loss": pytest.approx(loss(4)),
        "bits_per_byte": pytest.approx(loss(4) / math.log(4)),
        "entropy": pytest.approx(entropy[1]),
    }


def test_the_norm_uses_each_exits_own_statistics() -> None:
    """Behind RMSNorm a stack that only scales says the same at every exit; with the last one's size it would not."""
    stack = ToyStack(torch.tensor([[0.1, 0.0], [0.0, 0.1]]), [9 * torch.eye(2)] * 2, normed=True)
    found = measured(stack, rows([0, 1]))
    assert found["loss"][0] == pytest.approx(found["final"]["loss"])
    assert found["kl"] == pytest.approx([0, 0], abs=1e-6)
    stack.normed = False
    assert measured(stack, rows([0, 1]))["kl"][0] > 0.1


def test_agreement_is_a_share() -> None:
    """The last block turns token 1 to token 0 and leaves token 0."""
    last = torch.tensor([[0.0, 0.0], [3.0, -1.0]])
    stack = ToyStack(torch.eye(2), [torch.zeros(2, 2), last])
    assert measured(stack, rows([0, 1, 1, 1]))["agreement"] == [0.25, 1.0]


def test_many_tokens_are_taken_in_parts() -> None:
    stack = ToyStack(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)), [torch.eye(3)])
    tokens = torch.randint(0, 3, (700,), generator=torch.Generator().manual_seed(1)).tolist()
    whole, parts = measured(stack, rows(tokens)), measured(stack, rows(*[[token] for token in tokens]))
    assert whole["tokens"] == parts["tokens"] == 700
    assert whole["loss"] == pytest.approx(parts["loss"])


def test_a_block_left_out_is_none() -> None:
    stack = ToyStack(torch.eye(2), [torch.eye(2)] * 2)
    with stack.skipping([Unit(0)]):
        found = measured(stack, rows([0]))
    assert found["loss"][0] is None
    assert found["bits_per_byte"][0] is None
    assert found["loss"][1] == pytest.approx(found["final"]["loss"])


def test_an_impossible_token_gives_no_nan() -> None:
    """A model may rule tokens out with logits of minus infinity."""

    class Masked(ToyStack):
        def lens(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden.masked_fill(torch.tensor([False, False, True]), -math.inf)

    found = measured(Masked(torch.eye(3), [torch.eye(3)]), rows([0, 1]))
    assert found["kl"] == [0.0]
    assert math.isfinite(found["entropy"][0])


def test_a_model_that_diverged_agrees_with_nothing() -> None:
    """Of NaN the first token would be the likeliest, at every exit."""
    found = measured(ToyStack(torch.eye(2), [math.nan * torch.eye(2)] * 2), rows([0, 1]))
    assert all(math.isnan(found[name][0]) for name in ("loss", "kl", "agreement", "entropy"))
