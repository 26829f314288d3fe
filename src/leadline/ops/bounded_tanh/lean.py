"""Bounded hyperbolic tanh with hand-written gradients: few passes, little saved, any device.

Second derivatives raise: take the reference for those.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.bounded_tanh import bodies
from leadline.ops.bounded_tanh.reference import as_wide, slope_with_mean
from leadline.ops.compiled_body import applied
from leadline.ops.next_norm import over_tokens
from leadline.ops.precision import no_autocast, wide


class _ScaledTanh(torch.autograd.Function):
    """`gain * tanh(slope * x)` with one slope per token."""

    @staticmethod
    def forward(ctx: Any, compile_bodies: bool, x: Tensor, gain: Tensor, slope: Tensor) -> Tensor:
        y: Tensor
        y, kept = applied(compile_bodies, bodies.scaled, x, gain, slope)
        ctx.compile_bodies = compile_bodies
        ctx.save_for_backward(x, gain, slope, kept)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx, dslope, part = applied(ctx.compile_bodies, bodies.scaled_back, *ctx.saved_tensors, dy)
        return None, dx, over_tokens(part), dslope


class _First(torch.autograd.Function):
    """`(gain * tanh(λ/κ · x · rsqrt(mean x² + eps)), mean x²)`; both gradients join in one pass over x."""

    @staticmethod
    def forward(
        ctx: Any, compile_bodies: bool, x: Tensor, gain: Tensor, lam: Tensor, kappa: float, eps: float
    ) -> tuple[Tensor, Tensor]:
        y, moment, root, kept = applied(compile_bodies, bodies.first, x, gain, lam, kappa, eps)
        ctx.kappa, ctx.compile_bodies = kappa, compile_bodies
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, gain, lam, root, kept)
        return y, moment

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dmoment: Tensor | None) -> tuple[Tensor | None, ...]:
        _, _, lam, *_ = site = ctx.saved_tensors
        dx, dlam, part = applied(ctx.compile_bodies, bodies.first_back, site, dy, dmoment, ctx.kappa)
        return None, dx, over_tokens(part), dlam.reshape(lam.shape), None, None


class _Reused(torch.autograd.Function):
    """`gain * tanh(λ/κ · x · rsqrt(v1 + share + eps))`, with attention's share held constant."""

    @staticmethod
    def forward(
        ctx: Any, compile_bodies: bool, x: Tensor, gain: Tensor, lam: Tensor, moment: Tensor, *rest: Any
    ) -> Tensor:
        y: Tensor
        y, root, kept = applied(compile_bodies, bodies.reused, x, gain, lam, moment, *rest)
        ctx.kappa, ctx.compile_bodies, ctx.moment_shape = rest[1], compile_bodies, moment.shape
        ctx.save_for_backward(x, gain, lam, root, kept)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        _, _, lam, *_ = site = ctx.saved_tensors
        dx, dlam, dmoment, part = applied(ctx.compile_bodies, bodies.reused_back, site, dy, ctx.kappa)
        dmoment = dmoment.sum_to_size(ctx.moment_shape)
        return None, dx, over_tokens(part), dlam.reshape(lam.shape), dmoment, None, None, None


def bounded_tanh(
    x: Tensor, gain: Tensor, lam: Tensor | float, kappa: float, eps: float, with_mean: bool, compile_bodies: bool
) -> tuple[Tensor, Tensor]:
    """See `leadline.ops.bounded_tanh`."""
    lam, gain = as_wide(lam, x), gain.to(wide(x.dtype))
    if with_mean:
        wide_x = x.to(wide(x.dtype))
        moment = wide_x.square().mean(-1, keepdim=True)
        slope = slope_with_mean(wide_x, lam, kappa, eps)
        return _ScaledTanh.apply(compile_bodies, x, gain, slope), moment
    if torch.is_grad_enabled():
        return _First.apply(compile_bodies, x, gain, lam, kappa, eps)
    y, moment, *_ = applied(compile_bodies, bodies.first, x, gain, lam, kappa, eps)
    return y, moment


def bounded_tanh_reuse(
    x: Tensor,
    gain: Tensor,
    lam: Tensor | float,
    lam_first: Tensor | float,
    kappa: float,
    second_moment: Tensor,
    c: Tensor,
    eps: float,
    compile_bodies: bool = False,
) -> Tensor:
    """See `leadline.ops.bounded_tanh_reuse`."""
    lam, moment = as_wide(lam, x), as_wide(second_moment, x)
    share = (as_wide(c, x) * as_wide(lam_first, x).square() / kappa**2).detach()
    arguments = (x, gain.to(moment.dtype), lam, moment, share, kappa, eps)
    if torch.is_grad_enabled():
        return _Reused.apply(compile_bodies, *arguments)
    y: Tensor = applied(compile_bodies, bodies.reused, *arguments)[0]
    return y


@torch.no_grad()
def attention_gain(w_v: Tensor, w_o: Tensor, heads: int, kv_heads: int, length: int) -> Tensor:
    """See `leadline.ops.attention_gain`. Query heads that share a V are summed first: less work, same product."""
    dtype = wide(w_v.dtype)
    dim = w_v.shape[1]
    width = w_v.shape[0] // kv_heads
    w_o_DKh = w_o.to(dtype).view(w_o.shape[0], kv_heads, heads // kv_heads, width).sum(2).flatten(1)
    with no_autocast(w_v):
        product_DD = w_o_DKh @ w_v.to(dtype)
    return product_DD.square().sum() / (length * dim)
