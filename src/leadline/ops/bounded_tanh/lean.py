"""Bounded hyperbolic tanh with hand-written gradients: few passes, little saved, any device.

In plain PyTorch, where the input is float32 or wider, the tanh is saved (on a CPU it costs more than all other passes
together); in narrower dtypes, and in compiled bodies, it is recomputed from the input, so that nothing wide is kept.
Second derivatives raise: take the reference for those.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.bodies import run
from leadline.ops.bounded_tanh import compiled
from leadline.ops.bounded_tanh.reference import as_wide, second_slope, slope_with_mean
from leadline.ops.next_norm import over_tokens
from leadline.ops.precision import no_autocast, wide


def _to_vector(x: Tensor) -> Tensor:
    """Sums everything but the last dimension."""
    return x.sum_to_size(x.shape[-1])


def _tanh_or_saved(x: Tensor, slope: Tensor, saved: Tensor | None) -> Tensor:
    return torch.tanh(x.to(slope.dtype) * slope) if saved is None else saved


class _ScaledTanh(torch.autograd.Function):
    """`gain * tanh(slope * x)` with one slope per token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, slope: Tensor, compile_bodies: bool) -> Tensor:
        ctx.compile_bodies = compile_bodies
        if compile_bodies:
            ctx.save_for_backward(x, gain, slope, None)
            y: Tensor = run(compiled.scaled, x, gain, slope)
            return y
        tanh = (x.to(slope.dtype) * slope).tanh_()
        keep = tanh if x.dtype == slope.dtype else None
        ctx.save_for_backward(x, gain, slope, keep)
        return (tanh * gain).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, slope, keep = ctx.saved_tensors
        if ctx.compile_bodies:
            dx, dslope, part = run(compiled.scaled_back, x, gain, slope, dy)
            return dx, over_tokens(part), dslope, None
        tanh = _tanh_or_saved(x, slope, keep)
        dy = dy.to(slope.dtype)
        du = (dy * gain) * (1 - tanh * tanh)
        dgain = _to_vector(dy * tanh)
        dslope = (du * x).sum(-1, keepdim=True)
        return (du * slope).to(x.dtype), dgain.to(gain.dtype), dslope, None


class _BoundedTanh(torch.autograd.Function):
    """`(gain * tanh(λ/κ · x · rsqrt(mean x² + eps)), mean x²)`; both gradients join in one pass over x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gain: Tensor, lam: Tensor, kappa: float, eps: float, compile_bodies: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.kappa, ctx.compile_bodies = kappa, compile_bodies
        ctx.set_materialize_grads(False)
        if compile_bodies:
            y, moment, root = run(compiled.first, x, gain, lam, kappa, eps)
            ctx.save_for_backward(x, gain, lam, root, None)
            return y, moment
        wide_x = x.to(wide(x.dtype))
        moment = wide_x.square().mean(-1, keepdim=True)
        root = torch.rsqrt(moment + eps)
        slope = root * (lam / kappa)
        tanh = (wide_x * slope).tanh_()
        keep = tanh if x.dtype == tanh.dtype else None
        ctx.save_for_backward(x, gain, lam, root, keep)
        return (tanh * gain).to(x.dtype), moment

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dmoment: Tensor | None) -> tuple[Tensor | None, ...]:
        x, gain, lam, root, keep = ctx.saved_tensors
        if ctx.compile_bodies:
            dx, dlam, part = run(compiled.first_back, x, gain, lam, root, dy, dmoment, ctx.kappa)
            return dx, over_tokens(part), dlam.reshape(lam.shape), None, None, None
        slope = root * (lam / ctx.kappa)
        tanh = _tanh_or_saved(x, slope, keep)
        dy = torch.zeros_like(tanh) if dy is None else dy.to(slope.dtype)
        du = (dy * gain) * (1 - tanh * tanh)
        dgain = _to_vector(dy * tanh)
        dslope = (du * x).sum(-1, keepdim=True)
        dlam = (dslope * root).sum() / ctx.kappa
        pull = -0.5 * dslope * slope * root * root
        if dmoment is not None:
            pull = pull + dmoment
        dx = torch.addcmul(du * slope, x.to(slope.dtype), pull * (2 / x.shape[-1]))
        return dx.to(x.dtype), dgain.to(gain.dtype), dlam.reshape(lam.shape), None, None, None


class _Reused(torch.autograd.Function):
    """`gain * tanh(λ/κ · x · rsqrt(v1 + c λ_first²/κ² + eps))` in compiled bodies."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gain: Tensor,
        lam: Tensor,
        lam_first: Tensor,
        kappa: float,
        moment: Tensor,
        c: Tensor,
        eps: float,
    ) -> Tensor:
        y: Tensor
        y, root = run(compiled.reused, x, gain, lam, lam_first, kappa, moment, c, eps)
        ctx.kappa, ctx.moment_shape = kappa, moment.shape
        ctx.save_for_backward(x, gain, lam, root)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, lam, root = ctx.saved_tensors
        dx, dlam, dmoment, part = run(compiled.reused_back, x, gain, lam, root, dy, ctx.kappa)
        dmoment = dmoment.sum_to_size(ctx.moment_shape)
        return dx, over_tokens(part), dlam.reshape(lam.shape), None, None, dmoment, None, None


def bounded_tanh(
    x: Tensor,
    gain: Tensor,
    lam: Tensor | float,
    kappa: float,
    eps: float,
    with_mean: bool = False,
    compile_bodies: bool = False,
) -> tuple[Tensor, Tensor]:
    """See `leadline.ops.bounded_tanh`."""
    lam = as_wide(lam, x)
    gain = gain.to(wide(x.dtype))
    compile_bodies = compile_bodies and not torch.compiler.is_compiling()
    if with_mean:
        wide_x = x.to(wide(x.dtype))
        moment = wide_x.square().mean(-1, keepdim=True)
        slope = slope_with_mean(wide_x, lam, kappa, eps)
        return _ScaledTanh.apply(x, gain, slope, compile_bodies), moment
    if compile_bodies and not torch.is_grad_enabled():
        y, moment, _ = run(compiled.first, x, gain, lam, kappa, eps)
        return y, moment
    return _BoundedTanh.apply(x, gain, lam, kappa, eps, compile_bodies)


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
    lam, lam_first, c = as_wide(lam, x), as_wide(lam_first, x), as_wide(c, x)
    moment = as_wide(second_moment, x)
    if compile_bodies and not torch.compiler.is_compiling():
        arguments = (x, gain.to(moment.dtype), lam, lam_first, kappa, moment, c, eps)
        y: Tensor = _Reused.apply(*arguments) if torch.is_grad_enabled() else run(compiled.reused, *arguments)[0]
        return y
    slope = second_slope(moment, lam, lam_first, kappa, c, eps).expand(*x.shape[:-1], 1)
    return _ScaledTanh.apply(x, gain.to(slope.dtype), slope, False)


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
