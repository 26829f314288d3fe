"""A step of Multi-Gate Residuals with a hand-written backward pass.

Names: S streams before the flush, S' after, F the pending output, β its gates, `r = rsqrt(mean S'² + eps)` the inverse
RMS (rstd), `s = r w_α·S'/√D` and `z = r w_β·S'/√D` the scores, p the pool's weights, g the next gates. Backward, with G
the whole gradient at S':

    ds_i = p_i (dh·S'_i − Σ_j p_j dh·S'_j)
    dz_i = dg_i g_i (1 − g_i)                      independent
    dz_i = g_i (dg_i − Σ_j g_j dg_j)               competitive; db = −Σ (1 − Σ_i g_i) Σ_j g_j dg_j
    G_i  = dS'_i + p_i dh + r_i/√D (ds_i w_α + dz_i w_β) − r_i²/D (ds_i s_i + dz_i z_i) S'_i
    dS_i = (1 − β_i) G_i,   dF = Σ_i β_i G_i,   dβ_i = G_i·(F − S_i)

S and S' are the streams of neighbouring steps and shared by them: a step adds N + 1 vectors a token to what is saved.
Where it has nothing to flush, the streams that went in are the ones that go on. The bodies are these, in PyTorch's
operators on whole tensors, or those of `compiled`, which says why both are kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.body_math import gradient_like
from leadline.ops.compiled_body import run
from leadline.ops.multi_gate import compiled
from leadline.ops.multi_gate.parts import Forward, Gradients, Parameters, Pending, Scalars, Upstream, pending_of
from leadline.ops.multi_gate.reference import gates_from
from leadline.ops.next_norm import BodyNorm, NextNorm, for_body, next_norm, norm_rows, normed
from leadline.ops.precision import few_numbers, no_autocast, wide


def multi_gate_step_lean(
    streams: Tensor, pending: Pending | None, parameters: Parameters, norm: NextNorm | None, compile_bodies: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Streams, read and gates; see `leadline.ops.multi_gate_step`."""
    now, later = (norm, None) if compile_bodies else (None, norm)
    new: Tensor | None
    if few_numbers(streams) and parameters.pool_query is not None:
        arguments = (streams, pending, parameters, for_body(now, streams.dtype))
        new, read, gates = run(_few, *arguments) if compile_bodies else _few(*arguments)
    elif not torch.is_grad_enabled():
        found = forward(streams, pending, parameters, now, compile_bodies)
        new, read, gates = found.streams, found.read, found.scalars.gates
    else:
        gain, norm_eps = now or (None, 0.0)
        fixed = (compile_bodies, parameters.independent, parameters.eps, norm_eps)
        new, read, gates = _Step.apply(*fixed, streams, *(pending or (None, None)), *parameters[:3], gain)
    return (streams if new is None else new), normed(read, later), gates


def flush(streams: Tensor, output: Tensor, beta: Tensor) -> Tensor:
    """S' (S, ..., D) in S's dtype; computed in float32 or wider and rounded once."""
    x = streams.to(wide(streams.dtype))
    return torch.lerp(x, output.to(x.dtype).unsqueeze(0).expand_as(x), beta.unsqueeze(-1)).to(streams.dtype)


def _few(
    streams: Tensor, pending: Pending | None, parameters: Parameters, norm: BodyNorm | None
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """A body for a few tokens without gradients: all streams as one tensor, because the number of operators, or of
    buffers where it is compiled, costs more than their size."""
    narrow, dim, new = streams.dtype, streams.shape[-1], None
    if pending is not None:
        new = streams = flush(streams, *pending)
    x = streams.to(wide(narrow))
    rstd = (x.square().sum(-1) / dim + parameters.eps).rsqrt() * dim**-0.5

    def scores(query: Tensor) -> Tensor:
        return (x * query.to(x.dtype)).sum(-1) * rstd

    assert parameters.pool_query is not None
    read = (scores(parameters.pool_query).softmax(0).unsqueeze(-1) * x).sum(0)
    gates = None
    if parameters.gate_query is not None and parameters.gate_bias is not None:
        gates = gates_from(scores(parameters.gate_query), parameters.gate_bias, parameters.independent)
    if norm is not None:
        read, _ = norm_rows(read.to(narrow).to(x.dtype), norm)
    return new, read.to(narrow), gates


def forward(
    streams: Tensor,
    pending: Pending | None,
    parameters: Parameters,
    norm: NextNorm | None = None,
    compile_bodies: bool = False,
) -> Forward:
    """A step without gradients, for streams (S, ..., D). Only compiled bodies take a norm."""
    if compile_bodies:
        return compiled.forward(streams, pending, parameters, norm)
    dtype, dim, new = streams.dtype, streams.shape[-1], None
    pool_query, gate_query, gate_bias, _, eps = parameters
    if pending is not None:
        new = streams = flush(streams, *pending)
    x = streams.to(wide(dtype))
    rstd = (torch.linalg.vector_norm(x, dim=-1).square() / dim + eps).rsqrt()
    queries = [query.to(x.dtype) for query in (pool_query, gate_query) if query is not None]
    if not queries:
        return Forward(new, streams[0].clone(), Scalars(None, rstd, None, None))
    products = torch.mm(torch.stack(queries), x.reshape(-1, dim).t())
    score = products.view(len(queries), *rstd.shape).mul_(rstd * dim**-0.5)
    if pool_query is None:
        read = streams[0].clone()
    else:
        weight = score[0].softmax(dim=0).unsqueeze(-1)
        total = x[0] * weight[0]
        for i in range(1, x.shape[0]):
            total.addcmul_(x[i], weight[i])
        read = total.to(dtype)
    gates = None if gate_bias is None else gates_from(score[-1], gate_bias, parameters.independent)
    scores = (None if pool_query is None else score[0], None if gate_query is None else score[-1])
    return Forward(new, read, Scalars(gates, rstd, *scores))


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, compile_bodies: bool, independent: bool, eps: float, norm_eps: float, *tensors: Any
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        streams, output, beta, pool, gate, bias, gain = tensors
        parameters = Parameters(pool, gate, bias, independent, eps)
        found = forward(streams, pending_of(output, beta), parameters, next_norm(gain, norm_eps), compile_bodies)
        ctx.set_materialize_grads(False)
        ctx.fixed = compile_bodies, independent, eps, norm_eps
        ctx.save_for_backward(*tensors, None if compile_bodies else found.streams, *found.scalars)
        return found.streams, found.read, found.scalars.gates

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(grad is None for grad in given):
            return (None,) * 11
        compile_bodies, independent, eps, norm_eps = ctx.fixed
        saved = ctx.saved_tensors
        leaves, (new, *numbers) = saved[:7], saved[7:]
        streams, output, beta, pool, gate, bias, gain = leaves
        parameters = Parameters(pool, gate, bias, independent, eps)
        rest = (pending_of(output, beta), parameters, Scalars(*numbers), Upstream(*given))
        with no_autocast(streams):
            if compile_bodies:
                found = compiled.backward(streams, *rest, next_norm(gain, norm_eps))
            else:
                found = backward(streams, new, *rest)
            return None, None, None, None, *map(gradient_like, found, leaves)


def backward(
    old: Tensor, new: Tensor | None, pending: Pending | None, parameters: Parameters, scalars: Scalars, given: Upstream
) -> Gradients:
    """The gradients, from the streams before the flush and, where there was one, after it."""
    dtype, dim = scalars.rstd.dtype, old.shape[-1]
    x = (old if new is None else new).to(dtype)
    slopes, scores, queries = [], [], []
    total = None if given.streams is None else given.streams.to(dtype)
    dbias = None
    if given.read is not None:
        do = given.read.to(dtype)
        if parameters.pool_query is None or scalars.pool_score is None:
            total = do.unsqueeze(0) if total is None else total + do
        else:
            weight = scalars.pool_score.softmax(dim=0)
            products = (x * do).sum(dim=-1)
            slopes.append(weight * (products - (weight * products).sum(dim=0)))
            spread, share = do.expand_as(x), weight.unsqueeze(-1)
            total = spread * share if total is None else torch.addcmul(total, spread, share)
            scores.append(scalars.pool_score)
            queries.append(parameters.pool_query.to(dtype))
    if parameters.gate_query is not None and scalars.gate_score is not None and given.gates is not None:
        gates = scalars.gates
        assert gates is not None
        if parameters.independent:
            slopes.append(given.gates * gates * (1 - gates))
            dbias = slopes[-1].sum()
        else:
            pull = (gates * given.gates).sum(dim=0)
            slopes.append(gates * (given.gates - pull))
            dbias = -((1 - gates.sum(dim=0)) * pull).sum()
        scores.append(scalars.gate_score)
        queries.append(parameters.gate_query.to(dtype))
    total = torch.zeros_like(x) if total is None else total
    dqueries: list[Tensor] = []
    if slopes:
        slope = torch.stack(slopes)
        along = (slope * (scalars.rstd * dim**-0.5)).flatten(start_dim=1)
        back = (slope * torch.stack(scores)).sum(dim=0).mul_(scalars.rstd.square()).div_(-dim)
        total = torch.addmm(total.reshape(-1, dim), along.t(), torch.stack(queries)).view(x.shape)
        total = total.addcmul_(x, back.unsqueeze(-1))
        dqueries = list(torch.mm(along, x.reshape(-1, dim)).unbind(0))
    dgate = dqueries.pop() if dbias is not None else None
    dpool = dqueries.pop() if dqueries else None
    if pending is None:
        return Gradients(total.to(old.dtype), None, None, dpool, dgate, dbias)
    weight = pending.beta.unsqueeze(-1)
    doutput = total[0] * weight[0]
    for i in range(1, x.shape[0]):
        doutput.addcmul_(total[i], weight[i])
    dbeta = (pending.output.to(dtype) - old.to(dtype)).mul_(total).sum(dim=-1)
    dold = torch.addcmul(total, total, weight, value=-1.0)
    return Gradients(dold.to(old.dtype), doutput.to(pending.output.dtype), dbeta, dpool, dgate, dbias)
