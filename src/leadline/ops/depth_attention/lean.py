"""Depth attention with a hand-written backward pass. Sources stay where they are: nothing is stacked or copied.

With `r_i = rsqrt(mean v_i² + eps)`, `q = query ⊙ gain`, `s_i = r_i q·v_i`, `p = softmax(s)`, `o = Σ p_i v_i`:

    ds_i = p_i (do·v_i − Σ_j p_j do·v_j)        dv_i = p_i do + ds_i r_i (q − (s_i r_i / D) v_i)
    dq = Σ_tokens Σ_i ds_i r_i v_i              dquery = dq ⊙ gain,  dgain = dq ⊙ query

Saved for backward: r and s, 2k numbers a token, beside the sources, which live anyway. Sources of a narrower dtype are
widened one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.precision import no_autocast, wide

FEW_NUMBERS = 8192
"""Without gradients, sources of at most so many numbers are read stacked: there, launching operators is the cost."""


def depth_attention_lean(sources: Sequence[Tensor], roots: Sequence[Tensor], query: Tensor, key_gain: Tensor) -> Tensor:
    """The mix, (..., D); see `leadline.ops.depth_attention`."""
    result: Tensor
    if len(sources) == 1:
        result = _OnlySource.apply(sources[0], query, key_gain) if torch.is_grad_enabled() else sources[0]
    elif torch.is_grad_enabled():
        result = _DepthAttention.apply(query, key_gain, len(sources), *sources, *roots)
    elif torch.compiler.is_compiling() or sources[0].numel() > FEW_NUMBERS:
        result = mix(sources, scores(sources, roots, query, key_gain)[0].softmax(dim=0))
    else:
        result = _stacked_read(sources, roots, query, key_gain)
    return result


def _stacked_read(sources: Sequence[Tensor], roots: Sequence[Tensor], query: Tensor, key_gain: Tensor) -> Tensor:
    """The mix of a few tokens, in a number of operators that does not grow with the sources."""
    stacked = torch.stack(list(sources), dim=-2)
    x = stacked.to(wide(stacked.dtype))
    score = torch.matmul(x, query.to(x.dtype) * key_gain.to(x.dtype)).mul_(torch.stack(list(roots), dim=-1))
    return torch.matmul(score.softmax(dim=-1).unsqueeze(-2), x).squeeze(-2).to(stacked.dtype)


def scores(
    sources: Sequence[Tensor], roots: Sequence[Tensor], query: Tensor, key_gain: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores s (k, ...), roots r (k, ...) and the direction q (D,), all float32 or wider."""
    dtype = wide(sources[0].dtype)
    direction = query.to(dtype) * key_gain.to(dtype)
    products = torch.stack([torch.matmul(source.to(dtype), direction) for source in sources])
    stacked = torch.stack(list(roots))
    return products * stacked, stacked, direction


def mix(sources: Sequence[Tensor], weights: Tensor) -> Tensor:
    """`Σ_i weights_i v_i`, accumulated in the weights' dtype and rounded once."""
    expanded = weights.unsqueeze(-1)
    total = sources[0].to(weights.dtype) * expanded[0]
    for source, weight in zip(sources[1:], expanded[1:].unbind(0), strict=True):
        total.addcmul_(source.to(weights.dtype), weight)
    return total.to(sources[0].dtype)


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


class _DepthAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key_gain: Tensor, count: int, *tensors: Tensor) -> Tensor:
        sources, roots = tensors[:count], tensors[count:]
        score, root, direction = scores(sources, roots, query, key_gain)
        ctx.count = count
        ctx.save_for_backward(query, key_gain, direction, score, root, *sources)
        return mix(sources, score.softmax(dim=0))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        with no_autocast(upstream):
            return _DepthAttention._gradients(ctx, upstream)

    @staticmethod
    def _gradients(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key_gain, direction, score, root, *sources = ctx.saved_tensors
        count, dim, dtype = ctx.count, direction.shape[0], direction.dtype
        do = upstream.to(dtype)
        weight = score.softmax(dim=0)
        products = torch.stack([(do * source).sum(dim=-1) for source in sources])
        dscore = weight * (products - (weight * products).sum(dim=0))
        along = dscore * root
        back = (along * root * score).div_(-dim).unsqueeze(-1).unbind(0)
        weights, alongs = weight.unsqueeze(-1).unbind(0), along.unsqueeze(-1)
        dsources: list[Tensor | None] = []
        ddirection = torch.zeros_like(direction)
        for i, narrow in enumerate(sources):
            source = narrow.to(dtype)
            if ctx.needs_input_grad[3 + i]:
                grad = do * weights[i]
                grad.addcmul_(alongs[i], direction).addcmul_(source, back[i])
                dsources.append(grad.to(narrow.dtype))
            else:
                dsources.append(None)
            ddirection += torch.matmul(along[i].reshape(-1), source.reshape(-1, dim))
        dquery = (ddirection * key_gain.to(dtype)).to(query.dtype)
        dgain = (ddirection * query.to(dtype)).to(key_gain.dtype)
        return dquery, dgain, None, *dsources, *([None] * count)
