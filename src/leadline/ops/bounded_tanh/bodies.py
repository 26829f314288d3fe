"""Bodies of the bounded tanh, one each, run as they are or compiled by Inductor: then one loop over tokens.

As they are they return the tanh too, where the input is as wide as the arithmetic: on a CPU it costs more than all
other passes together. Compiled it is a polynomial and one exponential, and is recomputed in the backward pass, as it is
from narrower inputs, so that nothing wide is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.ops.compiled_body import tracing
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


def _tanh(u: Tensor) -> Tensor:
    """In u's place, where it is not compiled."""
    return tanh(u) if tracing() else u.tanh_()


def scaled(x: Tensor, gain: Tensor, slope: Tensor) -> tuple[Tensor, Tensor | None]:
    """`gain * tanh(slope * x)` with one slope per token, (..., 1); and the tanh where it is to be kept."""
    bounded = _tanh(x.to(slope.dtype) * slope)
    keep = not tracing() and x.dtype == slope.dtype
    return (bounded * gain).to(x.dtype), bounded if keep else None


def scaled_back(
    x: Tensor, gain: Tensor, slope: Tensor, kept: Tensor | None, dy: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x and slope; what the gain's gradient sums over tokens, (N, D)."""
    dx, dslope, part = _scaled_back(x, gain, slope, kept, dy)
    return dx.to(x.dtype), dslope, part


def _scaled_back(
    x: Tensor, gain: Tensor, slope: Tensor, kept: Tensor | None, dy: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """As `scaled_back`, the gradient of x in slope's dtype. Summing over tokens here would, compiled, make every tanh a
    second time."""
    wide_x = x.to(slope.dtype)
    bounded = _tanh(wide_x * slope) if kept is None else kept
    dy = torch.zeros_like(wide_x) if dy is None else dy.to(slope.dtype)
    du = dy * gain * (1 - bounded * bounded)
    return du * slope, (du * wide_x).sum(-1, keepdim=True), (dy * bounded).reshape(-1, x.shape[-1])


def first(
    x: Tensor, gain: Tensor, lam: Tensor, kappa: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """y (..., D), the second moment (..., 1), its inverse root (..., 1), and the tanh where it is to be kept."""
    wide_x = x.to(wide(x.dtype))
    moment = wide_x.square().sum(-1, keepdim=True) / x.shape[-1]
    root = torch.rsqrt(moment + eps)
    y, kept = scaled(x, gain, root * (lam / kappa))
    return y, moment, root, kept


def reused(
    x: Tensor, gain: Tensor, lam: Tensor, moment: Tensor, share: Tensor, kappa: float, eps: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """y (..., D), the inverse root (..., 1) of the moment with attention's share added, and the tanh as `first`."""
    root = torch.rsqrt(moment + share + eps)
    y, kept = scaled(x, gain, root * (lam / kappa))
    return y, root, kept


Site = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""What a backward body takes: x, gain, λ, the inverse root (..., 1), and the tanh if it was kept."""


def reused_back(site: Site, dy: Tensor, kappa: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, λ and the moment; what the gain's gradient sums over tokens, (N, D)."""
    dx, dlam, dmoment, part = _site_back(site, dy, kappa)
    return dx.to(site[0].dtype), dlam, dmoment, part


def _site_back(site: Site, dy: Tensor | None, kappa: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of either site, the gradient of x in root's dtype and without what passes through the moment."""
    x, gain, lam, root, kept = site
    slope = root * (lam / kappa)
    dx, dslope, part = _scaled_back(x, gain, slope, kept, dy)
    return dx, (dslope * root).sum() / kappa, -0.5 * dslope * slope * root * root, part


def first_back(site: Site, dy: Tensor | None, dmoment: Tensor | None, kappa: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x and λ; what the gain's gradient sums over tokens, (N, D)."""
    x = site[0]
    dx, dlam, pull, part = _site_back(site, dy, kappa)
    if dmoment is not None:
        pull = pull + dmoment
    return torch.addcmul(dx, x.to(dx.dtype), pull * (2 / x.shape[-1])).to(x.dtype), dlam, part
