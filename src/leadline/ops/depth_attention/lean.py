"""Depth attention with a hand-written backward pass. Sources stay where they are: nothing is stacked or copied.

With the inverse RMS (rstd) `r_i = rsqrt(mean v_i² + eps)`, `q = query ⊙ gain`, `s_i = r_i q·v_i`, `p = softmax(s)`,
`o = Σ p_i v_i`:

    ds_i = p_i (do·v_i − do·o)                  dv_i = p_i do + ds_i r_i (q − (s_i r_i / D) v_i)
    dq = Σ_tokens Σ_i ds_i r_i v_i              dquery = dq ⊙ gain,  dgain = dq ⊙ query

A read returns its sources, and gradients accumulate in place through the read: that of all later reads of a source
comes back through this one, which adds its own part while it writes. No pass goes into adding gradients up. Saved for
backward: r and s, 2k scalars a token, and their log-sum-exp, beside the sources, which live anyway, and o, which the
norm that reads it keeps anyway. Sources of a narrower dtype are widened one at a time, and `do·o` is summed from
`do·v_i`: a rounded o would ruin dq where few sources have sharp weights. The bodies are these, in PyTorch's operators,
or those of `compiled`, which says why both are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.body_math import gradient_like
from leadline.ops.compiled_body import run
from leadline.ops.depth_attention import compiled
from leadline.ops.depth_attention.compiled import Forward, Group, Mixed
from leadline.ops.next_norm import BodyNorm, NextNorm, for_body, next_norm, norm_rows, normed
from leadline.ops.precision import no_autocast, wide


def read_lean(
    sources: Sequence[Tensor],
    rstds: Sequence[Tensor],
    query: Tensor,
    key_gain: Tensor,
    norm: NextNorm | None = None,
    *,
    compile_bodies: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The mix (..., D), normed where there is a norm, and the sources to be used from here on; see `read_sources`."""
    if len(sources) == 1:
        only = _OnlySource.apply(sources[0], query, key_gain) if torch.is_grad_enabled() else sources[0]
        return normed(only, norm), (only,)
    now, later = (norm, None) if compile_bodies else (None, norm)
    if torch.is_grad_enabled():
        gain, eps = now or (None, 0.0)
        mix, *handed = _Read.apply(len(sources), compile_bodies, eps, query, key_gain, gain, *sources, *rstds)
        return normed(mix, later), tuple(handed)
    direction = direction_of(query, key_gain, sources[0])
    return normed(_forward(sources, rstds, direction, now, compile_bodies).out, later), tuple(sources)


def read_few(
    sources: Sequence[Tensor], query: Tensor, key_gain: Tensor, eps: float, norm: NextNorm | None, compile_bodies: bool
) -> Tensor:
    """The mix of a few tokens without gradients, from stacked sources and without their inverse RMS: in as few
    operators as can be, or in one body, for any number of sources."""
    now, later = (norm, None) if compile_bodies else (None, norm)
    arguments = (torch.stack(list(sources)), query, key_gain, eps, for_body(now, sources[0].dtype))
    mix: Tensor = run(_few, *arguments) if compile_bodies else _few(*arguments)
    return normed(mix, later)


def _few(stacked: Tensor, query: Tensor, key_gain: Tensor, eps: float, norm: BodyNorm | None) -> Tensor:
    x = stacked.to(wide(stacked.dtype))
    rstd = (x.square().sum(-1) / x.shape[-1] + eps).rsqrt()
    weight = torch.softmax((x * direction_of(query, key_gain, x)).sum(-1) * rstd, dim=0)
    mix = (weight.unsqueeze(-1) * x).sum(0)
    if norm is not None:
        mix, _ = norm_rows(mix.to(stacked.dtype).to(x.dtype), norm)
    return mix.to(stacked.dtype)


def direction_of(query: Tensor, key_gain: Tensor, like: Tensor) -> Tensor:
    """`query ⊙ gain` in the dtype of the scores of sources such as `like`."""
    dtype = wide(like.dtype)
    return query.to(dtype) * key_gain.to(dtype)


def through_direction(ddirection: Tensor, query: Tensor, key_gain: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of query and gain."""
    dtype = ddirection.dtype
    return (ddirection * key_gain.to(dtype)).to(query.dtype), (ddirection * query.to(dtype)).to(key_gain.dtype)


def _forward(
    sources: Sequence[Tensor], rstds: Sequence[Tensor], direction: Tensor, norm: NextNorm | None, compile_bodies: bool
) -> Forward:
    """For N tokens; only compiled bodies take a norm."""
    if compile_bodies:
        return compiled.forward(sources, rstds, direction, norm)
    dtype, dim = direction.dtype, direction.shape[0]
    rows = [source.reshape(-1, dim) for source in sources]
    score = torch.stack([torch.mv(row.to(dtype), direction) for row in rows])
    score.mul_(torch.stack([rstd.reshape(-1) for rstd in rstds]))
    lse = score.logsumexp(dim=0)
    weight = (score - lse).exp_().unsqueeze(-1)
    total = rows[0].to(dtype) * weight[0]
    for row, w in zip(rows[1:], weight[1:].unbind(0), strict=True):
        total.addcmul_(row.to(dtype), w)
    return Forward(total.to(sources[0].dtype).view(sources[0].shape), score, lse)


def _backward(read: Mixed, group: Group) -> tuple[list[Tensor], Tensor]:
    """Gradients of the sources, with those handed in added, and of the direction."""
    dim, dtype, direction = read.direction.shape[0], read.direction.dtype, read.direction
    do = read.upstream.reshape(-1, dim).to(dtype)
    sources = [source.reshape(-1, dim) for source in group.sources]
    assert group.scores is not None
    weight = (group.scores - read.lse).exp_()
    products = torch.stack([(do * source).sum(dim=-1) for source in sources])
    pull = (weight * products).sum(dim=0)
    rstd = torch.stack([rstd.reshape(-1) for rstd in group.rstds])
    along = products.sub_(pull).mul_(weight).mul_(rstd)
    back = (along * rstd).mul_(group.scores).div_(-dim).unsqueeze(-1)
    weights, alongs = weight.unsqueeze(-1), along.unsqueeze(-1)
    grads = []
    ddirection = torch.zeros_like(direction)
    for i, narrow in enumerate(sources):
        source = narrow.to(dtype)
        if group.handed is None:
            grad = do * weights[i]
        else:
            grad = torch.addcmul(group.handed[i].reshape(-1, dim).to(dtype), do, weights[i])
        grad.addcmul_(alongs[i], direction).addcmul_(source, back[i])
        grads.append(grad.to(narrow.dtype).view(read.mix.shape))
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
    def forward(ctx: Any, count: int, compile_bodies: bool, norm_eps: float, *tensors: Any) -> tuple[Tensor, ...]:
        query, key_gain, norm_gain, *rest = tensors
        sources, rstds = rest[:count], rest[count:]
        direction = direction_of(query, key_gain, rstds[0])
        found = _forward(sources, rstds, direction, next_norm(norm_gain, norm_eps), compile_bodies)
        ctx.set_materialize_grads(False)
        ctx.count, ctx.compile_bodies, ctx.norm_eps = count, compile_bodies, norm_eps
        mix = found.out if found.mix is None else found.mix
        ctx.save_for_backward(*tensors[:3], mix, found.score, found.lse, found.norm_rstd, *rest)
        return found.out, *(source.view_as(source) for source in sources)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor | None, *handed: Tensor | None) -> tuple[Tensor | None, ...]:
        nothing = (None,) * ctx.count
        if upstream is None:
            return *(None,) * 6, *handed, *nothing
        query, key_gain, norm_gain, mix, score, lse, norm_rstd, *tensors = ctx.saved_tensors
        sources, rstds = tensors[: ctx.count], tensors[ctx.count :]
        added = None
        if any(grad is not None for grad in handed):
            added = [
                torch.zeros_like(source) if grad is None else grad for grad, source in zip(handed, sources, strict=True)
            ]
        dnorm = None
        with no_autocast(upstream):
            read = Mixed(mix, lse, direction_of(query, key_gain, lse), upstream)
            group = Group(sources, rstds, score, added)
            if ctx.compile_bodies:
                norm = next_norm(norm_gain, ctx.norm_eps)
                grads, ddirection, dnorm = compiled.backward(read, group, norm, norm_rstd)
            else:
                grads, ddirection = _backward(read, group)
            dparameters = through_direction(ddirection, query, key_gain)
        return None, None, None, *dparameters, gradient_like(dnorm, norm_gain), *grads, *nothing
