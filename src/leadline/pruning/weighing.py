"""What a unit's weights, and its absence, say of its worth: magnitude, Taylor, ablation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from leadline.errors import LeadlineError
from leadline.probes.ablation import LossRise, sequence_losses
from leadline.probes.watch import IGNORED, TokenBatch, measuring
from leadline.pruning.text import cross_entropy_sum
from leadline.stacks import Stack, Unit

Say = Callable[[int, int], None]
"""Told how many of how many passes are done."""


def magnitude(stack: Stack, kind: str = "block") -> list[float]:
    """`Σ|w|` over a unit's parameters, in the order of `stack.units(kind)`. A shared parameter counts once."""
    return [_total(value.detach().abs() for value in stack.parameters_of(unit).values()) for unit in stack.units(kind)]


def taylor(
    stack: Stack, batches: Sequence[TokenBatch], kind: str = "block", say: Say = lambda done, of: None
) -> list[float]:
    """`Σ|Σ_batches w·∂L/∂w|` over a unit's parameters: what the loss changes by to first order without them.

    L is the mean loss over all tokens, in evaluation mode; gradients are summed over batches before the absolute value
    is taken. The model's own `.grad` is left alone.

    Raises:
        LeadlineError: there are no tokens.
    """
    units = stack.units(kind)
    of_unit = [list(stack.parameters_of(unit).values()) for unit in units]
    parameters = list({id(p): p for group in of_unit for p in group}.values())
    wanted = [p.requires_grad for p in parameters]
    sums: dict[int, Tensor] = {}
    count = sum(int((batch.targets != IGNORED).sum()) for batch in batches)
    if count == 0:
        raise LeadlineError("there are no tokens to measure on")
    try:
        for p in parameters:
            p.requires_grad_(True)
        with measuring(stack.model), torch.enable_grad():
            for done, batch in enumerate(batches, start=1):
                logits = stack.logits(batch.tokens.to(stack.device))
                loss = cross_entropy_sum(logits, batch.targets.to(stack.device)) / count
                for p, grad in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
                    if grad is not None:
                        wide = grad if grad.dtype == torch.float64 else grad.float()
                        sums[id(p)] = sums[id(p)].add_(wide) if id(p) in sums else wide.clone()
                say(done, len(batches))
    finally:
        for p, flag in zip(parameters, wanted, strict=True):
            p.requires_grad_(flag)
    return [_total((p.detach() * sums[id(p)]).abs() for p in group if id(p) in sums) for group in of_unit]


def ablation(
    stack: Stack,
    batches: Sequence[TokenBatch],
    candidates: Sequence[Sequence[Unit]],
    say: Say = lambda done, of: None,
) -> list[float]:
    """ΔM: by how much the mean loss rises, in nats a token, when a candidate is left out. Negative: better without.

    Args:
        candidates: what is left out together, each: one unit, or all runs of a shared block.

    Raises:
        LeadlineError: there are no tokens.
    """
    rise = LossRise(len(candidates), resamples=0)
    with measuring(stack.model):
        for done, batch in enumerate(batches, start=1):
            losses = [_losses(stack, batch, candidate) for candidate in [(), *candidates]]
            rise.add(losses, batch.targets.shape[-1])
            say(done, len(batches))
    return rise.rises()


def _losses(stack: Stack, batch: TokenBatch, without: Sequence[Unit]) -> Tensor:
    with stack.skipping(without):
        logits = stack.logits(batch.tokens.to(stack.device))
    return sequence_losses(logits, batch.targets.to(stack.device))


def _total(values: Iterable[Tensor]) -> float:
    return math.fsum(float(value.sum(dtype=torch.float64)) for value in values)
