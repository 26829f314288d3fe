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
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.multi_gate.reference import gates_from
from leadline.ops.precision import no_autocast, wide


def multi_gate_step_lean(
    streams: Tensor,
    pending: tuple[Tensor, Tensor] | None,
    pool_query: Tensor | None,
    gate: tuple[Tensor, Tensor] | None,
    kind: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Streams, read and gates; see `leadline.ops.multi_gate_step`."""
    output, beta = pending if pending is not None else (None, None)
    query, bias = gate if gate is not None else (None, None)
    if not torch.is_grad_enabled():
        new, read, gates, _, _ = _forward(streams, output, beta, pool_query, query, bias, kind, eps)
        return new, read, gates
    new, read, gates = _Step.apply(streams, output, beta, pool_query, query, bias, kind, eps)
    return (streams if output is None else new), read, gates


def _forward(
    streams: Tensor,
    output: Tensor | None,
    beta: Tensor | None,
    pool_query: Tensor | None,
    gate_query: Tensor | None,
    gate_bias: Tensor | None,
    kind: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    """Streams, read, gates; roots (N, ...) and scores (queries, N, ...)."""
    dtype, dim = streams.dtype, streams.shape[-1]
    x = streams.to(wide(dtype))
    if output is not None and beta is not None:
        x = torch.lerp(x, output.to(x.dtype).unsqueeze(0).expand_as(x), beta.unsqueeze(-1))
        streams = x.to(dtype)
        x = streams.to(x.dtype)
    root = (torch.linalg.vector_norm(x, dim=-1).square() / dim + eps).rsqrt()
    queries = [query.to(x.dtype) for query in (pool_query, gate_query) if query is not None]
    if not queries:
        return streams, streams[0], None, root, root.unsqueeze(0)[:0]
    products = torch.mm(torch.stack(queries), x.reshape(-1, dim).t())
    score = products.view(len(queries), *root.shape).mul_(root * dim**-0.5)
    if pool_query is None:
        read = streams[0]
    else:
        weight = score[0].softmax(dim=0).unsqueeze(-1)
        total = x[0] * weight[0]
        for i in range(1, x.shape[0]):
            total.addcmul_(x[i], weight[i])
        read = total.to(dtype)
    gates = None if gate_bias is None else gates_from(score[-1], gate_bias, kind)
    return streams, read, gates, root, score


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
        kind: str,
        eps: float,
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        new, read, gates, root, score = _forward(streams, output, beta, pool_query, gate_query, gate_bias, kind, eps)
        ctx.set_materialize_grads(False)
        ctx.independent = kind == "independent"
        ctx.flushed = output is not None
        ctx.save_for_backward(
            streams,
            new if output is not None else None,
            output,
            beta,
            pool_query,
            gate_query,
            gate_bias,
            gates,
            root,
            score,
        )
        if pool_query is None:
            read = read.clone()
        return (new if output is not None else None), read, gates

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dstreams: Tensor | None, dread: Tensor | None, dgates: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        given = next((g for g in (dstreams, dread, dgates) if g is not None), None)
        if given is None:
            return (None,) * 8
        with no_autocast(given):
            return _Step._gradients(ctx, dstreams, dread, dgates)

    @staticmethod
    def _gradients(
        ctx: Any, dstreams: Tensor | None, dread: Tensor | None, dgates: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        old, new, output, beta, pool_query, gate_query, gate_bias, gates, root, score = ctx.saved_tensors
        dtype = wide(old.dtype)
        x = (new if ctx.flushed else old).to(dtype)
        dim = x.shape[-1]
        dscores, queries = [], []
        total = None if dstreams is None else dstreams.to(dtype)
        dbias = None
        if pool_query is not None:
            dscore, share = _pool(x, score[0], dread)
            if dread is not None:
                do = dread.to(dtype).expand_as(x)
                total = do * share if total is None else torch.addcmul(total, do, share)
            dscores.append(dscore)
            queries.append(pool_query.to(dtype))
        elif dread is not None:
            total = dread.to(dtype).unsqueeze(0) if total is None else total + dread.to(dtype)
        if gate_query is not None:
            dz, dbias = _gate(gates, dgates, ctx.independent)
            dscores.append(dz)
            queries.append(gate_query.to(dtype))
        total = torch.zeros_like(x) if total is None else total
        dqueries: list[Tensor] = []
        if dscores:
            dscore = torch.stack(dscores)
            along = (dscore * (root * dim**-0.5)).flatten(start_dim=1)
            back = (dscore * score).sum(dim=0).mul_(root.square()).div_(-dim)
            total = torch.addmm(total.reshape(-1, dim), along.t(), torch.stack(queries)).view(x.shape)
            total = total.addcmul_(x, back.unsqueeze(-1))
            dqueries = list(torch.mm(along, x.reshape(-1, dim)).unbind(0))
        dpool = None if pool_query is None else dqueries.pop(0).to(pool_query.dtype)
        dgate = None if gate_query is None else dqueries.pop(0).to(gate_query.dtype)
        dbias = None if gate_bias is None or dbias is None else dbias.to(gate_bias.dtype).reshape(gate_bias.shape)
        if not ctx.flushed:
            return total.to(old.dtype), None, None, dpool, dgate, dbias, None, None
        weight = beta.unsqueeze(-1)
        doutput = total[0] * weight[0]
        for i in range(1, x.shape[0]):
            doutput.addcmul_(total[i], weight[i])
        dbeta = (output.to(dtype) - old.to(dtype)).mul_(total).sum(dim=-1)
        dold = torch.addcmul(total, total, weight, value=-1.0)
        return dold.to(old.dtype), doutput.to(output.dtype), dbeta, dpool, dgate, dbias, None, None


def _pool(x: Tensor, score: Tensor, dread: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradient of the pool's scores (N, ...), and its weights (N, ..., 1)."""
    weight = score.softmax(dim=0)
    if dread is None:
        return torch.zeros_like(weight), weight.unsqueeze(-1)
    products = (x * dread.to(x.dtype)).sum(dim=-1)
    return weight * (products - (weight * products).sum(dim=0)), weight.unsqueeze(-1)


def _gate(gates: Tensor, dgates: Tensor | None, independent: bool) -> tuple[Tensor, Tensor]:
    """The gradient of the gates' scores (N, ...) and of the bias (1,)."""
    if dgates is None:
        return torch.zeros_like(gates), gates.new_zeros(1)
    if independent:
        dz = dgates * gates * (1 - gates)
        return dz, dz.sum().reshape(1)
    pull = (gates * dgates).sum(dim=0)
    return gates * (dgates - pull), -((1 - gates.sum(dim=0)) * pull).sum().reshape(1)
