"""Bodies of the multi-gate step for Inductor: one loop over tokens forward, one backward, stream by stream.

Streams are handled one by one and never as one tensor with a stream dimension, so that Inductor keeps a token's rows
together. Shapes: S streams, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from leadline.ops.bodies import once, run
from leadline.ops.next_norm import NextNorm, norm_rows, norm_rows_back, number, over_tokens
from leadline.ops.precision import wide


class Forward(NamedTuple):
    """What a forward body gives: streams (S, ..., D) or None where nothing was flushed, read (..., D), gates (S, ...),
    roots (S, N), the scores of pool and gate (S, N), and the reciprocal root (N) of a read that was normed."""

    streams: Tensor | None
    read: Tensor
    gates: Tensor | None
    root: Tensor
    pool_score: Tensor | None
    gate_score: Tensor | None
    norm_root: Tensor | None = None


def forward(
    streams: Tensor,
    output: Tensor | None,
    beta: Tensor | None,
    pool_query: Tensor | None,
    gate_query: Tensor | None,
    gate_bias: Tensor | None,
    independent: bool,
    eps: float,
    norm: NextNorm | None = None,
) -> Forward:
    """As `lean.forward`, on streams (S, ..., D); with a norm, the read is the norm of it."""
    gain, norm_eps = _parts(norm, streams.dtype)
    parameters = (pool_query, gate_query, gate_bias, independent, eps, gain, norm_eps)
    return Forward(*run(_forward, streams, output, beta, *parameters))


def few(
    streams: Tensor,
    pending: tuple[Tensor, Tensor] | None,
    pool_query: Tensor,
    gate: tuple[Tensor, Tensor] | None,
    independent: bool,
    eps: float,
    norm: NextNorm | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Streams, read and gates of a step for a few tokens without gradients."""
    output, beta = pending or (None, None)
    gate_query, gate_bias = gate or (None, None)
    gain, norm_eps = _parts(norm, streams.dtype)
    parameters = (pool_query, gate_query, gate_bias, independent, eps, gain, norm_eps)
    new, read, gates = run(_few, streams, output, beta, *parameters)
    return streams if new is None else new, read, gates


def backward(
    old: Tensor,
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
    norm: NextNorm | None = None,
    norm_root: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """Gradients of streams, output, beta, pool query, gate query, gate bias and the norm's gain.

    The streams after the flush are worked out again from those before it: a multiplication a number, no read.
    """
    gain, norm_eps = _parts(norm, old.dtype)
    queries = (pool_query, gate_query)
    numbers = (gates, root, pool_score, gate_score)
    given = (dstreams, dread, dgates)
    found = run(_backward, old, output, beta, *queries, *numbers, *given, independent, gain, norm_eps, norm_root)
    return summed(found)


def summed(found: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The gradients that a body gives, with those of pool query, gate query and, if there, the norm's gain summed over
    tokens."""
    dold, doutput, dbeta, dpool, dgate, dbias, *dgain = found
    dpool, dgate, *dgain = (None if part is None else over_tokens(part) for part in (dpool, dgate, *dgain))
    return dold, doutput, dbeta, dpool, dgate, dbias, *dgain


def _parts(norm: NextNorm | None, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if norm is None else (norm.gain, number(norm.eps, wide(dtype)))


def _rows(tensor: Tensor) -> list[Tensor]:
    return list(tensor.reshape(tensor.shape[0], -1, tensor.shape[-1]).unbind(0))


def _flushed(streams: Sequence[Tensor], output: Tensor | None, beta: Tensor | None, dtype: torch.dtype) -> list[Tensor]:
    """The streams after the pending write, rounded as they are kept, in `dtype`."""
    rows = [stream.to(dtype) for stream in streams]
    if output is None or beta is None:
        return rows
    rows = [row + beta[i].unsqueeze(-1) * (output.to(dtype) - row) for i, row in enumerate(rows)]
    return [row.to(streams[0].dtype).to(dtype) for row in rows]


def _row(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.reshape(-1, tensor.shape[-1])


def _numbers(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.reshape(tensor.shape[0], -1)


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
    streams: Tensor,
    output: Tensor | None,
    beta: Tensor | None,
    pool_query: Tensor | None,
    gate_query: Tensor | None,
    gate_bias: Tensor | None,
    independent: bool,
    eps: float,
    gain: Tensor | None,
    norm_eps: Tensor | None,
) -> tuple[Tensor | None, ...]:
    shape, narrow, dim = streams.shape, streams.dtype, streams.shape[-1]
    dtype = torch.promote_types(narrow, torch.float32)
    output, beta = _row(output), _numbers(beta)
    rows = _flushed(_rows(streams), output, beta, dtype)
    roots = [(row.square().sum(-1) / dim + eps).rsqrt() for row in rows]
    pools, zs, gates = None, None, None
    if pool_query is None:
        read = rows[0]
    else:
        pools = [(row * pool_query).sum(-1) * (root * dim**-0.5) for row, root in zip(rows, roots, strict=True)]
        weights = _softmax(pools)
        once(*weights)
        read = _sum([row * weight.unsqueeze(-1) for row, weight in zip(rows, weights, strict=True)])
    if gate_query is not None and gate_bias is not None:
        zs = [(row * gate_query).sum(-1) * (root * dim**-0.5) for row, root in zip(rows, roots, strict=True)]
        if independent:
            gates = [torch.sigmoid(z + gate_bias) for z in zs]
        else:
            gates = _softmax([gate_bias.expand_as(zs[0]), *zs])[1:]
    norm_root = None
    if gain is not None and norm_eps is not None:
        read, norm_root = norm_rows(read.to(narrow).to(dtype), gain, norm_eps)
    return (
        None if output is None else torch.stack(rows).to(narrow).view(shape),
        read.to(narrow).view(shape[1:]),
        None if gates is None else torch.stack(gates).view(shape[:-1]),
        torch.stack(roots),
        None if pools is None else torch.stack(pools),
        None if zs is None else torch.stack(zs),
        norm_root,
    )


def _few(
    streams: Tensor,
    output: Tensor | None,
    beta: Tensor | None,
    pool_query: Tensor,
    gate_query: Tensor | None,
    gate_bias: Tensor | None,
    independent: bool,
    eps: float,
    gain: Tensor | None,
    norm_eps: Tensor | None,
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """All streams as one tensor: for a few tokens it is the number of buffers that costs, not their size."""
    narrow, dim = streams.dtype, streams.shape[-1]
    x = streams.to(wide(narrow))
    new = None
    if output is not None and beta is not None:
        new = (x + beta.unsqueeze(-1) * (output.to(x.dtype) - x)).to(narrow)
        x = new.to(x.dtype)
    root = (x.square().sum(-1) / dim + eps).rsqrt() * dim**-0.5
    weight = torch.softmax((x * pool_query.to(x.dtype)).sum(-1) * root, dim=0)
    read = (weight.unsqueeze(-1) * x).sum(0)
    gates = None
    if gate_query is not None and gate_bias is not None:
        z, gate_bias = (x * gate_query.to(x.dtype)).sum(-1) * root, gate_bias.to(x.dtype)
        if independent:
            gates = torch.sigmoid(z + gate_bias)
        else:
            largest = torch.maximum(z.amax(0), gate_bias)
            weights = (z - largest).exp()
            gates = weights / (weights.sum(0) + (gate_bias - largest).exp())
    if gain is not None and norm_eps is not None:
        read, _ = norm_rows(read.to(narrow).to(x.dtype), gain, norm_eps)
    return new, read.to(narrow), gates


def _backward(
    old: Tensor,
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
    gain: Tensor | None,
    norm_eps: Tensor | None,
    norm_root: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """What was read is summed up again from the streams, so that it need not be kept for the norm's gradient."""
    before, output, beta, dread, part = _rows(old), _row(output), _numbers(beta), _row(dread), None
    rows = _flushed(before, output, beta, root.dtype)
    if gain is not None and norm_eps is not None and norm_root is not None and dread is not None:
        weights = [] if pool_score is None else _softmax(pool_score.unbind(0))
        read = _sum([row * w.unsqueeze(-1) for row, w in zip(rows, weights, strict=True)]) if weights else rows[0]
        read = read.to(old.dtype).to(root.dtype)
        dread, part, _ = norm_rows_back(dread.to(root.dtype), read, gain, norm_eps, norm_root)
    dold, doutput, dbeta, *dparameters = backward_body(
        before,
        rows,
        output,
        beta,
        pool_query,
        gate_query,
        _numbers(gates),
        root,
        pool_score,
        gate_score,
        None if dstreams is None else _rows(dstreams),
        dread,
        _numbers(dgates),
        independent,
    )
    return (
        dold.view(old.shape),
        None if doutput is None else doutput.view(old.shape[1:]),
        None if dbeta is None else dbeta.view(old.shape[:-1]),
        *dparameters,
        part,
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
    """Gradients of streams, output and beta; what those of pool query and gate query sum over tokens, (N, D) each, for
    `summed`; and that of the gate bias."""
    dtype, dim, count = root.dtype, old[0].shape[-1], len(old)
    rows = [row.to(dtype) for row in (old if new is None else new)]
    totals = [torch.zeros_like(row) if dstreams is None else dstreams[i].to(dtype) for i, row in enumerate(rows)]
    backs = [torch.zeros_like(root[0])] * count
    alongs: list[list[Tensor]] = []
    if pool_query is not None and pool_score is not None and dread is not None:
        weights = _softmax(pool_score.unbind(0))
        once(*weights)
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
    pooled, gated = None, None
    if alongs:
        shrinks = [back * root[i].square() / dim for i, back in enumerate(backs)]
        once(*(number for numbers in (*alongs, shrinks) for number in numbers))
        totals = [t - shrink.unsqueeze(-1) * row for t, shrink, row in zip(totals, shrinks, rows, strict=True)]
        sums = [_sum([a.unsqueeze(-1) * row for a, row in zip(along, rows, strict=True)]) for along in alongs]
        pooled = sums[0] if pool_query is not None and dread is not None else None
        gated = sums[-1] if dbias is not None else None
    if output is None or beta is None:
        return torch.stack([t.to(old[0].dtype) for t in totals]), None, None, pooled, gated, dbias
    wide = output.to(dtype)
    written = [total * beta[i].unsqueeze(-1) for i, total in enumerate(totals)]
    dbeta = [((wide - row.to(dtype)) * total).sum(-1) for row, total in zip(old, totals, strict=True)]
    dold = [(total - part).to(old[0].dtype) for total, part in zip(totals, written, strict=True)]
    doutput = _sum(written).to(output.dtype)
    return torch.stack(dold), doutput, torch.stack(dbeta), pooled, gated, dbias
