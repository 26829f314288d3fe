from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from toy_stack import Batch, ToyStack, rows

from leadline.errors import LeadlineError
from leadline.probes import GradientDiversity, gradient_effective_rank, gradient_norm, gradients
from leadline.probes.gradients import Presence, presence, shares


def stack_of_three() -> ToyStack:
    generator = torch.Generator().manual_seed(0)
    matrices = [0.3 * torch.randn(4, 4, generator=generator) for _ in range(6)]
    return ToyStack(torch.randn(4, 4, generator=generator), matrices, sublayers_per_block=2)


def own_gradients(stack: ToyStack, batch: Batch) -> list[torch.Tensor]:
    loss = nn.functional.cross_entropy(stack.logits(batch.tokens).flatten(0, 1), batch.targets.flatten())
    return list(torch.autograd.grad(loss, list(stack.model.matrices)))


def test_norms_and_shares_against_autograd() -> None:
    stack, batches = stack_of_three(), rows([0, 1, 2], [3, 3], [1])
    per_batch = [own_gradients(stack, batch) for batch in batches]
    sublayers = [sum(float(grads[i].norm()) for grads in per_batch) / 3 for i in range(6)]
    blocks = [sum(math.hypot(float(g[i].norm()), float(g[i + 1].norm())) for g in per_batch) / 3 for i in (0, 2, 4)]
    found = gradients(stack, batches)
    assert found["batches"] == found["rank_batches"] == 3
    assert found["blocks"]["norm"] == pytest.approx(blocks, rel=1e-6)
    assert [norm for pair in found["sublayers"]["norm"] for norm in pair] == pytest.approx(sublayers, rel=1e-6)
    assert found["blocks"]["share"] == pytest.approx([norm / sum(blocks) for norm in blocks])
    assert sum(share for pair in found["sublayers"]["share"] for share in pair) == pytest.approx(1)
    assert found["blocks"]["parameters"] == [32] * 3
    assert found["blocks"]["norm_per_parameter"] == pytest.approx([norm / math.sqrt(32) for norm in blocks])
    assert found["blocks"]["missing"] == found["blocks"]["zero"] == [0] * 3


def test_effective_rank_and_cosine_against_svd() -> None:
    stack, batches = stack_of_three(), rows([0, 1, 2, 3], [3, 3, 0], [1, 2])
    per_batch = [own_gradients(stack, batch) for batch in batches]
    found = gradients(stack, batches, rank_batches=2)

    def rank(matrix: torch.Tensor) -> float:
        share = torch.linalg.svdvals(matrix.double())
        share = share / share.sum()
        return float(torch.exp(-(share * share.log()).sum()))

    expected = [sum(rank(g[i]) for g in per_batch[:2] for i in pair) / 4 for pair in ((0, 1), (2, 3), (4, 5))]
    assert found["blocks"]["effective_rank"] == pytest.approx(expected, rel=1e-4)
    for block in range(3):
        flat = torch.stack([torch.cat([g.flatten() for g in grads[2 * block : 2 * block + 2]]) for grads in per_batch])
        unit = nn.functional.normalize(flat, dim=1)
        cosine = (float((unit @ unit.T).sum()) - 3) / 6
        assert found["blocks"]["cosine"][block] == pytest.approx(cosine, abs=1e-6)


def test_the_models_own_gradients_come_back() -> None:
    stack = stack_of_three()
    mine = torch.full((4, 4), 7.0)
    stack.model.matrices[0].grad = mine
    stack.model.train()
    gradients(stack, rows([0, 1]))
    assert stack.model.matrices[0].grad is mine
    assert bool((mine == 7).all())
    assert stack.model.matrices[1].grad is None
    assert stack.model.training
    with pytest.raises(IndexError):
        gradients(stack, rows([99]))
    assert stack.model.matrices[0].grad is mine


def test_a_shared_block_counts_once() -> None:
    shared = nn.Parameter(0.1 * torch.eye(4))
    stack = ToyStack(
        torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), [shared, 0.1 * torch.eye(4), shared]
    )
    found = gradients(stack, rows([0, 1, 2]))
    assert found["blocks"]["parameters"] == [16, 16, 0]
    assert found["blocks"]["norm"][2] is None
    assert found["blocks"]["share"][2] is None
    assert sum(found["blocks"]["share"][:2]) == pytest.approx(1)
    assert found["blocks"]["norm"][0] == pytest.approx(float(own_gradients(stack, rows([0, 1, 2])[0])[0].norm()))


def test_no_gradient_is_none_and_a_zero_gradient_is_zero() -> None:
    """Block 0 is frozen; the embedding of the only token is zero, so every gradient of a matrix is exactly zero."""
    stack = ToyStack(torch.zeros(2, 2), [torch.eye(2), torch.eye(2)])
    stack.model.matrices[0].requires_grad_(False)
    found = gradients(stack, rows([0], [1]))
    assert found["blocks"]["norm"] == [None, 0.0]
    assert found["blocks"]["missing"] == [1, 0]
    assert found["blocks"]["zero"] == [0, 1]
    assert found["blocks"]["effective_rank"] == [None, None]
    assert found["blocks"]["cosine"] == [None, 0.0]
    assert found["blocks"]["share"] == [None, None]


def test_a_gradient_that_is_zero_in_one_batch_only_is_not_counted_as_zero() -> None:
    stack = ToyStack(torch.tensor([[0.0, 0.0], [1.0, 2.0]]), [torch.eye(2)])
    assert gradients(stack, rows([0], [1]))["blocks"]["zero"] == [0]


def test_frozen_models_and_no_tokens_are_errors() -> None:
    stack = stack_of_three()
    with pytest.raises(LeadlineError, match="no tokens"):
        gradients(stack, [])
    stack.model.requires_grad_(False)
    with pytest.raises(LeadlineError, match="needs a gradient"):
        gradients(stack, rows([0]))


def test_three_kinds_of_nothing() -> None:
    kinds = [None, torch.zeros(0, 4), torch.zeros(2, 2), torch.eye(2)]
    assert [presence(kind) for kind in kinds] == list(Presence)
    assert gradient_norm([None, torch.zeros(0, 4)]) is None
    assert gradient_norm([torch.zeros(2, 2)]) == 0.0
    assert gradient_norm(kinds) == pytest.approx(math.sqrt(2))


def test_the_norm_does_not_overflow() -> None:
    assert gradient_norm([torch.full((2,), 1e30), torch.full((2,), 1e30)]) == pytest.approx(2e30)


def test_effective_rank_weighs_by_entries_and_leaves_vectors_out() -> None:
    wide, small = torch.eye(3, 6), torch.ones(2, 2)
    assert gradient_effective_rank([wide, torch.ones(50), small, None]) == pytest.approx((3 * 18 + 1 * 4) / 22)
    assert gradient_effective_rank([torch.zeros(3, 3), torch.ones(4)]) is None
    kernel = torch.eye(4).view(4, 2, 2)
    assert gradient_effective_rank([kernel]) == pytest.approx(4)


def test_diversity_of_known_gradients() -> None:
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 5.0])

    def cosine(*batches: list[torch.Tensor | None]) -> float | None:
        diversity = GradientDiversity()
        for batch in batches:
            diversity.add(batch)
        return diversity.cosine()

    assert cosine([a], [b]) == pytest.approx(0, abs=1e-7)
    assert cosine([a], [3 * a], [0.1 * a]) == pytest.approx(1)
    assert cosine([a], [-a]) == pytest.approx(-1)
    assert cosine([a, b], [a, None]) == pytest.approx(1 / math.sqrt(26))
    assert cosine([a], [a], [b]) == pytest.approx(1 / 3)
    assert cosine([a], [torch.zeros(2)]) == 0
    assert cosine([a], [None]) is None
    assert cosine([a]) is None
    assert cosine() is None


def test_diversity_keeps_one_copy() -> None:
    diversity = GradientDiversity()
    for seed in range(20):
        diversity.add([torch.randn(8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)])
    assert sum(held.numel() for held in diversity._sum) == 64
    assert abs(diversity.cosine()) < 0.1


def test_shares_of_nothing() -> None:
    assert shares([None, 0.0]) == [None, None]
    assert shares([1.0, None, 3.0]) == [0.25, None, 0.75]
