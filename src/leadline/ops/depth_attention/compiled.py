"""Bodies of the depth-attention read for Inductor: one loop over tokens a group of sources, each source read once.

Sources come in groups of at most eight, because a body is compiled for each number of sources. Within a group scores,
softmax and mix are one loop; from group to group the softmax goes on: with the mix `o` and log-sum-exp of what came
before, a group's scores s give `lse' = log(e^lse + Σ e^s)` and `o' = e^(lse − lse') o + Σ e^(s − lse') v`.
Shapes: N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from leadline.ops.bodies import once, run
from leadline.ops.next_norm import NextNorm, norm_rows, norm_rows_back, number, over_tokens
from leadline.ops.precision import wide

GROUPS = (8, 4, 2, 1)
"""The numbers of sources that bodies are compiled for."""


def groups(count: int) -> list[slice]:
    """`count` sources in as few groups as there are sizes for."""
    found, start = [], 0
    for size in GROUPS:
        while count - start >= size:
            found.append(slice(start, start + size))
            start += size
    return found


class Forward(NamedTuple):
    """What a read gives: the mix (..., D), or what is left of it after the norm; scores (k, N) and their log-sum-exp
    (N), as wide as the direction; with a norm, the mix itself (..., D) and its reciprocal root (N)."""

    out: Tensor
    score: Tensor
    lse: Tensor
    mix: Tensor | None = None
    root: Tensor | None = None


def forward(
    sources: Sequence[Tensor], roots: Sequence[Tensor], direction: Tensor, norm: NextNorm | None = None
) -> Forward:
    """Of sources (..., D) with their roots (...)."""
    mix, lse, scores = None, None, []
    last = len(sources)
    gain = None if norm is None else norm.gain
    eps = None if norm is None else number(norm.eps, direction.dtype)
    out, root = None, None
    for group in groups(last):
        ends = group.stop == last
        rest = (sources[group], roots[group], direction, ends, *((gain, eps) if ends else (None, None)))
        if mix is None or lse is None:
            mix, score, lse, out, root = run(_first, *rest)
        else:
            mix, score, lse, out, root = run(_next, mix, lse, *rest)
        scores.append(score)
    assert mix is not None
    assert lse is not None
    score = scores[0] if len(scores) == 1 else torch.cat(scores)
    return Forward(mix, score, lse) if out is None else Forward(out, score, lse, mix, root)


def backward(
    upstream: Tensor,
    mix: Tensor,
    scores: Tensor,
    lse: Tensor,
    sources: Sequence[Tensor],
    roots: Sequence[Tensor],
    handed: Sequence[Tensor] | None,
    direction: Tensor,
    norm: NextNorm | None = None,
    norm_root: Tensor | None = None,
) -> tuple[list[Tensor], Tensor, Tensor | None]:
    """Gradients of the sources, with what is handed in added; of the direction (D,); of the norm's gain (D,)."""
    grads: list[Tensor] = []
    pull, along, dgain = None, None, None
    gain, eps = None, None
    if norm is not None:
        gain, eps = norm.gain, number(norm.eps, direction.dtype)
    narrow = sources[0].dtype != direction.dtype
    parts = groups(len(sources))
    if norm is not None and narrow:
        upstream, part, _ = run(_through_norm, upstream, mix, gain, eps, norm_root)
        dgain, gain = over_tokens(part), None
    if narrow:
        for group in parts:
            pull = run(_pull, upstream, scores[group], lse, sources[group], pull)
    for group in parts:
        given = None if handed is None else handed[group]
        rest = (mix, scores[group], lse, sources[group], roots[group], given, direction, pull, along)
        if gain is None:
            found, along, pull = run(_gradients, upstream, *rest)
        else:
            goes_on = group.stop < len(sources)
            more = (gain, eps, norm_root, goes_on)
            found, along, pull, part, passed = run(_gradients_through_norm, upstream, *rest, *more)
            upstream = upstream if passed is None else passed
            dgain, gain = over_tokens(part), None
        grads += found
    assert along is not None
    return grads, over_tokens(along), dgain


def few(stacked: Tensor, query: Tensor, key_gain: Tensor, eps: float, norm: NextNorm | None) -> Tensor:
    """A read of (k, ..., D) without gradients, roots and all, in one body for any number of sources."""
    gain, norm_eps = (None, None) if norm is None else (norm.gain, number(norm.eps, wide(stacked.dtype)))
    mix: Tensor = run(_few, stacked, query, key_gain, eps, gain, norm_eps)
    return mix


def _few(
    stacked: Tensor, query: Tensor, key_gain: Tensor, eps: float, gain: Tensor | None, norm_eps: Tensor | None
) -> Tensor:
    x = stacked.to(wide(stacked.dtype)).reshape(stacked.shape[0], -1, stacked.shape[-1])
    root = (x.square().sum(-1) / x.shape[-1] + eps).rsqrt()
    direction = query.to(x.dtype) * key_gain.to(x.dtype)
    weight = torch.softmax((x * direction).sum(-1) * root, dim=0)
    mix = (weight.unsqueeze(-1) * x).sum(0)
    if gain is not None and norm_eps is not None:
        mix, _ = norm_rows(mix.to(stacked.dtype).to(x.dtype), gain, norm_eps)
    return mix.to(stacked.dtype).view(stacked.shape[1:])


def _scores(sources: Sequence[Tensor], roots: Sequence[Tensor], direction: Tensor) -> list[Tensor]:
    return [(v.to(direction.dtype) * direction).sum(-1) * r for v, r in zip(sources, roots, strict=True)]


def _rows(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors]


def _flat(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.reshape(-1) for tensor in tensors]


Found = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
"""Mix (..., D), scores (k, N), log-sum-exp (N); and with a norm its output (..., D) and the mix's root (N)."""


def _mixed(
    total: Tensor | None,
    weights: Sequence[Tensor],
    sources: Sequence[Tensor],
    like: Tensor,
    normaliser: Tensor,
    ends: bool,
    gain: Tensor | None,
    eps: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The mix in the form of `like`, narrow where it is whole; the norm of it and its root where there is a norm."""
    shares = [weight / normaliser for weight in weights]
    once(*shares)
    for share, source in zip(shares, sources, strict=True):
        part = source.to(normaliser.dtype) * share.unsqueeze(-1)
        total = part if total is None else total + part
    assert total is not None
    if not ends:
        return total.view(like.shape), None, None
    mix = total.to(like.dtype)
    if gain is None or eps is None:
        return mix.view(like.shape), None, None
    y, root = norm_rows(mix.to(total.dtype), gain, eps)
    return mix.view(like.shape), y.to(like.dtype).view(like.shape), root


def _first(
    sources: Sequence[Tensor],
    roots: Sequence[Tensor],
    direction: Tensor,
    ends: bool,
    gain: Tensor | None,
    eps: Tensor | None,
) -> Found:
    like, sources, roots = sources[0], _rows(sources), _flat(roots)
    scores = _scores(sources, roots, direction)
    largest = scores[0]
    for score in scores[1:]:
        largest = torch.maximum(largest, score)
    weights = [(score - largest).exp() for score in scores]
    normaliser = weights[0]
    for weight in weights[1:]:
        normaliser = normaliser + weight
    mix, out, root = _mixed(None, weights, sources, like, normaliser, ends, gain, eps)
    return mix, torch.stack(scores), largest + normaliser.log(), out, root


def _next(
    mix: Tensor,
    lse: Tensor,
    sources: Sequence[Tensor],
    roots: Sequence[Tensor],
    direction: Tensor,
    ends: bool,
    gain: Tensor | None,
    eps: Tensor | None,
) -> Found:
    like, sources, roots = sources[0], _rows(sources), _flat(roots)
    scores = _scores(sources, roots, direction)
    largest = lse
    for score in scores:
        largest = torch.maximum(largest, score)
    before = (lse - largest).exp()
    weights = [(score - largest).exp() for score in scores]
    normaliser = before
    for weight in weights:
        normaliser = normaliser + weight
    total = mix.reshape(-1, mix.shape[-1]) * (before / normaliser).unsqueeze(-1)
    mix, out, root = _mixed(total, weights, sources, like, normaliser, ends, gain, eps)
    return mix, torch.stack(scores), largest + normaliser.log(), out, root


def _through_norm(
    upstream: Tensor, mix: Tensor, gain: Tensor, eps: Tensor, root: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As `norm_rows_back`, in the root's dtype."""
    dy, h = (t.reshape(-1, t.shape[-1]).to(root.dtype) for t in (upstream, mix))
    return norm_rows_back(dy, h, gain, eps, root)


def _pull(upstream: Tensor, scores: Tensor, lse: Tensor, sources: Sequence[Tensor], before: Tensor | None) -> Tensor:
    """`do·o` (N) as the sum of `p_i do·v_i`, for sources whose mix was rounded."""
    do, total = upstream.reshape(-1, upstream.shape[-1]).to(lse.dtype), before
    for i, source in enumerate(_rows(sources)):
        part = (scores[i] - lse).exp() * (do * source.to(lse.dtype)).sum(-1)
        total = part if total is None else total + part
    assert total is not None
    return total


def _gradients(
    upstream: Tensor,
    mix: Tensor,
    scores: Tensor,
    lse: Tensor,
    sources: Sequence[Tensor],
    roots: Sequence[Tensor],
    handed: Sequence[Tensor] | None,
    direction: Tensor,
    pull: Tensor | None,
    along: Tensor | None,
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Gradients of the sources; each token's part in the direction's gradient, (N, D); and `do·o`.

    The last two go from group to group. Summing over tokens here would read every source a second time.
    """
    dtype, dim = direction.dtype, direction.shape[0]
    do = upstream.reshape(-1, dim).to(dtype)
    if pull is None:
        pull = (do * mix.reshape(-1, dim).to(dtype)).sum(-1)
    grads = []
    for i, (narrow, root) in enumerate(zip(_rows(sources), _flat(roots), strict=True)):
        source = narrow.to(dtype)
        weight = (scores[i] - lse).exp()
        slope = weight * ((do * source).sum(-1) - pull) * root
        back = slope * root * scores[i] / dim
        once(weight, slope, back)
        part = slope.unsqueeze(-1) * source
        along = part if along is None else along + part
        grad = weight.unsqueeze(-1) * do + slope.unsqueeze(-1) * direction - back.unsqueeze(-1) * source
        if handed is not None:
            grad = grad + handed[i].reshape(-1, dim).to(dtype)
        grads.append(grad.to(narrow.dtype).view(sources[i].shape))
    assert along is not None
    return grads, along, pull


def _gradients_through_norm(
    upstream: Tensor,
    mix: Tensor,
    scores: Tensor,
    lse: Tensor,
    sources: Sequence[Tensor],
    roots: Sequence[Tensor],
    handed: Sequence[Tensor] | None,
    direction: Tensor,
    pull: Tensor | None,
    along: Tensor | None,
    gain: Tensor,
    eps: Tensor,
    norm_root: Tensor,
    goes_on: bool,
) -> tuple[list[Tensor], Tensor, Tensor, Tensor, Tensor | None]:
    """The first group's `_gradients`, where a norm read the mix: its gain's part as well, (N, D), and, if there are
    more groups, the mix's gradient (N, D)."""
    do, part, pull = _through_norm(upstream, mix, gain, eps, norm_root)
    grads, along, pull = _gradients(do, mix, scores, lse, sources, roots, handed, direction, pull, along)
    return grads, along, pull, part, do if goes_on else None
