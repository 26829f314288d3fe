"""A user's norm with an eps that fits what depth hands it: `eps · scale²`."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from leadline.errors import UsageError


class GainlessRMSNorm(nn.Module):
    """RMSNorm over the last dimension, whatever its size: no parameters."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., dim) to (..., dim), in x's dtype; statistics in float32 or wider."""
        return F.rms_norm(x, x.shape[-1:], eps=self.eps)

    def extra_repr(self) -> str:
        return f"eps={self.eps}"


def scaled_norm(norm: nn.Module | float, scale: float) -> nn.Module:
    """See `Read.norm`."""
    if not isinstance(norm, nn.Module):
        if not isinstance(norm, int | float) or not norm >= 0:
            raise UsageError(f"norm={norm!r} should be a module, such as nn.LayerNorm(dim), or an eps such as 1e-6")
        return GainlessRMSNorm(norm * scale**2)
    scaled = copy.copy(norm)  # the same dictionaries of parameters and buffers
    for name in ("eps", "variance_epsilon"):
        eps = getattr(norm, name, None)
        if isinstance(eps, float):
            setattr(scaled, name, eps * scale**2)
            return scaled
    if scale != 1.0:
        scaled._forward_pre_hooks = OrderedDict(norm._forward_pre_hooks)
        scaled.register_forward_pre_hook(functools.partial(_divided, scale))
    return scaled


def _divided(scale: float, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (args[0] / scale, *args[1:])
