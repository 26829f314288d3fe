"""Scores on linear toy stacks, where every answer is known by hand."""

from __future__ import annotations

import math

import pytest
import torch
from toy_stack import ToyStack, rows

from leadline.data import Batch
from leadline.errors import LeadlineError, UsageError
from leadline.pruning.criteria import CRITERIA, ScoringInputs, check_criterion, rank
from leadline.stacks import Unit

EYE = torch.eye(2, dtype=torch.float64)
ZERO = torch.zeros(2, 2, dtype=torch.float64)
QUARTER = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
"""x + x @ QUARTER turns x by 45 degrees and makes it √2 longer."""


def stack(*matrices: torch.Tensor, sublayers: int = 1) -> ToyStack:
    return ToyStack(EYE.clone(), [m.clone() for m in matrices], sublayers)


def scores(criterion: str, toy: ToyStack, kind: str = "block", **more: object) -> tuple[float, ...]:
    return rank(criterion, kind, ScoringInputs(stack=toy, batches=rows([0, 1, 1], [1, 0, 1]), **more)).scores


def test_similarity_is_one_minus_the_cosine() -> None:
    # Nothing; doubling, which turns nothing; an eighth of a turn; a half turn.
    found = scores("similarity", stack(ZERO, EYE, QUARTER, -2 * EYE))
    assert found == pytest.approx((0.0, 0.0, 1 - math.sqrt(0.5), 2.0), abs=1e-12)


def test_similarity_of_sublayers_follows_the_stream() -> None:
    found = scores("similarity", stack(QUARTER, EYE, ZERO, -2 * EYE, sublayers=2), "sublayer")
    assert found == pytest.approx((1 - math.sqrt(0.5), 0.0, 0.0, 2.0), abs=1e-12)


def test_similarity_of_sublayers_needs_an_additive_stream() -> None:
    toy = stack(QUARTER, EYE, sublayers=2)
    watching = toy.watching

    def told_otherwise(watcher):
        block = watcher.on_block
        watcher.on_block = lambda index, before, after: block(index, before, 3 * after)
        return watching(watcher)

    toy.watching = told_otherwise
    with pytest.raises(UsageError, match="--unit block works"):
        scores("similarity", toy, "sublayer")


def test_zero_vectors_give_no_nan() -> None:
    # They count as orthogonal to any vector, as they do in the probes.
    toy = ToyStack(torch.zeros(2, 2), [ZERO.float(), EYE.float()])
    assert scores("similarity", toy) == (1.0, 1.0)
    assert scores("angular", toy) == (0.5, 0.5)
    assert scores("similarity", stack(-EYE, EYE)) == (1.0, 1.0)


def test_small_turns_keep_their_digits_in_float32() -> None:
    toy = ToyStack(torch.eye(2), [1e-3 * QUARTER.float(), 2e-3 * QUARTER.float()])
    assert scores("angular", toy) == pytest.approx((1e-3 / math.pi, 2e-3 / math.pi), rel=1e-3)
    assert scores("similarity", toy) == pytest.approx((0.5e-6, 2e-6), rel=2e-3)


def test_angular_takes_the_best_window() -> None:
    # An eighth of a turn and back: over two blocks nothing has turned, though each of them turns.
    toy = stack(QUARTER, 0.1 * QUARTER, QUARTER, -QUARTER, 0.1 * QUARTER)
    ranking = rank("angular", "block", ScoringInputs(stack=toy, batches=rows([0, 1])), counts=(2,))
    small = math.atan(0.1) / math.pi
    assert ranking.scores == pytest.approx((0.25, small, 0.25, 0.25, small))
    assert ranking.windows is not None
    assert ranking.windows[2] == pytest.approx((0.25 + small, 0.25 + small, 0.0, 0.25 - small), abs=1e-7)
    assert ranking.choose(2, toy.units("block")) == [Unit(2), Unit(3)]
    assert ranking.choose(2, toy.units("block")[3:]) == [Unit(3), Unit(4)]
    assert ranking.choose(0, toy.units("block")) == []
    with pytest.raises(UsageError, match="leave no 2 contiguous blocks"):
        ranking.choose(2, [Unit(0), Unit(2)])


def test_magnitude_sums_absolute_weights() -> None:
    assert scores("magnitude", stack(QUARTER, -3 * EYE, ZERO)) == (2.0, 6.0, 0.0)
    assert scores("magnitude", stack(QUARTER, -3 * EYE, sublayers=2)) == (8.0,)


def test_taylor_is_the_first_order_change() -> None:
    toy = stack(0.3 * EYE, QUARTER)
    batches = rows([0, 1, 1], [1, 0])
    found = rank("taylor", "block", ScoringInputs(stack=toy, batches=batches)).scores
    total = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        logits = toy.logits(batch.tokens).flatten(0, 1)
        total = total + torch.nn.functional.cross_entropy(logits, batch.targets.flatten(), reduction="sum") / 5
    grads = torch.autograd.grad(total, list(toy.model.matrices))
    expected = [float((m.detach() * g).abs().sum()) for m, g in zip(toy.model.matrices, grads, strict=True)]
    assert found == pytest.approx(expected, rel=1e-12)
    assert all(p.grad is None for p in toy.model.parameters())


def test_taylor_sums_over_batches_before_the_absolute_value() -> None:
    # The same text as one batch or as several gives the same score.
    toy = stack(0.3 * QUARTER, EYE)
    one = rank("taylor", "block", ScoringInputs(stack=toy, batches=rows([0, 1, 1, 0]))).scores
    several = rank("taylor", "block", ScoringInputs(stack=toy, batches=rows([0], [1], [1], [0]))).scores
    assert several == pytest.approx(one, rel=1e-12)


def test_taylor_is_a_mean_over_the_targets_that_count() -> None:
    toy = stack(0.3 * QUARTER, EYE)
    (batch,) = rows([0, 1, 1, 0])
    targets = torch.cat((batch.targets, torch.full_like(batch.targets, -100)))
    padded = Batch(torch.cat((batch.tokens, batch.tokens)), targets)
    one, other = (
        rank("taylor", "block", ScoringInputs(stack=toy, batches=[given])).scores for given in (batch, padded)
    )
    assert other == pytest.approx(one, rel=1e-12)


def test_taylor_of_frozen_weights_leaves_them_frozen() -> None:
    toy = stack(0.3 * EYE, QUARTER)
    expected = scores("taylor", toy)
    toy.model.requires_grad_(False)
    assert scores("taylor", toy) == expected
    assert not any(p.requires_grad for p in toy.model.parameters())


def test_ablation_is_the_rise_of_the_loss() -> None:
    toy = stack(3 * EYE, ZERO, -0.5 * EYE)
    found = scores("ablation", toy)

    def loss(scale: float) -> float:
        return math.log(1 + math.exp(-scale))

    assert found == pytest.approx((loss(0.5) - loss(2), 0.0, loss(4) - loss(2)))
    assert found[2] < 0


def test_random_depends_on_the_seed_alone() -> None:
    toy = stack(EYE, EYE, EYE)
    assert scores("random", toy, seed=3) == scores("random", stack(ZERO, ZERO, ZERO), seed=3)
    assert scores("random", toy, seed=3) != scores("random", toy, seed=4)


def test_cfp_takes_the_record() -> None:
    toy = stack(EYE, EYE, EYE, EYE, sublayers=2)
    gradient = {
        "share": [0.7, 0.3],
        "share_per_parameter": [0.4, 0.6],
        "sublayer_share": [0.1, 0.2, 0.3, 0.4],
        "sublayer_share_per_parameter": [0.4, 0.3, 0.2, 0.1],
    }
    assert scores("cfp", toy, gradient=gradient) == (0.7, 0.3)
    assert scores("cfp", toy, gradient=gradient, normalised=True) == (0.4, 0.6)
    assert scores("cfp", toy, "sublayer", gradient=gradient) == (0.1, 0.2, 0.3, 0.4)
    assert scores("cfp", toy, "sublayer", gradient=gradient, normalised=True) == (0.4, 0.3, 0.2, 0.1)


def test_cfp_takes_the_shares_of_a_definition() -> None:
    toy = stack(EYE, EYE, EYE, EYE, sublayers=2)
    gradient = {
        "share": [0.7, 0.3],
        "definitions": {"block": {"clipped": [0.25, 0.75]}, "sublayer": {"clipped": [0.4, 0.1, 0.2, 0.3]}},
        "parameters": {"block": [4, 36], "sublayer": [1, 1, 4, 4]},
    }
    assert scores("cfp", toy, gradient=gradient) == (0.7, 0.3)
    assert scores("cfp", toy, gradient=gradient, definition="clipped") == (0.25, 0.75)
    assert scores("cfp", toy, "sublayer", gradient=gradient, definition="clipped") == (0.4, 0.1, 0.2, 0.3)
    # 0.25 / 2 and 0.75 / 6 are equal.
    divided = scores("cfp", toy, gradient=gradient, definition="clipped", normalised=True)
    assert divided == pytest.approx((0.5, 0.5))
    with pytest.raises(UsageError, match=r"--gradient-definition mean-of-shares: .*; sum works"):
        scores("cfp", toy, gradient=gradient, definition="mean-of-shares")
    broken = {**gradient, "parameters": {"block": [4]}}
    with pytest.raises(LeadlineError, match="is damaged: definitions block clipped and its parameters do not fit"):
        scores("cfp", toy, gradient=broken, definition="clipped", normalised=True)


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (None, "there is no record"),
        ({}, "no list"),
        ({"share": [1.0]}, "1 numbers for share, and this model has 2 blocks"),
        ({"share": [0.0, 0.0]}, "nothing but zeros"),
        ({"share": [None, 1.0]}, "no share for block 0"),
        ({"share": [True, 1.0]}, "no share for block 0"),
        ({"share": [math.nan, 1.0]}, "is nan for block 0"),
    ],
)
def test_cfp_without_a_usable_record(gradient: dict[str, object] | None, message: str) -> None:
    with pytest.raises(LeadlineError, match=message):
        scores("cfp", stack(EYE, EYE), gradient=gradient)


def test_scores_that_are_not_finite_are_named() -> None:
    toy = stack(EYE, math.nan * EYE)
    with pytest.raises(LeadlineError, match="--criterion magnitude is nan for block 1"):
        scores("magnitude", toy)
    for criterion, kind in (("magnitude", "block"), ("angular", "sublayer"), ("cfp", "block"), ("magnitud", "block")):
        with pytest.raises(LeadlineError, match=f"^--criteria {criterion} "):
            rank(criterion, kind, ScoringInputs(stack=toy), option="--criteria")


def test_unknown_criteria() -> None:
    with pytest.raises(UsageError, match=r"--criterion similar is not known; cfp, .* Did you mean similarity"):
        check_criterion("similar")
    with pytest.raises(UsageError, match="angular chooses contiguous blocks; with --unit sublayer similarity"):
        scores("angular", stack(EYE, EYE, sublayers=2), "sublayer")
    with pytest.raises(UsageError, match="--unit head is not known; block and sublayer work"):
        scores("random", stack(EYE), "head")


@pytest.mark.parametrize("criterion", [name for name in CRITERIA if name != "cfp"])
def test_no_text_is_no_score(criterion: str) -> None:
    toy = stack(EYE, EYE)
    evidence = ScoringInputs(stack=toy)
    if criterion in ("magnitude", "random"):
        assert len(rank(criterion, "block", evidence).scores) == 2
        return
    with pytest.raises(LeadlineError, match="tokens"):
        rank(criterion, "block", evidence)
