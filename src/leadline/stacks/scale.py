"""Whether a norm ignores the size of what it reads, found by trying it."""

from __future__ import annotations

import torch
from torch import nn

FACTOR = 16.0
TOLERANCE = 0.02
"""Relative; above what eps and bfloat16 do, far below what a tanh does."""


@torch.no_grad()
def ignores_size(norm: nn.Module, dim: int) -> bool:
    """Whether `norm` gives the same for x and for 16 x, x (4, dim) normal with a root mean square of about 1.

    RMSNorm, LayerNorm and BHyT do; DyT, Derf and no norm at all don't.
    """
    parameter = next(norm.parameters(), torch.zeros(()))
    x = torch.randn(4, dim, generator=torch.Generator().manual_seed(0)).to(parameter.device, parameter.dtype)
    small, large = norm(x).float(), norm(FACTOR * x).float()
    return bool((large - small).norm() <= TOLERANCE * small.norm())
