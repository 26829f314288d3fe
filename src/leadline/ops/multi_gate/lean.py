"""A step of Multi-Gate Residuals with a hand-written backward pass.

Names: S streams before the flush, S' after, F the pending output, β its gates, `r = rsqrt(mean S'² + eps)`,
`s = r w_α·S'/√D` and `z = r w_β·S'/√D` the scores, p the pool's weights, g the next gates. Backward, with G the
whole gradient at S':

    ds_i = p_i (dh·S'_i − Σ_j p_j dh·S'_j)
    dz_i = dg_i g_i (1 − g_i)                      independent
    dz_i = g_i (dg_i − Σ_j g_j dg_j)               competitive; db = −Σ (1 − Σ_i g_i) Σ_j g_j dg_j
    G_i  = dS'_i + p_i dh + r_i/√D (ds_i w_α + dz_i w_β) − r_i²/D (ds_i s_i + dz_i z_i) S'_i
    dS_i = (1 − β_i) G_i,   dF = Σ_i β_i G_i,   dβ_i = G_i·(F − S_i)

S and S' are the streams of neighbouring steps and shared by them: a step adds N + 1 vectors a token to what is saved.
A step hands its streams on where it has nothing to flush, so that gradients of later uses come back through it.
The bodies are these, in plain PyTorch, or those of `compiled`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.multi_gate import compiled
from leadline.ops.multi_gate.compiled import Forward
from leadline.ops.multi_gate.reference import gates_from
from leadline.ops.next_norm import NextNorm, normed
from leadline.ops.precision import few_numbers, no_autocast, wide

Gradients = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def multi_gate_step_lean(
    streams: Tensor,
    pending: tuple[Tensor, Tensor] | None,
    pool_query: Tensor | None,
    gate: tuple[Tensor, Tensor] | None,
    kind: str,
    eps: float,
    norm: NextNorm | None = None,
    *,
    compile_bodies: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Streams, read and gates; see `leadline.ops.multi_gate_step`."""
    output, beta = pending if pending is not None else (None, None)
    query, bias = gate if gate is not None else (None, None)
    compile_bodies = compile_bodies and not torch.compiler.is_compiling()
    independent = kind == "independent"
    tensors = (streams, output, beta, pool_query, query, bias)
    later = None if compile_bodies else norm
    new: Tensor | None
    if few_numbers(streams) and pool_query is not None:
        new, read, gates = _few(streams, output, beta, pool_query, query, bias, independent, eps)
        later = norm
    elif not torch.is_grad_enabled():
        found = forward(*tensors, independent, eps, compile_bodies, norm)
        new, read, gates = found.streams, found.read, found.gates
    else:
        gain, norm_eps = (None, 0.0) if norm is None or later is not None else norm
        new, read, gates = _Step.apply(*tensors, gain, independent, eps, norm_eps, compile_bodies)
    return (streams if new is None or output is None else new), normed(read, later), gates


def _few(
    streams: Tensor,
    output: Tensor | None,
    beta: Tensor | None,
    pool_query: Tensor,
    gate_query: Tensor | None,
    gate_bias: Tensor | None,
    independent: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """A step for a few tokens without gradients: in as few operators as can be."""
    dtype, dim = streams.dtype, streams.shape[-1]
    x = streams.to(wide(dtype))
    if output is not None and beta is not None:
        x = torch.lerp(x, output.to(x.dtype), beta.unsqueeze(-1))
        streams = x.to(dtype)
        x = streams.to(x.dtype)
    queries = pool_query.unsqueeze(0) if gate_query is None else torch.stack((pool_query, gate_query))
    scores = F.linear(F.rms_norm(x, (dim,), None, eps), queries.to(x.dtype) * dim**-0.5).movedim(0, -1)
    weight = scores[..., 0, :].softmax(dim=-1)
    read = torch.matmul(weight.unsqueeze(-2), x.movedim(0, -2)).squeeze(-2).to(dtype)
    if gate_bias is None:
        return streams, read, None
    return streams, read, gates_from(scores[..., 1, :].movedim(-1, 0), gate_bias, _KINDS[independent])


_KINDS = ("competitive", "independent")


def forward(
    streams: Tensor,
    output: Tensor | None,
    beta: Tensor | None,
    pool_query: Tensor | None,
    gate_query: Tensor | None,
    gate_bias: Tensor | None,
    independent: bool,
    eps: float,
    compile_bodies: bool,
    norm: NextNorm | None = None,
) -> Forward:
    """A step without gradients, for streams (S, ..., D). Roots and scores come as (S, N) for N tokens. Only compiled
    bodies take a norm."""
    if compile_bodies:
        return compiled.forward(streams, output, beta, pool_query, gate_query, gate_bias, independent, eps, norm)
    count, dim, shape = streams.shape[0], streams.shape[-1], streams.shape
    found = _plain_forward(
        streams.reshape(count, -1, dim),
        None if output is None else output.reshape(-1, dim),
        None if beta is None else beta.reshape(count, -1),
        pool_query,
        gate_query,
        gate_bias,
        independent,
        eps,
    )
    return found._replace(
        streams=None if found.streams is None else found.streams.view(shape),
        read=found.read.view(shape[1:]),
        gates=None if found.gates is None else found.gates.view(shape[:-1]),
    )


def _plain_forward(
    streams: Tensor,
    output: Tensor | None,
    beta: Tensor | None,
    pool_query: Tensor | None,
    gate_query: Tensor | None,
    gate_bias: Tensor | None,
    independent: bool,
    eps: float,
) -> Forward:
    dtype, dim = streams.dtype, streams.shape[-1]
    x = streams.to(wide(dtype))
    if output is not None and beta is not None:
        x = torch.lerp(x, output.to(x.dtype).unsqueeze(0).expand_as(x), beta.unsqueeze(-1))
        streams = x.to(dtype)
        x = streams.to(x.dtype)
    new = None if output is None else streams
    root = (torch.linalg.vector_norm(x, dim=-1).square() / dim + eps).rsqrt()
    queries = [query.to(x.dtype) for query in (pool_query, gate_query) if query is not None]
    if not queries:
        return Forward(new, streams[0].clone(), None, root, None, None)
    products = torch.mm(torch.stack(queries), x.reshape(-1, dim).t())
    score = products.view(len(queries), *root.shape).mul_(root * dim**-0.5)
    if pool_query is None:
        read = streams[0].clone()
    else:
        weight = score[0].softmax(dim=0).unsqueeze(-1)
        total = x[0] * weight[0]
        for i in range(1, x.shape[0]):
            total.addcmul_(x[i], weight[i])
        read = total.to(dtype)
    gates = None
    if gate_bias is not None:
        gates = gates_from(score[-1], gate_bias, _KINDS[independent])
    return Forward(
        new, read, gates, root, None if pool_query is None else score[0], None if gate_query is None else score[-1]
    )


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        streams: Tensor,
        output: Tensor | None,
        beta: Tensor | None,
        pool_query: Tensor | None,
        gate_query: Tensor | None,
        gate_bias: Tensor | None,
        norm_gain: Tensor | None,
        independent: bool,
        eps: float,
        norm_eps: float,
        compile_bodies: bool,
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        parameters = (pool_query, gate_query, gate_bias)
        norm = None if norm_gain is None else NextNorm(norm_gain, norm_eps)
        found = forward(streams, output, beta, *parameters, independent, eps, compile_bodies, norm)
        ctx.set_materialize_grads(False)
        ctx.independent, ctx.compile_bodies, ctx.norm_eps = independent, compile_bodies, norm_eps
        numbers = (found.gates, found.root, found.pool_score, found.gate_score, found.norm_root)
        new = None if compile_bodies else found.streams
        ctx.save_for_backward(streams, new, output, beta, *parameters, norm_gain, *numbers)
        return found.streams, found.read, found.gates

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dstreams: Tensor | None, dread: Tensor | None, dgates: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        given = next((g for g in (dstreams, dread, dgates) if g is not None), None)
        if given is None:
            return (None,) * 11
        with no_autocast(given):
            return *_Step._gradients(ctx, dstreams, dread, dgates), None, None, None, None

    @staticmethod
    def _gradients(
        ctx: Any, dstreams: Tensor | None, dread: Tensor | None, dgates: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        old, new, output, beta, pool_query, gate_query, gate_bias, norm_gain, *numbers = ctx.saved_tensors
        gates, root, pool_score, gate_score, norm_root = numbers
        queries, scores = (pool_query, gate_query), (pool_score, gate_score)
        found: tuple[Tensor | None, ...]
        if ctx.compile_bodies:
            norm = None if norm_gain is None else NextNorm(norm_gain, ctx.norm_eps)
            upstream = (dstreams, dread, dgates)
            found = compiled.backward(
                old, output, beta, *queries, gates, root, *scores, *upstream, ctx.independent, norm, norm_root
            )
        else:
            count, dim = old.shape[0], old.shape[-1]

            def rows(tensor: Tensor | None) -> Tensor | None:
                return None if tensor is None else tensor.reshape(count, -1, dim)

            def row(tensor: Tensor | None) -> Tensor | None:
                return None if tensor is None else tensor.reshape(-1, dim)

            def flat(tensor: Tensor | None) -> Tensor | None:
                return None if tensor is None else tensor.reshape(count, -1)

            flushed = (old.reshape(count, -1, dim), rows(new), row(output), flat(beta))
            upstream = (rows(dstreams), row(dread), flat(dgates))
            found = plain_backward(*flushed, *queries, flat(gates), root, *scores, *upstream, ctx.independent)
            found = (*found, None)
        leaves = (old, output, beta, pool_query, gate_query, gate_bias, norm_gain)
        return tuple(_like(grad, leaf) for grad, leaf in zip(found, leaves, strict=True))


def _like(grad: Tensor | None, leaf: Tensor | None) -> Tensor | None:
    """A missing gradient of something that is there is zero."""
    if leaf is None:
        return None
    return torch.zeros_like(leaf) if grad is None else grad.to(leaf.dtype).view(leaf.shape)


def plain_backward(
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
) -> Gradients:
    dtype, dim = root.dtype, old.shape[-1]
    x = (old if new is None else new).to(dtype)
    slopes, scores, queries = [], [], []
    total = None if dstreams is None else dstreams.to(dtype)
    dbias = None
    if pool_query is not None and pool_score is not None and dread is not None:
        weight = pool_score.softmax(dim=0)
        do = dread.to(dtype)
        products = (x * do).sum(dim=-1)
        slopes.append(weight * (products - (weight * products).sum(dim=0)))
        spread, share = do.expand_as(x), weight.unsqueeze(-1)
        total = spread * share if total is None else torch.addcmul(total, spread, share)
        scores.append(pool_score)
        queries.append(pool_query.to(dtype))
    elif pool_query is None and dread is not None:
        total = dread.to(dtype).unsqueeze(0) if total is None else total + dread.to(dtype)
    if gate_query is not None and gate_score is not None and gates is not None and dgates is not None:
        if independent:
            slope = dgates * gates * (1 - gates)
            dbias = slope.sum()
        else:
            pull = (gates * dgates).sum(dim=0)
            slope = gates * (dgates - pull)
            dbias = -((1 - gates.sum(dim=0)) * pull).sum()
        slopes.append(slope)
        scores.append(gate_score)
        queries.append(gate_query.to(dtype))
    total = torch.zeros_like(x) if total is None else total
    dqueries: list[Tensor] = []
    if slopes:
        slope = torch.stack(slopes)
        along = (slope * (root * dim**-0.5)).flatten(start_dim=1)
        back = (slope * torch.stack(scores)).sum(dim=0).mul_(root.square()).div_(-dim)
        total = torch.addmm(total.reshape(-1, dim), along.t(), torch.stack(queries)).view(x.shape)
        total = total.addcmul_(x, back.unsqueeze(-1))
        dqueries = list(torch.mm(along, x.reshape(-1, dim)).unbind(0))
    dgate = dqueries.pop() if dbias is not None else None
    dpool = dqueries.pop() if dqueries else None
    if output is None or beta is None:
        return total.to(old.dtype), None, None, dpool, dgate, dbias
    weight = beta.unsqueeze(-1)
    doutput = total[0] * weight[0]
    for i in range(1, x.shape[0]):
        doutput.addcmul_(total[i], weight[i])
    dbeta = (output.to(dtype) - old.to(dtype)).mul_(total).sum(dim=-1)
    dold = torch.addcmul(total, total, weight, value=-1.0)
    return dold.to(old.dtype), doutput.to(output.dtype), dbeta, dpool, dgate, dbias
