"""Bounded hyperbolic tanh in plain PyTorch: the truth that other backends are tested against.

B batch, T time, D width, H heads, K key-value heads, h head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.ops.precision import no_autocast, wide


def as_wide(value: Tensor | float, like: Tensor) -> Tensor:
    """A scalar or tensor in the statistics dtype of `like`, on its device."""
    if isinstance(value, Tensor):
        return value.to(wide(like.dtype))
    return torch.full((), value, dtype=wide(like.dtype), device=like.device)


def slope_with_mean(x: Tensor, lam: Tensor, kappa: float, eps: float) -> Tensor:
    """`λ / (κ s_x + abs(mean x))` with `s_x = sqrt(var x + eps)`: BHyT*'s exact form. Shape (..., 1).

    The variance is of the centred values: `mean x² - (mean x)²` rounds below zero where all values are alike.
    """
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return lam / (kappa * torch.sqrt(variance + eps) + mean.abs())


def second_slope(moment: Tensor, lam: Tensor, lam_first: Tensor, kappa: float, c: Tensor, eps: float) -> Tensor:
    """`λ / (κ sqrt(v1 + c λ_first²/κ² + eps))`, with λ_first and c held constant. Shape (..., 1)."""
    added = (c * lam_first.square() / kappa**2).detach()
    return lam / kappa * torch.rsqrt(moment + added + eps)


def bounded_tanh(
    x: Tensor, gain: Tensor, lam: Tensor | float, kappa: float, eps: float, with_mean: bool = False
) -> tuple[Tensor, Tensor]:
    """See `leadline.ops.bounded_tanh`."""
    wide_x = x.to(wide(x.dtype))
    lam = as_wide(lam, x)
    moment = wide_x.square().mean(-1, keepdim=True)
    slope = slope_with_mean(wide_x, lam, kappa, eps) if with_mean else lam / kappa * torch.rsqrt(moment + eps)
    y = gain.to(wide_x.dtype) * torch.tanh(slope * wide_x)
    return y.to(x.dtype), moment


def bounded_tanh_reuse(
    x: Tensor,
    gain: Tensor,
    lam: Tensor | float,
    lam_first: Tensor | float,
    kappa: float,
    second_moment: Tensor,
    c: Tensor,
    eps: float,
) -> Tensor:
    """See `leadline.ops.bounded_tanh_reuse`."""
    wide_x = x.to(wide(x.dtype))
    slope = second_slope(as_wide(second_moment, x), as_wide(lam, x), as_wide(lam_first, x), kappa, as_wide(c, x), eps)
    y = gain.to(wide_x.dtype) * torch.tanh(slope * wide_x)
    return y.to(x.dtype)


@torch.no_grad()
def attention_gain(w_v: Tensor, w_o: Tensor, heads: int, kv_heads: int, length: int) -> Tensor:
    """See `leadline.ops.attention_gain`."""
    dtype = wide(w_v.dtype)
    width = w_v.shape[0] // kv_heads
    dim = w_v.shape[1]
    w_v_KhD = w_v.to(dtype).view(kv_heads, width, dim)
    w_v_HD = w_v_KhD.repeat_interleave(heads // kv_heads, dim=0).reshape(heads * width, dim)
    with no_autocast(w_v):
        product_DD = w_o.to(dtype) @ w_v_HD
    return product_DD.square().sum() / (length * dim)
