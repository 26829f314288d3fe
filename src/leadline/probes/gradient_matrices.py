"""What gradients look like, for a probe of a fixed model and for training alike: norms, effective rank, diversity.

Pure functions of lists of gradients as `.grad` holds them, in one fixed order. Three things are told apart: a gradient
that is missing (None), one that is empty (0 entries here: another rank holds them), and one that is exactly zero.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from leadline.probes.effective_rank import effective_rank_of

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
