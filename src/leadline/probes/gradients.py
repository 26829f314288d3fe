"""Where the gradient goes in a model as it is: norms and shares, effective rank and diversity, by block and sublayer.

Over K batches, with ∇_k the gradient of batch k's mean loss:

    norm         Σ_k ‖∇_k θ_i‖ / K
    share        norm_i / Σ_j norm_j, over the blocks or over the sublayers; as arXiv 2606.26538 shares it over steps
    …_per_parameter   the same of norm_i / √(number of parameters), which blocks of unlike sizes need
    effective_rank    of a batch's gradient matrices, weighted by their entries, mean over the first batches
    cosine       the mean cosine between the gradients of different batches: 1 where all agree

A parameter that blocks share counts once, for the first of them. Where a block has no gradient its numbers are None,
never 0. Which norm, which weights, and the cosine are our choices.

The functions of lists of gradients, as `.grad` holds them in one fixed order, serve training too. They tell apart a
gradient that is missing (None), one that is empty (0 entries here: another rank holds them), and one that is exactly
zero.
"""

from __future__ import annotations

import contextlib
import enum
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leadline.errors import LeadlineError
from leadline.probes.effective_rank import effective_rank_of
from leadline.probes.paired import PairedMeans, place_rows
from leadline.probes.watch import IGNORED, TokenBatch, counted, measuring
from leadline.stacks import Stack, Unit

RANK_BATCHES = 4


def gradients(
    stack: Stack,
    batches: Iterable[TokenBatch],
    *,
    rank_batches: int = RANK_BATCHES,
    on_batch: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """See `measure_stack`. The model's own `.grad` come back as they were; it runs in evaluation mode.

    Memory: the gradients of one batch and one copy of those of the blocks.

    Args:
        rank_batches: how many batches the effective rank is computed on; it costs the most.

    Raises:
        LeadlineError: there are no tokens, or the loss has no gradient.
    """
    blocks = [_Unit(stack, unit) for unit in stack.units("block")]
    sublayers = [_Unit(stack, unit) for unit in stack.units("sublayer")]
    seen, paired = 0, PairedMeans(stack.blocks)
    # Where the caller is in inference mode, which no gradient passes, this leaves it.
    with measuring(stack.model), torch.inference_mode(False), torch.enable_grad(), _own_gradients(stack.model):
        for batch in batches:
            if not bool(counted(batch.targets).any()):
                continue
            _backward(stack, batch)
            found = {id(p): p.grad for p in stack.model.parameters()}
            norms = [unit.add(found, rank=seen < rank_batches, diversity=True) for unit in blocks]
            paired.add(np.array([[math.nan if norm is None else norm for norm in norms]]), np.ones(1))
            for unit in sublayers:
                unit.add(found)
            seen += 1
            if on_batch is not None:
                on_batch()
    if seen == 0:
        raise LeadlineError("there are no tokens to measure on")
    by_block = _columns(blocks, seen)
    by_block["effective_rank"] = [unit.mean_rank() for unit in blocks]
    by_block["cosine"] = [unit.diversity.cosine() for unit in blocks]
    by_block |= place_rows(paired.places(), stack.blocks)
    nested = {name: _by_block(values, stack) for name, values in _columns(sublayers, seen).items()}
    return {
        "batches": seen,
        "rank_batches": min(seen, rank_batches),
        "first_half": paired.share(stack.blocks // 2).plain(),
        "blocks": by_block,
        "sublayers": nested,
    }


class _Unit:
    """Running sums of one block or sublayer."""

    def __init__(self, stack: Stack, unit: Unit) -> None:
        self.parameters = list(stack.parameters_of(unit).values())
        self.size = sum(parameter.numel() for parameter in self.parameters)
        self.norm_total: float | None = None
        self.ranks: list[float] = []
        self.diversity = GradientDiversity()
        self._best = [Presence.MISSING] * len(self.parameters)

    def add(self, found: dict[int, Tensor | None], *, rank: bool = False, diversity: bool = False) -> float | None:
        """One batch's gradients by the parameter's identity; returns their norm."""
        own = [found[id(parameter)] for parameter in self.parameters]
        own = [None if gradient is None else whole(gradient) for gradient in own]
        self._best = [max(best, presence(gradient)) for best, gradient in zip(self._best, own, strict=True)]
        norm = gradient_norm(own)
        if norm is not None:
            self.norm_total = (self.norm_total or 0.0) + norm
        if rank and (value := gradient_effective_rank(own)) is not None:
            self.ranks.append(value)
        if diversity:
            self.diversity.add(own)
        return norm

    def count(self, kind: Presence) -> int:
        """Parameters that never had more of a gradient than this."""
        return self._best.count(kind)

    def mean_rank(self) -> float | None:
        return sum(self.ranks) / len(self.ranks) if self.ranks else None


def _columns(units: Sequence[_Unit], batches: int) -> dict[str, list[Any]]:
    norms = [None if unit.norm_total is None else unit.norm_total / batches for unit in units]
    scaled = [None if norm is None else norm / math.sqrt(unit.size) for norm, unit in zip(norms, units, strict=True)]
    return {
        "parameters": [unit.size for unit in units],
        "norm": norms,
        "share": shares(norms),
        "norm_per_parameter": scaled,
        "share_per_parameter": shares(scaled),
        "missing": [unit.count(Presence.MISSING) for unit in units],
        "empty": [unit.count(Presence.EMPTY) for unit in units],
        "zero": [unit.count(Presence.ZERO) for unit in units],
    }


def shares(norms: Sequence[float | None]) -> list[float | None]:
    """Norms as shares of their sum; None stays None, and so does everything where the sum is zero."""
    total = sum(norm for norm in norms if norm is not None)
    return [None if norm is None or total <= 0 else norm / total for norm in norms]


def _by_block(values: Sequence[Any], stack: Stack) -> list[list[Any]]:
    rest = iter(values)
    return [[next(rest) for _ in names] for names in stack.sublayers]


def _backward(stack: Stack, batch: TokenBatch) -> None:
    for parameter in stack.model.parameters():
        parameter.grad = None
    tokens, targets = (x.clone() if x.is_inference() else x for x in (batch.tokens, batch.targets))
    logits = stack.logits(tokens.to(stack.device))
    if not logits.requires_grad:
        raise LeadlineError(
            "no parameter of this model needs a gradient, so there is none to measure; model.requires_grad_(True) "
            "changes that, and the other parts work without"
        )
    flat, targets = logits.float().flatten(0, -2), targets.to(logits.device).flatten()
    nn.functional.cross_entropy(flat, targets, ignore_index=IGNORED).backward()


@contextlib.contextmanager
def _own_gradients(model: nn.Module) -> Iterator[None]:
    """Gives every parameter the `.grad` it had back, after an error too."""
    before = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


Gradients = Sequence[Tensor | None]
"""One entry per parameter, None where it has no gradient."""


class Presence(enum.IntEnum):
    """What there is of a gradient."""

    MISSING = 0
    EMPTY = 1
    ZERO = 2
    THERE = 3


def whole(gradient: Tensor) -> Tensor:
    """The whole gradient, gathered from all ranks where it is a DTensor (every rank has to ask at the same time)."""
    full: Tensor = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return full.detach()


def presence(gradient: Tensor | None) -> Presence:
    """What there is of one parameter's gradient; looks at its values, so it waits for the device."""
    if gradient is None:
        return Presence.MISSING
    if gradient.numel() == 0:
        return Presence.EMPTY
    return Presence.THERE if bool(gradient.any()) else Presence.ZERO


def gradient_norm(gradients: Iterable[Tensor | None]) -> float | None:
    """The L2 norm of all of them together, in float64; None where none has an entry. Zero only where it is zero."""
    there = [gradient for gradient in gradients if gradient is not None and gradient.numel() > 0]
    if not there:
        return None
    # In float64 the squares of large float32 norms don't overflow.
    norms = [torch.linalg.vector_norm(gradient.detach(), dtype=_widest(gradient)).cpu().double() for gradient in there]
    return float(torch.linalg.vector_norm(torch.stack(norms)))


def gradient_effective_rank(gradients: Iterable[Tensor | None]) -> float | None:
    """The mean effective rank of the matrices among them, weighted by their entries.

    A tensor of more than two dimensions counts as the matrix (first, all others); vectors and scalars don't count, nor
    do matrices of zeros or with entries that aren't finite. None where nothing counts. Costs every matrix's singular
    values.
    """
    total, weight = 0.0, 0
    for gradient in gradients:
        if gradient is None or gradient.dim() < 2 or gradient.numel() == 0:
            continue
        rank = effective_rank_of(gradient.detach().flatten(1))
        if rank is not None:
            total += rank * gradient.numel()
            weight += gradient.numel()
    return total / weight if weight else None


class GradientDiversity:
    """How alike the gradients of different batches are: the mean cosine over all pairs, from a running sum.

    With u_k the gradient of batch k divided by its norm, Σ_{j≠k} u_j·u_k = ‖Σ u_k‖² − Σ ‖u_k‖². So one copy of the
    gradients is kept, whatever the number of batches. A gradient of zeros counts as orthogonal to all; a batch without
    any gradient isn't counted.

    Attributes:
        batches: how many were added.
    """

    def __init__(self) -> None:
        self.batches = 0
        self._units = 0
        self._sum: list[Tensor | None] = []

    @torch.no_grad()
    def add(self, gradients: Gradients) -> None:
        """One batch's gradients, in the same order every time."""
        norm = gradient_norm(gradients)
        if norm is None:
            return
        self.batches += 1
        if not 0 < norm < math.inf:
            return
        self._units += 1
        self._sum = self._sum or [None] * len(gradients)
        for index, gradient in enumerate(gradients):
            if gradient is None:
                continue
            held = self._sum[index]
            if held is None:
                held = self._sum[index] = torch.zeros_like(gradient, dtype=_accurate(gradient))
            held.add_(gradient.detach().to(held.dtype), alpha=1.0 / norm)

    def cosine(self) -> float | None:
        """The mean cosine over pairs of batches: 1 where all agree, 0 where they are orthogonal; None below two."""
        if self.batches < 2:
            return None
        length = gradient_norm(self._sum) or 0.0
        return (length**2 - self._units) / (self.batches * (self.batches - 1))


def _accurate(gradient: Tensor) -> torch.dtype:
    return torch.float64 if gradient.dtype == torch.float64 else torch.float32


def _widest(gradient: Tensor) -> torch.dtype:
    return torch.float32 if gradient.device.type == "mps" else torch.float64
