"""Bodies of the depth-attention read for Inductor: one loop over tokens a group of sources, each source read once.

Sources come in groups of at most eight, because a body is compiled for each number of sources. Within a group scores,
softmax and mix are one loop; from group to group the softmax goes on: with the mix `o` and log-sum-exp of what came
before, a group's scores s give `lse' = log(e^lse + Σ e^s)` and `o' = e^(lse − lse') o + Σ e^(s − lse') v`.

They stand beside those of `lean` because a measurement defends both: run eagerly they take twice as long (4 sources,
D = 512, 1,024 tokens, one thread). Shapes: N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from leadline.ops.body_math import added, as_rows, largest_of, times
from leadline.ops.compiled_body import once, run
from leadline.ops.next_norm import BodyNorm, NextNorm, for_body, norm_rows, norm_rows_back, over_tokens

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
    """What a read returns.

    Attributes:
        out: the mix (..., D), or the norm of it.
        score, lse: scores (k, N) and their log-sum-exp (N), as wide as the direction.
        mix, norm_rstd: with a norm, the mix itself (..., D) and its inverse RMS (N).
    """

    out: Tensor
    score: Tensor
    lse: Tensor
    mix: Tensor | None = None
    norm_rstd: Tensor | None = None


class Group(NamedTuple):
    """Sources (..., D) that one body reads, the inverse RMS of each (...), and, backward, their scores (k, N) and the
    gradients that later reads left for them (..., D)."""

    sources: Sequence[Tensor]
    rstds: Sequence[Tensor]
    scores: Tensor | None = None
    handed: Sequence[Tensor] | None = None


class Mixed(NamedTuple):
    """A mix (..., D), backward with its gradient (..., D); its log-sum-exp (N) and its reader's direction (D,)."""

    mix: Tensor
    lse: Tensor
    direction: Tensor
    upstream: Tensor


def forward(
    sources: Sequence[Tensor], rstds: Sequence[Tensor], direction: Tensor, norm: NextNorm | None = None
) -> Forward:
    """Of sources (..., D) with the inverse RMS of each (...)."""
    before, scores, last = None, [], len(sources)
    for group in groups(last):
        ends = group.stop == last
        body_norm = for_body(norm, direction.dtype) if ends else None
        mix, score, lse, out, rstd = run(_mix, before, Group(sources[group], rstds[group]), direction, ends, body_norm)
        before = (mix, lse)
        scores.append(score)
    score = scores[0] if len(scores) == 1 else torch.cat(scores)
    return Forward(mix, score, lse) if out is None else Forward(out, score, lse, mix, rstd)


def backward(
    read: Mixed, everything: Group, norm: NextNorm | None = None, norm_rstd: Tensor | None = None
) -> tuple[list[Tensor], Tensor, Tensor | None]:
    """Gradients of the sources, with those handed in added; of the direction (D,); of the norm's gain (D,)."""
    sources, rstds, scores, handed = everything
    assert scores is not None
    grads: list[Tensor] = []
    pull, along, dgain = None, None, None
    through = for_body(norm, read.direction.dtype)
    parts = groups(len(sources))
    if sources[0].dtype != read.direction.dtype:
        if through is not None:
            upstream, part, _ = run(_through_norm, read, through, norm_rstd)
            read, dgain, through, norm_rstd = read._replace(upstream=upstream), over_tokens(part), None, None
        for group in parts:
            pull = run(_pull, read, sources[group], scores[group], pull)
    for group in parts:
        some = Group(sources[group], rstds[group], scores[group], None if handed is None else handed[group])
        goes_on = through is not None and group.stop < len(sources)
        found, along, pull, part, upstream = run(_gradients, read, some, pull, along, through, norm_rstd, goes_on)
        grads += found
        if part is not None:
            dgain, through, norm_rstd = over_tokens(part), None, None
        if upstream is not None:
            read = read._replace(upstream=upstream)
    assert along is not None
    return grads, over_tokens(along), dgain


def _mix(
    before: tuple[Tensor, Tensor] | None, group: Group, direction: Tensor, ends: bool, norm: BodyNorm | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Mix (..., D), in the sources' dtype where it is whole, scores (k, N), log-sum-exp (N); and with a norm its output
    (..., D) and the mix's inverse RMS (N)."""
    like, dtype = group.sources[0], direction.dtype
    sources = [as_rows(source).to(dtype) for source in group.sources]
    scores = [(v * direction).sum(-1) * rstd.reshape(-1) for v, rstd in zip(sources, group.rstds, strict=True)]
    largest = largest_of(scores if before is None else [before[1], *scores])
    weights = [(score - largest).exp() for score in scores]
    rows = sources
    if before is not None:
        weights, rows = [(before[1] - largest).exp(), *weights], [as_rows(before[0]), *sources]
    normaliser = added(weights)
    shares = [weight / normaliser for weight in weights]
    once(*shares)
    total = added(map(times, rows, shares))
    mix = (total.to(like.dtype) if ends else total).view(like.shape)
    rest = (torch.stack(scores), largest + normaliser.log())
    if norm is None:
        return mix, *rest, None, None
    y, norm_rstd = norm_rows(as_rows(mix).to(dtype), norm)
    return mix, *rest, y.to(like.dtype).view(like.shape), norm_rstd


def _through_norm(read: Mixed, norm: BodyNorm, norm_rstd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `norm_rows_back`, in the inverse RMS's dtype."""
    dy, h = (as_rows(tensor).to(norm_rstd.dtype) for tensor in (read.upstream, read.mix))
    return norm_rows_back(dy, h, norm, norm_rstd)


def _pull(read: Mixed, sources: Sequence[Tensor], scores: Tensor, before: Tensor | None) -> Tensor:
    """`do·o` (N) as the sum of `p_i do·v_i`, for sources whose mix was rounded."""
    do = as_rows(read.upstream).to(read.lse.dtype)
    weights = [(score - read.lse).exp() for score in scores.unbind(0)]
    parts = [w * (do * as_rows(v).to(do.dtype)).sum(-1) for w, v in zip(weights, sources, strict=True)]
    return added(parts if before is None else [before, *parts])


def _gradients(
    read: Mixed,
    group: Group,
    pull: Tensor | None,
    along: Tensor | None,
    norm: BodyNorm | None,
    norm_rstd: Tensor | None,
    goes_on: bool,
) -> tuple[list[Tensor], Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of the sources; each token's part in the direction's gradient, (N, D); and `do·o`, which go from group
    to group: summing over tokens here would read every source a second time. Where a norm reads the mix, which is the
    first group's affair: its gain's part (N, D) and, if it goes on, the mix's gradient (N, D)."""
    direction, part = read.direction, None
    dtype, dim = direction.dtype, direction.shape[0]
    if norm is None or norm_rstd is None:
        do = as_rows(read.upstream).to(dtype)
    else:
        do, part, pull = _through_norm(read, norm, norm_rstd)
    if pull is None:
        pull = (do * as_rows(read.mix).to(dtype)).sum(-1)
    assert group.scores is not None
    grads = []
    for i, narrow in enumerate(group.sources):
        source, rstd, score = as_rows(narrow).to(dtype), group.rstds[i].reshape(-1), group.scores[i]
        weight = (score - read.lse).exp()
        slope = weight * ((do * source).sum(-1) - pull) * rstd
        back = slope * rstd * score / dim
        once(weight, slope, back)
        step = times(source, slope)
        along = step if along is None else along + step
        grad = times(do, weight) + times(direction, slope) - times(source, back)
        if group.handed is not None:
            grad = grad + as_rows(group.handed[i]).to(dtype)
        grads.append(grad.to(narrow.dtype).view(narrow.shape))
    assert along is not None
    return grads, along, pull, part, do if goes_on else None
