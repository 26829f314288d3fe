"""Bodies of the depth-attention read for Inductor: one loop over tokens a group of sources, each source read once.

Sources come in groups of at most eight, because a body is compiled for each number of sources. Within a group scores,
softmax and mix are one loop; from group to group the softmax goes on: with the mix `o` and log-sum-exp of what came
before, a group's scores s give `lse' = log(e^lse + Σ e^s)` and `o' = e^(lse − lse') o + Σ e^(s − lse') v`.
Shapes: N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leadline.ops.bodies import body

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


def forward(sources: Sequence[Tensor], roots: Sequence[Tensor], direction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mix (N, D) in the sources' dtype; scores (k, N) and their log-sum-exp (N), as wide as `direction`."""
    mix, lse, scores = None, None, []
    last = len(sources)
    for group in groups(last):
        narrow = group.stop == last
        if mix is None or lse is None:
            run = body(_first, True)
            mix, score, lse = run(sources[group], roots[group], direction, narrow)
        else:
            run = body(_next, True)
            mix, score, lse = run(mix, lse, sources[group], roots[group], direction, narrow)
        scores.append(score)
    assert mix is not None
    assert lse is not None
    return mix, scores[0] if len(scores) == 1 else torch.cat(scores), lse


def backward(
    upstream: Tensor,
    mix: Tensor,
    scores: Tensor,
    lse: Tensor,
    sources: Sequence[Tensor],
    roots: Sequence[Tensor],
    handed: Sequence[Tensor] | None,
    direction: Tensor,
) -> tuple[list[Tensor], Tensor]:
    """Gradients of the sources, with what is handed in added, and of the direction (D,)."""
    grads: list[Tensor] = []
    pull, along = None, None
    if sources[0].dtype != direction.dtype:
        for group in groups(len(sources)):
            pull = body(_pull, True)(upstream, scores[group], lse, sources[group], pull)
    for group in groups(len(sources)):
        given = None if handed is None else handed[group]
        run = body(_gradients, True)
        found, along, pull = run(
            upstream, mix, scores[group], lse, sources[group], roots[group], given, direction, pull, along
        )
        grads += found
    assert along is not None
    return grads, torch.mv(along.t(), along.new_ones(along.shape[0]))


def _scores(sources: Sequence[Tensor], roots: Sequence[Tensor], direction: Tensor) -> list[Tensor]:
    return [(v.to(direction.dtype) * direction).sum(-1) * r for v, r in zip(sources, roots, strict=True)]


def _summed(
    total: Tensor | None, weights: Sequence[Tensor], sources: Sequence[Tensor], normaliser: Tensor, narrow: bool
) -> Tensor:
    for weight, source in zip(weights, sources, strict=True):
        part = source.to(normaliser.dtype) * (weight / normaliser).unsqueeze(-1)
        total = part if total is None else total + part
    assert total is not None
    return total.to(sources[0].dtype) if narrow else total


def _first(
    sources: Sequence[Tensor], roots: Sequence[Tensor], direction: Tensor, narrow: bool
) -> tuple[Tensor, Tensor, Tensor]:
    scores = _scores(sources, roots, direction)
    largest = scores[0]
    for score in scores[1:]:
        largest = torch.maximum(largest, score)
    weights = [(score - largest).exp() for score in scores]
    normaliser = weights[0]
    for weight in weights[1:]:
        normaliser = normaliser + weight
    return _summed(None, weights, sources, normaliser, narrow), torch.stack(scores), largest + normaliser.log()


def _next(
    mix: Tensor, lse: Tensor, sources: Sequence[Tensor], roots: Sequence[Tensor], direction: Tensor, narrow: bool
) -> tuple[Tensor, Tensor, Tensor]:
    scores = _scores(sources, roots, direction)
    largest = lse
    for score in scores:
        largest = torch.maximum(largest, score)
    before = (lse - largest).exp()
    weights = [(score - largest).exp() for score in scores]
    normaliser = before
    for weight in weights:
        normaliser = normaliser + weight
    total = mix * (before / normaliser).unsqueeze(-1)
    return _summed(total, weights, sources, normaliser, narrow), torch.stack(scores), largest + normaliser.log()


def _pull(upstream: Tensor, scores: Tensor, lse: Tensor, sources: Sequence[Tensor], before: Tensor | None) -> Tensor:
    """`do·o` (N) as the sum of `p_i do·v_i`, for sources whose mix was rounded."""
    do, total = upstream.to(lse.dtype), before
    for i, source in enumerate(sources):
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
    do = upstream.to(dtype)
    if pull is None:
        pull = (do * mix.to(dtype)).sum(-1)
    grads = []
    for i, (narrow, root) in enumerate(zip(sources, roots, strict=True)):
        source = narrow.to(dtype)
        weight = (scores[i] - lse).exp()
        slope = weight * ((do * source).sum(-1) - pull) * root
        back = slope * root * scores[i] / dim
        part = slope.unsqueeze(-1) * source
        along = part if along is None else along + part
        grad = weight.unsqueeze(-1) * do + slope.unsqueeze(-1) * direction - back.unsqueeze(-1) * source
        if handed is not None:
            grad = grad + handed[i].to(dtype)
        grads.append(grad.to(narrow.dtype))
    assert along is not None
    return grads, along, pull
