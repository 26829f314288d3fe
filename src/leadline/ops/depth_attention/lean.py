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
from leadline.ops.depth_attention.compiled import Forward
from leadline.ops.next_norm import NextNorm, normed
from leadline.ops.precision import no_autocast, wide


def read_lean(
    sources: Sequence[Tensor],
    roots: Sequence[Tensor],
    query: Tensor,
    key_gain: Tensor,
    norm: NextNorm | None = None,
    *,
    compile_bodies: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The mix (..., D), normed where there is a norm, and the sources handed on; see `read_sources`."""
    if len(sources) == 1:
        only = _OnlySource.apply(sources[0], query, key_gain) if torch.is_grad_enabled() else sources[0]
        return normed(only, norm), (only,)
    compile_bodies = compile_bodies and not torch.compiler.is_compiling()
    later = None if compile_bodies else norm
    gain, eps = (None, 0.0) if norm is None or later is not None else norm
    if torch.is_grad_enabled():
        mix, *handed = _Read.apply(query, key_gain, gain, eps, len(sources), compile_bodies, *sources, *roots)
        return normed(mix, later), tuple(handed)
    direction = query.to(roots[0].dtype) * key_gain.to(roots[0].dtype)
    mix = _forward(sources, roots, direction, None if gain is None else NextNorm(gain, eps), compile_bodies).out
    return normed(mix, later), tuple(sources)


def read_few(
    sources: Sequence[Tensor], query: Tensor, key_gain: Tensor, eps: float, norm: NextNorm | None = None
) -> Tensor:
    """The mix of a few tokens without gradients: in as few operators as can be, whose number does not grow with the
    sources. It stacks them, and takes no roots."""
    stacked = torch.stack(list(sources), dim=-2)
    x = stacked.to(wide(stacked.dtype))
    direction = query.to(x.dtype) * key_gain.to(x.dtype)
    weight = torch.matmul(F.rms_norm(x, x.shape[-1:], None, eps), direction).softmax(dim=-1)
    return normed(torch.matmul(weight.unsqueeze(-2), x).squeeze(-2).to(stacked.dtype), norm)


def _forward(
    sources: Sequence[Tensor],
    roots: Sequence[Tensor],
    direction: Tensor,
    norm: NextNorm | None,
    compile_bodies: bool,
) -> Forward:
    """For N tokens; only compiled bodies take a norm."""
    if compile_bodies:
        return compiled.forward(sources, roots, direction, norm)
    rows = [source.reshape(-1, source.shape[-1]) for source in sources]
    mix, score, lse = _plain_forward(rows, [root.reshape(-1) for root in roots], direction)
    return Forward(mix.view(sources[0].shape), score, lse)


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
        ctx: Any,
        query: Tensor,
        key_gain: Tensor,
        norm_gain: Tensor | None,
        norm_eps: float,
        count: int,
        compile_bodies: bool,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        sources, roots = tensors[:count], tensors[count:]
        direction = query.to(roots[0].dtype) * key_gain.to(roots[0].dtype)
        norm = None if norm_gain is None else NextNorm(norm_gain, norm_eps)
        found = _forward(sources, roots, direction, norm, compile_bodies)
        ctx.set_materialize_grads(False)
        ctx.count, ctx.compile_bodies, ctx.norm_eps = count, compile_bodies, norm_eps
        mix = found.out if found.mix is None else found.mix
        ctx.save_for_backward(query, key_gain, norm_gain, mix, found.score, found.lse, found.root, *tensors)
        return found.out, *(source.view_as(source) for source in sources)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor | None, *handed: Tensor | None) -> tuple[Tensor | None, ...]:
        nothing = (None,) * ctx.count
        if upstream is None:
            return *(None,) * 6, *handed, *nothing
        with no_autocast(upstream):
            *dparameters, grads = _Read._gradients(ctx, upstream, handed)
        return *dparameters, None, None, None, *grads, *nothing

    @staticmethod
    def _gradients(
        ctx: Any, upstream: Tensor, handed: Sequence[Tensor | None]
    ) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
        query, key_gain, norm_gain, mix, score, lse, norm_root, *tensors = ctx.saved_tensors
        sources, roots = tensors[: ctx.count], tensors[ctx.count :]
        dtype, dim = lse.dtype, mix.shape[-1]
        direction = query.to(dtype) * key_gain.to(dtype)
        added = None
        if any(grad is not None for grad in handed):
            added = [
                torch.zeros_like(source) if grad is None else grad for grad, source in zip(handed, sources, strict=True)
            ]
        dnorm = None
        if ctx.compile_bodies:
            norm = None if norm_gain is None else NextNorm(norm_gain, ctx.norm_eps)
            grads, ddirection, dnorm = compiled.backward(
                upstream, mix, score, lse, sources, roots, added, direction, norm, norm_root
            )
        else:
            grads, ddirection = _plain_backward(
                upstream.reshape(-1, dim),
                score,
                lse,
                [source.reshape(-1, dim) for source in sources],
                [root.reshape(-1) for root in roots],
                None if added is None else [grad.reshape(-1, dim) for grad in added],
                direction,
            )
            grads = [grad.view(mix.shape) for grad in grads]
        dquery = (ddirection * key_gain.to(dtype)).to(query.dtype)
        dgain = (ddirection * query.to(dtype)).to(key_gain.dtype)
        return dquery, dgain, None if dnorm is None else dnorm.to(norm_gain.dtype), grads
