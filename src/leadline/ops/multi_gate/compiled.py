"""Bodies of the multi-gate step for Inductor: one loop over tokens forward, one backward, stream by stream.

Streams are handled one by one and never as one tensor with a stream dimension, so that Inductor keeps a token's rows
together. Shapes: S streams, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from leadline.ops.bodies import body


class Forward(NamedTuple):
    """What a forward body gives: streams (S, N, D) or None where nothing was flushed, read (N, D), gates (S, N),
    roots (S, N), and the scores of pool and gate (S, N)."""

    streams: Tensor | None
    read: Tensor
    gates: Tensor | None
    root: Tensor
    pool_score: Tensor | None
    gate_score: Tensor | None


def forward(
    streams: Tensor,
    output: Tensor | None,
    beta: Tensor | None,
    pool_query: Tensor | None,
    gate_query: Tensor | None,
    gate_bias: Tensor | None,
    independent: bool,
    eps: float,
) -> Forward:
    """As `lean.forward`, on streams (S, N, D)."""
    run = body(_forward, True)
    return Forward(*run(streams.unbind(0), output, beta, pool_query, gate_query, gate_bias, independent, eps))


def backward(
    old: Tensor,
    new: Tensor | None,
    output: Tensor | None,
    beta: Tensor | None,
    pool_query: Tensor | None,
    gate_query: Tensor | None,
    gates: Tensor | None,
    root: Tensor,
    pool_score: Tensor | None,
    gate_score: Tensor | None,
    dstreams: Tensor | None,
    dread: Tensor | None,
    dgates: Tensor | None,
    independent: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of streams, output, beta, pool query, gate query and gate bias."""
    run = body(backward_body, True)
    result: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None] = run(
        old.unbind(0),
        None if new is None else new.unbind(0),
        output,
        beta,
        pool_query,
        gate_query,
        gates,
        root,
        pool_score,
        gate_score,
        None if dstreams is None else dstreams.unbind(0),
        dread,
        dgates,
        independent,
    )
    return result


def _softmax(scores: Sequence[Tensor]) -> list[Tensor]:
    largest = scores[0]
    for score in scores[1:]:
        largest = torch.maximum(largest, score)
    weights = [(score - largest).exp() for score in scores]
    whole = _sum(weights)
    return [weight / whole for weight in weights]


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _forward(
    streams: Sequence[Tensor],
    output: Tensor | None,
    beta: Tensor | None,
    pool_query: Tensor | None,
    gate_query: Tensor | None,
    gate_bias: Tensor | None,
    independent: bool,
    eps: float,
) -> tuple[Tensor | None, Tensor, Tensor | None, Tensor, Tensor | None, Tensor | None]:
    narrow, dim = streams[0].dtype, streams[0].shape[-1]
    dtype = torch.promote_types(narrow, torch.float32)
    rows = [stream.to(dtype) for stream in streams]
    if output is not None and beta is not None:
        wide = output.to(dtype)
        rows = [row + beta[i].unsqueeze(-1) * (wide - row) for i, row in enumerate(rows)]
        rows = [row.to(narrow).to(dtype) for row in rows]
    roots = [(row.square().sum(-1) / dim + eps).rsqrt() for row in rows]
    pools, zs, gates = None, None, None
    if pool_query is None:
        read = rows[0]
    else:
        pools = [(row * pool_query).sum(-1) * (root * dim**-0.5) for row, root in zip(rows, roots, strict=True)]
        read = _sum([row * weight.unsqueeze(-1) for row, weight in zip(rows, _softmax(pools), strict=True)])
    if gate_query is not None and gate_bias is not None:
        zs = [(row * gate_query).sum(-1) * (root * dim**-0.5) for row, root in zip(rows, roots, strict=True)]
        if independent:
            gates = [torch.sigmoid(z + gate_bias) for z in zs]
        else:
            gates = _softmax([gate_bias.expand_as(zs[0]), *zs])[1:]
    return (
        None if output is None else torch.stack(rows).to(narrow),
        read.to(narrow),
        None if gates is None else torch.stack(gates),
        torch.stack(roots),
        None if pools is None else torch.stack(pools),
        None if zs is None else torch.stack(zs),
    )


def backward_body(
    old: Sequence[Tensor],
    new: Sequence[Tensor] | None,
    output: Tensor | None,
    beta: Tensor | None,
    pool_query: Tensor | None,
    gate_query: Tensor | None,
    gates: Tensor | None,
    root: Tensor,
    pool_score: Tensor | None,
    gate_score: Tensor | None,
    dstreams: Sequence[Tensor] | None,
    dread: Tensor | None,
    dgates: Tensor | None,
    independent: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    dtype, dim, count = root.dtype, old[0].shape[-1], len(old)
    rows = [row.to(dtype) for row in (old if new is None else new)]
    totals = [torch.zeros_like(row) if dstreams is None else dstreams[i].to(dtype) for i, row in enumerate(rows)]
    backs = [torch.zeros_like(root[0])] * count
    alongs: list[list[Tensor]] = []
    if pool_query is not None and pool_score is not None and dread is not None:
        weights = _softmax(pool_score.unbind(0))
        do = dread.to(dtype)
        products = [(row * do).sum(-1) for row in rows]
        pull = _sum([weight * product for weight, product in zip(weights, products, strict=True)])
        slopes = [weight * (product - pull) for weight, product in zip(weights, products, strict=True)]
        totals = [total + weight.unsqueeze(-1) * do for total, weight in zip(totals, weights, strict=True)]
        alongs.append([slope * (root[i] * dim**-0.5) for i, slope in enumerate(slopes)])
        totals = [t + a.unsqueeze(-1) * pool_query for t, a in zip(totals, alongs[-1], strict=True)]
        backs = [back + slope * pool_score[i] for i, (back, slope) in enumerate(zip(backs, slopes, strict=True))]
    elif pool_query is None and dread is not None:
        totals[0] = totals[0] + dread.to(dtype)
    dbias = None
    if gate_query is not None and gate_score is not None and gates is not None and dgates is not None:
        if independent:
            slopes = [dgates[i] * gates[i] * (1 - gates[i]) for i in range(count)]
            dbias = _sum(slopes).sum()
        else:
            pull = _sum([gates[i] * dgates[i] for i in range(count)])
            slopes = [gates[i] * (dgates[i] - pull) for i in range(count)]
            dbias = -((1 - _sum(gates.unbind(0))) * pull).sum()
        alongs.append([slope * (root[i] * dim**-0.5) for i, slope in enumerate(slopes)])
        totals = [t + a.unsqueeze(-1) * gate_query for t, a in zip(totals, alongs[-1], strict=True)]
        backs = [back + slope * gate_score[i] for i, (back, slope) in enumerate(zip(backs, slopes, strict=True))]
    if alongs:
        totals = [
            total - (back * root[i].square() / dim).unsqueeze(-1) * rows[i]
            for i, (total, back) in enumerate(zip(totals, backs, strict=True))
        ]
    dqueries: list[Tensor | None] = [None, None]
    if alongs:
        product = _sum([torch.mm(torch.stack([a[i] for a in alongs]), rows[i]) for i in range(count)])
        pooled = pool_query is not None and dread is not None
        dqueries[0] = product[0] if pooled else None
        dqueries[1] = product[-1] if dbias is not None else None
    if output is None or beta is None:
        return torch.stack([t.to(old[0].dtype) for t in totals]), None, None, dqueries[0], dqueries[1], dbias
    wide = output.to(dtype)
    written = [total * beta[i].unsqueeze(-1) for i, total in enumerate(totals)]
    dbeta = [((wide - row.to(dtype)) * total).sum(-1) for row, total in zip(old, totals, strict=True)]
    dold = [(total - part).to(old[0].dtype) for total, part in zip(totals, written, strict=True)]
    doutput = _sum(written).to(output.dtype)
    return torch.stack(dold), doutput, torch.stack(dbeta), dqueries[0], dqueries[1], dbias
