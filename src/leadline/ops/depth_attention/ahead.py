"""Depth attention in two phases: several readers over sources that are there, then each goes on with what came later.

Phase 1 reads a bank once for S readers: for each its mix `O` and log-sum-exp `L`. Phase 2 merges the sources that were
written since: `h = e^(L − L') O + Σ_i e^(s_i − L') v_i` with `L' = log(e^L + Σ_i e^(s_i))`; for one source b that is
`O + σ(s_b − L) (b − O)`. Equal to one read of all sources to rounding.
Source: AttnRes, arXiv 2603.15031; the backward passes are derived. S readers, N tokens, D width.

Backward of phase 1, with `p_si` the weights, `δ_s = Σ_i p_si dO_s·v_i`, `ds_si = p_si (dO_s·v_i − δ_s + dL_s)`:

    dv_i = Σ_s p_si dO_s + Σ_s ds_si r_i (q_s − (s_si r_i / D) v_i)        dq_s = Σ_tokens Σ_i ds_si r_i v_i

Of phase 2, with `w_0 = e^(L − L')` and w_i the weights: `w_0 dh·O = dh·h − Σ_i w_i dh·v_i`, so O is not saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.choices import Backend
from leadline.errors import UsageError
from leadline.ops.choice import chosen
from leadline.ops.depth_attention.reference import source_roots
from leadline.ops.precision import few_numbers, no_autocast, wide


class Ahead(NamedTuple):
    """Phase 1.

    Attributes:
        mixes: O of each reader, (..., D) in the sources' dtype.
        lse: L of each, (...), float32 or wider.
        bank: the sources, to be used from here on (see `read_sources`).
    """

    mixes: tuple[Tensor, ...]
    lse: tuple[Tensor, ...]
    bank: tuple[Tensor, ...]


def read_ahead(
    bank: Sequence[Tensor],
    directions: Tensor,
    eps: float,
    *,
    roots: Sequence[Tensor] | None = None,
    backend: Backend = "auto",
) -> Ahead:
    """Phase 1: what S readers make of a bank, each source read once for all of them.

    Args:
        bank: k ≥ 1 sources (..., D) of one dtype.
        directions: (S, D), `query ⊙ key_gain` of each reader.
        eps: in the root mean square of a source.
        roots: of the bank, if known.
        backend: "reference" is plain PyTorch; every other one runs the hand-written gradients.

    Raises:
        UsageError: an empty bank, or a backend that can't run here.
    """
    if not bank:
        raise UsageError("read_ahead needs at least one source")
    implementation = chosen(backend, bank[0])
    with no_autocast(bank[0]):
        if implementation == "reference":
            mixes, lse = _ahead_reference(bank, directions, eps)
            return Ahead(mixes.unbind(0), lse.unbind(0), tuple(bank))
        if few_numbers(bank[0]):
            return _ahead_few(bank, directions, eps)
        known = source_roots(bank, eps, roots)
        mixes, lse, *handed = _Ahead.apply(directions, len(bank), *bank, *known)
        return Ahead(mixes.unbind(0), lse.unbind(0), tuple(handed))


def read_on(
    mix: Tensor,
    lse: Tensor,
    sources: Sequence[Tensor],
    direction: Tensor,
    eps: float,
    *,
    roots: Sequence[Tensor] | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Phase 2: one reader's mix of a bank and of the sources written since; and these sources, to be used from here on.

    Args:
        mix, lse: the reader's, from `read_ahead`.
        sources: any number of (..., D); with none the mix is returned.
        direction: (D,).
        eps, roots, backend: as for `read_ahead`.
    """
    if not sources:
        return mix, ()
    implementation = chosen(backend, mix)
    with no_autocast(mix):
        if implementation == "reference":
            return _on_reference(mix, lse, sources, direction, eps), tuple(sources)
        if few_numbers(mix) and len(sources) == 1:
            return _on_few(mix, lse, sources[0], direction, eps), tuple(sources)
        known = source_roots(sources, eps, roots)
        merged, *handed = _On.apply(mix, lse, direction, len(sources), *sources, *known)
        return merged, tuple(handed)


def _ahead_reference(bank: Sequence[Tensor], directions: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x = torch.stack([source.to(wide(source.dtype)) for source in bank])
    unit = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    scores = torch.einsum("k...d,sd->ks...", unit, directions.to(x.dtype))
    mixes = torch.einsum("ks...,k...d->s...d", scores.softmax(0), x)
    return mixes.to(bank[0].dtype), scores.logsumexp(0)


def _on_reference(mix: Tensor, lse: Tensor, sources: Sequence[Tensor], direction: Tensor, eps: float) -> Tensor:
    x = torch.stack([source.to(lse.dtype) for source in sources])
    unit = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    scores = torch.cat((lse.unsqueeze(0), (unit * direction.to(x.dtype)).sum(-1)))
    everything = torch.cat((mix.to(lse.dtype).unsqueeze(0), x))
    return (scores.softmax(0).unsqueeze(-1) * everything).sum(0).to(mix.dtype)


def _ahead_few(bank: Sequence[Tensor], directions: Tensor, eps: float) -> Ahead:
    """For a few tokens without gradients: few operators."""
    stacked = torch.stack(list(bank), dim=-2)
    x = stacked.to(wide(stacked.dtype))
    scores = F.linear(F.rms_norm(x, x.shape[-1:], None, eps), directions.to(x.dtype)).mT
    mixes = torch.matmul(scores.softmax(-1), x).to(stacked.dtype)
    return Ahead(mixes.unbind(-2), scores.logsumexp(-1).unbind(-1), tuple(bank))


def _on_few(mix: Tensor, lse: Tensor, source: Tensor, direction: Tensor, eps: float) -> Tensor:
    x = source.to(lse.dtype)
    share = torch.sigmoid(torch.matmul(F.rms_norm(x, x.shape[-1:], None, eps), direction.to(x.dtype)) - lse)
    return torch.lerp(mix.to(lse.dtype), x, share.unsqueeze(-1)).to(mix.dtype)


class _Ahead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, directions: Tensor, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        bank, roots = tensors[:count], tensors[count:]
        dtype, dim, shape = roots[0].dtype, directions.shape[-1], bank[0].shape
        queries = directions.to(dtype)
        rows = [source.reshape(-1, dim).to(dtype) for source in bank]
        scores = torch.stack([torch.mm(queries, x.t()).mul_(r.reshape(-1)) for x, r in zip(rows, roots, strict=True)])
        lse = scores.logsumexp(0)
        weights = (scores - lse).exp_().unsqueeze(-1)
        mixes = rows[0] * weights[0]
        for x, weight in zip(rows[1:], weights[1:].unbind(0), strict=True):
            mixes.addcmul_(x, weight)
        ctx.set_materialize_grads(False)
        ctx.count = count
        ctx.save_for_backward(directions, scores, lse, *tensors)
        readers = directions.shape[0]
        return (
            mixes.to(bank[0].dtype).view(readers, *shape),
            lse.view(readers, *shape[:-1]),
            *(source.view_as(source) for source in bank),
        )

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dmixes: Tensor | None, dlse: Tensor | None, *handed: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        nothing = (None,) * ctx.count
        directions, scores, lse, *tensors = ctx.saved_tensors
        if dmixes is None and dlse is None:
            return torch.zeros_like(directions), None, *handed, *nothing
        bank, roots = tensors[: ctx.count], tensors[ctx.count :]
        dtype, dim, shape = lse.dtype, directions.shape[-1], bank[0].shape
        with no_autocast(directions):
            queries, weights = directions.to(dtype), (scores - lse).exp_()
            rows = [source.reshape(-1, dim).to(dtype) for source in bank]
            do = None if dmixes is None else dmixes.reshape(len(queries), -1, dim).to(dtype)
            if do is None:
                slopes = torch.zeros_like(scores)
            else:
                slopes = torch.stack([torch.einsum("snd,nd->sn", do, x) for x in rows])
                slopes = slopes - (weights * slopes).sum(0)
            if dlse is not None:
                slopes = slopes + dlse.reshape(lse.shape)
            root = torch.stack([r.reshape(-1) for r in roots]).unsqueeze(1)
            along = slopes.mul_(weights).mul_(root)
            back = (along * scores).sum(1).mul_(root.squeeze(1)).div_(-dim).unsqueeze(-1)
            ddirections = torch.zeros_like(queries)
            grads = []
            for i, x in enumerate(rows):
                given = handed[i]
                grad = x * back[i] if given is None else torch.addcmul(given.reshape(-1, dim).to(dtype), x, back[i])
                grad.addmm_(along[i].t(), queries)
                if do is not None:
                    for reader in range(len(queries)):
                        grad.addcmul_(do[reader], weights[i, reader].unsqueeze(-1))
                ddirections.addmm_(along[i], x)
                grads.append(grad.to(bank[i].dtype).view(shape))
        return ddirections.to(directions.dtype), None, *grads, *nothing


class _On(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, mix: Tensor, lse: Tensor, direction: Tensor, count: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        sources, roots = tensors[:count], tensors[count:]
        dtype = lse.dtype
        query = direction.to(dtype)
        scores = torch.stack([torch.matmul(v.to(dtype), query) * r for v, r in zip(sources, roots, strict=True)])
        whole = torch.logaddexp(lse, scores.logsumexp(0))
        total = mix.to(dtype) * (lse - whole).exp_().unsqueeze(-1)
        for source, weight in zip(sources, (scores - whole).exp_().unbind(0), strict=True):
            total.addcmul_(source.to(dtype), weight.unsqueeze(-1))
        merged = total.to(mix.dtype)
        ctx.set_materialize_grads(False)
        ctx.count = count
        ctx.save_for_backward(lse, direction, scores, whole, merged, *tensors)
        return merged, *(source.view_as(source) for source in sources)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor | None, *handed: Tensor | None) -> tuple[Tensor | None, ...]:
        nothing = (None,) * ctx.count
        lse, direction, scores, whole, merged, *tensors = ctx.saved_tensors
        if upstream is None:
            return None, None, torch.zeros_like(direction), None, *handed, *nothing
        sources, roots = tensors[: ctx.count], tensors[ctx.count :]
        dtype, dim = lse.dtype, direction.shape[0]
        with no_autocast(upstream):
            do, query = upstream.to(dtype), direction.to(dtype)
            first, weights = (lse - whole).exp_(), (scores - whole).exp_()
            products = torch.stack([(do * source).sum(-1) for source in sources])
            pull = (do * merged).sum(-1)
            dlse = pull - (weights * products).sum(0) - first * pull
            ddirection = torch.zeros_like(query)
            grads = []
            for i, (narrow, root, given) in enumerate(zip(sources, roots, handed, strict=True)):
                source = narrow.to(dtype)
                along = weights[i] * (products[i] - pull) * root
                back = (along * root * scores[i]).div_(-dim).unsqueeze(-1)
                grad = source * back if given is None else torch.addcmul(given.to(dtype), source, back)
                grad.addcmul_(do, weights[i].unsqueeze(-1)).addcmul_(along.unsqueeze(-1), query)
                ddirection += torch.mv(source.reshape(-1, dim).t(), along.reshape(-1))
                grads.append(grad.to(narrow.dtype))
            dmix = (do * first.unsqueeze(-1)).to(merged.dtype)
        return dmix, dlse, ddirection.to(direction.dtype), None, *grads, *nothing
