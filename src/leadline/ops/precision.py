"""What scores, statistics and gates are computed in, whatever dtype flows."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor


def wide(dtype: torch.dtype) -> torch.dtype:
    """Float32, or float64 for float64."""
    return dtype if dtype in _WIDE else torch.promote_types(dtype, torch.float32)


_WIDE = (torch.float32, torch.float64)


FEW_NUMBERS = 8192
"""In a step of generation, launching operators costs more than moving numbers: up to here."""


def few_numbers(x: Tensor) -> bool:
    """Whether an operator on x should launch as few operators as it can: few numbers, and no gradients to make."""
    return not torch.is_grad_enabled() and x.numel() <= FEW_NUMBERS and not torch.compiler.is_compiling()


def no_autocast(like: Tensor) -> contextlib.AbstractContextManager[object]:
    """Turns autocast off on `like`'s device, where it is on."""
    kind = like.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()
