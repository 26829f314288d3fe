"""Bodies of the multi-gate step for Inductor: one loop over tokens forward, one backward, stream by stream.

They stand beside those of `lean` because a measurement defends both: run eagerly, forward and backward take 2.5 times
as long as `lean`'s whole tensors (4 streams, D = 512, 1,024 tokens, one thread); `lean`'s matrix products, compiled,
are calls between loops that Inductor can't join. Shapes: S streams, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leadline.ops.body_math import added, as_rows, rows_of, softmax, times
from leadline.ops.compiled_body import once, run
from leadline.ops.multi_gate.parts import Forward, Gradients, Parameters, Pending, Scalars, Upstream
from leadline.ops.next_norm import BodyNorm, NextNorm, for_body, norm_rows, norm_rows_back, over_tokens
from leadline.ops.precision import wide

Found = tuple[Tensor | None, ...]


def forward(streams: Tensor, pending: Pending | None, parameters: Parameters, norm: NextNorm | None = None) -> Forward:
    """As `lean.forward`; with a norm, the read is the norm of it."""
    new, read, *scalars = run(_forward, streams, pending, parameters, for_body(norm, streams.dtype))
    return Forward(new, read, Scalars(*scalars))


def backward(
    old: Tensor,
    pending: Pending | None,
    parameters: Parameters,
    scalars: Scalars,
    given: Upstream,
    norm: NextNorm | None = None,
) -> Gradients:
    """As `lean.backward`, but for the streams after the flush: they are recomputed from those before it, which costs a
    multiplication a number, and no read."""
    return _summed(run(_backward, old, pending, parameters, scalars, given, for_body(norm, old.dtype)))


def backward_inverted(
    new: Tensor, pending: Pending, parameters: Parameters, scalars: Scalars, given: Upstream
) -> tuple[Tensor, Gradients]:
    """The streams before the flush, from those after it, and the gradients."""
    old, *found = run(_backward_inverted, new, pending, parameters, scalars, given)
    return old, _summed(found)


def _summed(found: Sequence[Tensor | None]) -> Gradients:
    """What a backward body returns, with the gradients of queries and of the norm's gain summed over tokens."""
    streams, output, beta, pool, gate, bias, gain = found
    pool, gate, gain = (None if part is None else over_tokens(part) for part in (pool, gate, gain))
    assert streams is not None
    return Gradients(streams, output, beta, pool, gate, bias, gain)


def _stacked(parts: Sequence[Tensor] | None) -> Tensor | None:
    return None if parts is None else torch.stack(list(parts))


def _flat(scalars: Tensor) -> Tensor:
    return scalars.reshape(scalars.shape[0], -1)


def _flushed(streams: Sequence[Tensor], pending: Pending | None, dtype: torch.dtype) -> list[Tensor]:
    """The streams after the pending write, rounded as they are kept, in `dtype`."""
    rows = [stream.to(dtype) for stream in streams]
    if pending is None:
        return rows
    output = as_rows(pending.output).to(dtype)
    rows = [row + times(output - row, beta) for row, beta in zip(rows, _flat(pending.beta), strict=True)]
    return [row.to(streams[0].dtype).to(dtype) for row in rows]


def _scores(rows: Sequence[Tensor], rstds: Sequence[Tensor], query: Tensor) -> list[Tensor]:
    return [(row * query).sum(-1) * (rstd * query.shape[0] ** -0.5) for row, rstd in zip(rows, rstds, strict=True)]


def _forward(streams: Tensor, pending: Pending | None, parameters: Parameters, norm: BodyNorm | None) -> Found:
    shape, narrow, dtype = streams.shape, streams.dtype, wide(streams.dtype)
    pool_query, gate_query, gate_bias, independent, eps = parameters
    rows = _flushed(rows_of(streams), pending, dtype)
    rstds = [(row.square().sum(-1) / shape[-1] + eps).rsqrt() for row in rows]
    pool_scores, gate_scores, gates, norm_rstd = None, None, None, None
    if pool_query is None:
        read = rows[0]
    else:
        pool_scores = _scores(rows, rstds, pool_query)
        weights = softmax(pool_scores)
        once(*weights)
        read = added(map(times, rows, weights))
    if gate_query is not None and gate_bias is not None:
        gate_scores = _scores(rows, rstds, gate_query)
        if independent:
            gates = [torch.sigmoid(score + gate_bias) for score in gate_scores]
        else:
            gates = softmax([gate_bias.expand_as(gate_scores[0]), *gate_scores])[1:]
    if norm is not None:
        read, norm_rstd = norm_rows(read.to(narrow).to(dtype), norm)
    return (
        None if pending is None else torch.stack(rows).to(narrow).view(shape),
        read.to(narrow).view(shape[1:]),
        None if gates is None else torch.stack(gates).view(shape[:-1]),
        *(_stacked(part) for part in (rstds, pool_scores, gate_scores)),
        norm_rstd,
    )


def _backward(
    old: Tensor,
    pending: Pending | None,
    parameters: Parameters,
    scalars: Scalars,
    given: Upstream,
    norm: BodyNorm | None,
) -> Found:
    """What was read is summed up again from the streams, so that it need not be kept for the norm's gradient."""
    before, dtype, part = rows_of(old), scalars.rstd.dtype, None
    rows = _flushed(before, pending, dtype)
    if norm is not None and given.read is not None and scalars.norm_rstd is not None:
        read = rows[0] if scalars.pool_score is None else added(map(times, rows, softmax(scalars.pool_score.unbind(0))))
        dread = as_rows(given.read).to(dtype)
        dread, part, _ = norm_rows_back(dread, read.to(old.dtype).to(dtype), norm, scalars.norm_rstd)
        given = given._replace(read=dread)
    return *_gradients(old.shape, before, rows, pending, parameters, scalars, given), part


def _backward_inverted(
    new: Tensor, pending: Pending, parameters: Parameters, scalars: Scalars, given: Upstream
) -> Found:
    rows, output, odds = rows_of(new), as_rows(pending.output), _flat(pending.beta / (1 - pending.beta))
    dtype = scalars.rstd.dtype
    after = [row.to(dtype) for row in rows]
    before = [(row + times(row - output.to(dtype), o)).to(new.dtype) for row, o in zip(after, odds, strict=True)]
    grads = _gradients(new.shape, before, after, pending, parameters, scalars, given)
    return torch.stack(before).view(new.shape), *grads, None


def _gradients(
    shape: torch.Size,
    old: Sequence[Tensor],
    rows: Sequence[Tensor],
    pending: Pending | None,
    parameters: Parameters,
    scalars: Scalars,
    given: Upstream,
) -> Found:
    """Gradients of streams, output and beta; what those of pool query and gate query sum over tokens, (N, D) each; and
    that of the gate bias. Of the streams before the flush, and after it in the dtype of the arithmetic."""
    rstd, narrow, dim = scalars.rstd.flatten(1), old[0].dtype, shape[-1]
    dtype, pooled, gated, dbias = rstd.dtype, None, None, None
    totals = [torch.zeros_like(row) for row in rows]
    if given.streams is not None:
        totals = [grad.to(dtype) for grad in rows_of(given.streams)]
    back = [torch.zeros_like(rstd[0])] * len(rows)
    alongs: list[tuple[Tensor, list[Tensor]]] = []
    if given.read is not None:
        do = as_rows(given.read).to(dtype)
        if parameters.pool_query is None or scalars.pool_score is None:
            totals[0] = totals[0] + do
        else:
            scores = scalars.pool_score.flatten(1).unbind(0)
            weights = softmax(scores)
            once(*weights)
            products = [(row * do).sum(-1) for row in rows]
            pull = added(w * product for w, product in zip(weights, products, strict=True))
            slopes = [w * (product - pull) for w, product in zip(weights, products, strict=True)]
            totals = [total + times(do, w) for total, w in zip(totals, weights, strict=True)]
            alongs.append((parameters.pool_query, slopes))
            back = [b + slope * score for b, slope, score in zip(back, slopes, scores, strict=True)]
    if parameters.gate_query is not None and scalars.gate_score is not None and given.gates is not None:
        assert scalars.gates is not None
        gates, dgates = (_flat(part).unbind(0) for part in (scalars.gates, given.gates))
        scores = scalars.gate_score.flatten(1).unbind(0)
        if parameters.independent:
            slopes = [dgate * gate * (1 - gate) for dgate, gate in zip(dgates, gates, strict=True)]
            dbias = added(slopes).sum()
        else:
            pull = added(gate * dgate for gate, dgate in zip(gates, dgates, strict=True))
            slopes = [gate * (dgate - pull) for gate, dgate in zip(gates, dgates, strict=True)]
            dbias = -((1 - added(gates)) * pull).sum()
        alongs.append((parameters.gate_query, slopes))
        back = [b + slope * score for b, slope, score in zip(back, slopes, scores, strict=True)]
    sums = []
    for query, slopes in alongs:
        steps = [slope * (rstd[i] * dim**-0.5) for i, slope in enumerate(slopes)]
        once(*steps)
        totals = [total + times(query, step) for total, step in zip(totals, steps, strict=True)]
        sums.append(added(map(times, rows, steps)))
    if alongs:
        shrinks = [b * rstd[i].square() / dim for i, b in enumerate(back)]
        once(*shrinks)
        totals = [total - times(row, shrink) for total, row, shrink in zip(totals, rows, shrinks, strict=True)]
        gated = None if dbias is None else sums.pop()
        pooled = sums.pop() if sums else None
    if pending is None:
        return torch.stack([total.to(narrow) for total in totals]).view(shape), None, None, pooled, gated, dbias
    output, betas = as_rows(pending.output).to(dtype), _flat(pending.beta).unbind(0)
    written = list(map(times, totals, betas))
    dbeta = [((output - row.to(dtype)) * total).sum(-1) for row, total in zip(old, totals, strict=True)]
    return (
        torch.stack([(total - part).to(narrow) for total, part in zip(totals, written, strict=True)]).view(shape),
        added(written).to(pending.output.dtype).view(pending.output.shape),
        torch.stack(dbeta).view(pending.beta.shape),
        pooled,
        gated,
        dbias,
    )
