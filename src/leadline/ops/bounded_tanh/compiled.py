"""Bodies of the bounded tanh for Inductor: one loop over tokens each, the tanh computed again in the backward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.ops.precision import wide

SERIES = (-1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925, 21844 / 6081075)
"""Of tanh, for u³ and on."""
SMALL = 0.35
"""Where the series takes over: there `1 - exp(-2u)` loses digits."""


def tanh(u: Tensor) -> Tensor:
    """tanh, in float32 within a few units in the last place, from one exponential: several times faster than libm's."""
    if u.dtype != torch.float32:
        return torch.tanh(u)
    decay = torch.exp(-2 * u.abs())
    large = torch.copysign((1 - decay) / (1 + decay), u)
    square = u * u
    series = square * SERIES[-1]
    for coefficient in SERIES[-2::-1]:
        series = (series + coefficient) * square
    return torch.where(u.abs() < SMALL, u + u * series, large)


def first(x: Tensor, gain: Tensor, lam: Tensor, kappa: float, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """y (..., D), the second moment (..., 1) and its reciprocal root (..., 1)."""
    wide_x = x.to(wide(x.dtype))
    moment = wide_x.square().sum(-1, keepdim=True) / x.shape[-1]
    root = torch.rsqrt(moment + eps)
    return (tanh(wide_x * (root * (lam / kappa))) * gain).to(x.dtype), moment, root


def first_back(
    x: Tensor, gain: Tensor, lam: Tensor, root: Tensor, dy: Tensor | None, dmoment: Tensor | None, kappa: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x and λ; what the gain's gradient sums over tokens, (N, D)."""
    slope = root * (lam / kappa)
    du, wide_x, part = _back(x, gain, slope, dy)
    dslope = (du * wide_x).sum(-1, keepdim=True)
    pull = -0.5 * dslope * slope * root * root
    if dmoment is not None:
        pull = pull + dmoment
    dx = du * slope + wide_x * (pull * (2 / x.shape[-1]))
    return dx.to(x.dtype), (dslope * root).sum() / kappa, part


def reused(
    x: Tensor, gain: Tensor, lam: Tensor, lam_first: Tensor, kappa: float, moment: Tensor, c: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """y (..., D), and the reciprocal root (..., 1) of the moment with attention's share added."""
    root = torch.rsqrt(moment + c * (lam_first * lam_first / kappa**2) + eps)
    return (tanh(x.to(root.dtype) * (root * (lam / kappa))) * gain).to(x.dtype), root


def reused_back(
    x: Tensor, gain: Tensor, lam: Tensor, root: Tensor, dy: Tensor, kappa: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, λ and the moment; what the gain's gradient sums over tokens, (N, D)."""
    slope = root * (lam / kappa)
    du, wide_x, part = _back(x, gain, slope, dy)
    dslope = (du * wide_x).sum(-1, keepdim=True)
    return (du * slope).to(x.dtype), (dslope * root).sum() / kappa, -0.5 * dslope * slope * root * root, part


def scaled(x: Tensor, gain: Tensor, slope: Tensor) -> Tensor:
    """`gain * tanh(slope * x)` with one slope per token, (..., 1)."""
    return (tanh(x.to(slope.dtype) * slope) * gain).to(x.dtype)


def scaled_back(x: Tensor, gain: Tensor, slope: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x and slope; what the gain's gradient sums over tokens, (N, D)."""
    du, wide_x, part = _back(x, gain, slope, dy)
    return (du * slope).to(x.dtype), (du * wide_x).sum(-1, keepdim=True), part


def _back(x: Tensor, gain: Tensor, slope: Tensor, dy: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of the tanh's argument (..., D), x in slope's dtype, and `dy tanh` (N, D).

    Summing `dy tanh` over tokens here would make every tanh a second time.
    """
    wide_x = x.to(slope.dtype)
    bounded = tanh(wide_x * slope)
    dy = torch.zeros_like(wide_x) if dy is None else dy.to(slope.dtype)
    return dy * gain * (1 - bounded * bounded), wide_x, (dy * bounded).reshape(-1, x.shape[-1])
