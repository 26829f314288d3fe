"""Depth attention with a hand-written backward pass. Sources stay where they are: nothing is stacked or copied.

With `r_i = rsqrt(mean v_i² + eps)`, `q = query ⊙ gain`, `s_i = r_i q·v_i`, `p = softmax(s)`, `o = Σ p_i v_i`:

    ds_i = p_i (do·v_i − do·o)                  dv_i = p_i do + ds_i r_i (q − (s_i r_i / D) v_i)
    dq = Σ_tokens Σ_i ds_i r_i v_i              dquery = dq ⊙ gain,  dgain = dq ⊙ query

A read hands its sources on: the gradient of all later reads of a source comes back through this one, which adds its own
part while it writes: no pass goes into adding gradients up. Saved for backward: r and s, 2k numbers a token, and their
log-sum-exp, beside the sources, which live anyway, and o, which the norm that reads it keeps anyway. Sources of a
narrower dtype are widened one at a time, and `do·o` is summed from `do·v_i`: a rounded o would ruin dq where few
sources have sharp weights. The bodies are these, in plain PyTorch, or those of `compiled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.depth_attention import compiled
from leadline.ops.precision import no_autocast, wide


def read_lean(
    sources: Sequence[Tensor],
    roots: Sequence[Tensor],
    query: Tensor,
    key_gain: Tensor,
    *,
    compile_bodies: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The mix (..., D) and the sources handed on; see `leadline.ops.depth_attention.read_sources`."""
    if len(sources) == 1:
        only = _OnlySource.apply(sources[0], query, key_gain) if torch.is_grad_enabled() else sources[0]
        return only, (only,)
    compile_bodies = compile_bodies and not torch.compiler.is_compiling()
    if torch.is_grad_enabled():
        mix, *handed = _Read.apply(query, key_gain, len(sources), compile_bodies, *sources, *roots)
        return mix, tuple(handed)
    direction = query.to(roots[0].dtype) * key_gain.to(roots[0].dtype)
    return _forward(sources, roots, direction, compile_bodies)[0], tuple(sources)


def read_few(sources: Sequence[Tensor], query: Tensor, key_gain: Tensor, eps: float) -> Tensor:
    """The mix of a few tokens without gradients: in as few operators as can be, whose number does not grow with the
    sources. It stacks them, and takes no roots."""
    stacked = torch.stack(list(sources), dim=-2)
    x = stacked.to(wide(stacked.dtype))
    direction = query.to(x.dtype) * key_gain.to(x.dtype)
    weight = torch.matmul(F.rms_norm(x, x.shape[-1:], None, eps), direction).softmax(dim=-1)
    return torch.matmul(weight.unsqueeze(-2), x).squeeze(-2).to(stacked.dtype)


def _forward(
    sources: Sequence[Tensor], roots: Sequence[Tensor], direction: Tensor, compile_bodies: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The mix (..., D), scores (k, N) and their log-sum-exp (N), for N tokens."""
    rows = [source.reshape(-1, source.shape[-1]) for source in sources]
    flat = [root.reshape(-1) for root in roots]
    mix, score, lse = (compiled.forward if compile_bodies else _plain_forward)(rows, flat, direction)
    return mix.view(sources[0].shape), score, lse


def _plain_forward(
    sources: Sequence[Tensor], roots: Sequence[Tensor], direction: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = direction.dtype
    score = torch.stack([torch.mv(source.to(dtype), direction) for source in sources]).mul_(torch.stack(list(roots)))
    lse = score.logsumexp(dim=0)
    weight = (score - lse).exp_().unsqueeze(-1)
    total = sources[0].to(dtype) * weight[0]
    for source, w in zip(sources[1:], weight[1:].unbind(0), strict=True):
        total.addcmul_(source.to(dtype), w)
    return total.to(sources[0].dtype), score, lse


def _plain_backward(
    upstream: Tensor,
    mix: Tensor,
    score: Tensor,
    lse: Tensor,
    sources: Sequence[Tensor],
    roots: Sequence[Tensor],
    handed: Sequence[Tensor] | None,
    direction: Tensor,
) -> tuple[list[Tensor], Tensor]:
    dim, dtype = direction.shape[0], direction.dtype
    do = upstream.to(dtype)
    weight = (score - lse).exp_()
    products = torch.stack([(do * source).sum(dim=-1) for source in sources])
    pull = (weight * products).sum(dim=0)
    root = torch.stack(list(roots))
    along = products.sub_(pull).mul_(weight).mul_(root)
    back = (along * root).mul_(score).div_(-dim).unsqueeze(-1)
    weights, alongs = weight.unsqueeze(-1), along.unsqueeze(-1)
    grads = []
    ddirection = torch.zeros_like(direction)
    for i, narrow in enumerate(sources):
        source = narrow.to(dtype)
        grad = do * weights[i] if handed is None else torch.addcmul(handed[i].to(dtype), do, weights[i])
        grad.addcmul_(alongs[i], direction).addcmul_(source, back[i])
        grads.append(grad.to(narrow.dtype))
        ddirection.addmv_(source.t(), along[i])
    return grads, ddirection


class _OnlySource(torch.autograd.Function):
    """One source has weight one, whatever the query: the identity, with zeros for query and gain."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, query: Tensor, key_gain: Tensor) -> Tensor:
        ctx.save_for_backward(query, key_gain)
        return source.view_as(source)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key_gain = ctx.saved_tensors
        return upstream, torch.zeros_like(query), torch.zeros_like(key_gain)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key_gain: Tensor, count: int, compile_bodies: bool, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        sources, roots = tensors[:count], tensors[count:]
        direction = query.to(roots[0].dtype) * key_gain.to(roots[0].dtype)
        mix, score, lse = _forward(sources, roots, direction, compile_bodies)
        ctx.set_materialize_grads(False)
        ctx.count, ctx.compile_bodies = count, compile_bodies
        ctx.save_for_backward(query, key_gain, mix, score, lse, *tensors)
        return mix, *(source.view_as(source) for source in sources)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor | None, *handed: Tensor | None) -> tuple[Tensor | None, ...]:
        nothing = (None,) * ctx.count
        if upstream is None:
            return None, None, None, None, *handed, *nothing
        with no_autocast(upstream):
            dquery, dgain, grads = _Read._gradients(ctx, upstream, handed)
        return dquery, dgain, None, None, *grads, *nothing

    @staticmethod
    def _gradients(ctx: Any, upstream: Tensor, handed: Sequence[Tensor | None]) -> tuple[Tensor, Tensor, list[Tensor]]:
        query, key_gain, mix, score, lse, *tensors = ctx.saved_tensors
        sources, roots = tensors[: ctx.count], tensors[ctx.count :]
        dtype, shape, dim = lse.dtype, mix.shape, mix.shape[-1]
        direction = query.to(dtype) * key_gain.to(dtype)
        added = None
        if any(grad is not None for grad in handed):
            added = [
                torch.zeros_like(source).reshape(-1, dim) if grad is None else grad.reshape(-1, dim)
                for grad, source in zip(handed, sources, strict=True)
            ]
        grads, ddirection = (compiled.backward if ctx.compile_bodies else _plain_backward)(
            upstream.reshape(-1, dim),
            mix.reshape(-1, dim),
            score,
            lse,
            [source.reshape(-1, dim) for source in sources],
            [root.reshape(-1) for root in roots],
            added,
            direction,
        )
        dquery = (ddirection * key_gain.to(dtype)).to(query.dtype)
        dgain = (ddirection * query.to(dtype)).to(key_gain.dtype)
        return dquery, dgain, [grad.view(shape) for grad in grads]
