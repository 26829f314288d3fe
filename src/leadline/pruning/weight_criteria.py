"""Importance of a unit by its weights, and by its absence: magnitude, Taylor, ablation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from leadline.errors import LeadlineError
from leadline.probes.ablation import LossRise, sequence_losses
from leadline.probes.watch import IGNORED, TokenBatch, measuring
from leadline.pruning.text import cross_entropy_sum
from leadline.stacks import Stack, Unit

Progress = Callable[[int, int], None]
"""Receives how many of how many passes are done."""


def magnitude(stack: Stack, kind: str = "block") -> list[float]:
    """`Σ|w|` over a unit's parameters, in the order of `stack.units(kind)`. A shared parameter counts once."""
    return [_total(value.detach().abs() for value in stack.parameters_of(unit).values()) for unit in stack.units(kind)]


def taylor(
    stack: Stack, batches: Sequence[TokenBatch], kind: str = "block", progress: Progress = lambda done, of: None
) -> list[float]:
    """`Σ|Σ_batches w·∂L/∂w|` over a unit's parameters: what the loss changes by to first order without them.

    L is the mean loss over all tokens, in evaluation mode; gradients are summed over batches before the absolute value
    is taken. The model's own `.grad` is left alone. Beside the weights, memory holds these sums in float32, and one
    parameter's gradient at a time.

    Raises:
        LeadlineError: there are no tokens.
    """
    of_unit = [list(stack.parameters_of(unit).values()) for unit in stack.units(kind)]
    parameters = list({id(p): p for group in of_unit for p in group}.values())
    own = [(p, p.requires_grad, p.grad) for p in parameters]
    sums: dict[int, Tensor] = {}
    count = sum(int((batch.targets != IGNORED).sum()) for batch in batches)
    if count == 0:
        raise LeadlineError("there are no tokens to measure on")

    def add(parameter: nn.Parameter) -> None:
        grad, parameter.grad = parameter.grad, None
        if grad is not None:
            wide = grad if grad.dtype == torch.float64 else grad.float()
            sums[id(parameter)] = sums[id(parameter)].add_(wide) if id(parameter) in sums else wide

    hooks = []
    try:
        for p in parameters:
            p.grad = None
            hooks.append(p.requires_grad_(True).register_post_accumulate_grad_hook(add))
        with measuring(stack.model), torch.enable_grad():
            for done, batch in enumerate(batches, start=1):
                logits = stack.logits(batch.tokens.to(stack.device))
                loss = cross_entropy_sum(logits, batch.targets.to(stack.device)) / count
                torch.autograd.backward(loss, inputs=parameters)
                progress(done, len(batches))
    finally:
        for hook in hooks:
            hook.remove()
        for p, flag, grad in own:
            p.requires_grad_(flag)
            p.grad = grad
    return [_total((p.detach() * sums[id(p)]).abs() for p in group if id(p) in sums) for group in of_unit]


def ablation(
    stack: Stack,
    batches: Sequence[TokenBatch],
    candidates: Sequence[Sequence[Unit]],
    progress: Progress = lambda done, of: None,
) -> list[float]:
    """ΔM: by how much the mean loss rises, in nats a token, when a candidate is skipped. Negative: better without.

    Args:
        candidates: what is skipped together, each: one unit, or all runs of a shared block.

    Raises:
        LeadlineError: there are no tokens.
    """
    rise = LossRise(len(candidates), resamples=0)
    with measuring(stack.model):
        for done, batch in enumerate(batches, start=1):
            losses = []
            for candidate in [(), *candidates]:
                with stack.skipping(candidate):
                    logits = stack.logits(batch.tokens.to(stack.device))
                losses.append(sequence_losses(logits, batch.targets.to(stack.device)))
            rise.add(losses, batch.targets.shape[-1])
            progress(done, len(batches))
    return rise.rises()


def _total(values: Iterable[Tensor]) -> float:
    return math.fsum(float(value.sum(dtype=torch.float64)) for value in values)
