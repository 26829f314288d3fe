"""Bodies of the bounded tanh for Inductor: one loop over tokens each, the tanh computed again in the backward pass."""

from __future__ import annotations

import torch
from torch import Tensor

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
    """y (N, D), the second moment (N, 1) and its reciprocal root (N, 1)."""
    wide = x.to(gain.dtype)
    moment = wide.square().sum(-1, keepdim=True) / x.shape[-1]
    root = torch.rsqrt(moment + eps)
    return (tanh(wide * (root * (lam / kappa))) * gain).to(x.dtype), moment, root


def first_back(
    x: Tensor, gain: Tensor, lam: Tensor, root: Tensor, dy: Tensor | None, dmoment: Tensor | None, kappa: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, gain and λ."""
    dtype, dim = gain.dtype, x.shape[-1]
    wide = x.to(dtype)
    slope = root * (lam / kappa)
    bounded = tanh(wide * slope)
    dy = torch.zeros_like(wide) if dy is None else dy.to(dtype)
    du = dy * gain * (1 - bounded * bounded)
    dslope = (du * wide).sum(-1, keepdim=True)
    pull = -0.5 * dslope * slope * root * root
    if dmoment is not None:
        pull = pull + dmoment
    dx = du * slope + wide * (pull * (2 / dim))
    return dx.to(x.dtype), (dy * bounded).sum(0), (dslope * root).sum() / kappa


def scaled(x: Tensor, gain: Tensor, slope: Tensor) -> Tensor:
    """`gain * tanh(slope * x)` with one slope per token, (N, 1)."""
    return (tanh(x.to(gain.dtype) * slope) * gain).to(x.dtype)


def scaled_back(x: Tensor, gain: Tensor, slope: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, gain and slope."""
    dtype = gain.dtype
    wide, dy = x.to(dtype), dy.to(dtype)
    bounded = tanh(wide * slope)
    du = dy * gain * (1 - bounded * bounded)
    return (du * slope).to(x.dtype), (dy * bounded).sum(0), (du * wide).sum(-1, keepdim=True)
