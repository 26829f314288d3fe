"""A step of Multi-Gate Residuals as two fused GPU kernels.

Elements moved per token for N streams, D wide; [] where nothing is pending:

| | read | written |
|---|---|---|
| forward | (N + 1) D + N [N D] | (N + 1) D + 4N [D + 4N] |
| backward, a token's streams held | (2N + 2) D + 10N [(2N + 1) D + 8N] | (N + 1) D + N [N D] |
| backward, streams read again | (3N + 2) D + 10N [(3N + 1) D + 8N] | as above |
| backward, in P parts | (3N + 4) D + (7P + 3) N [(3N + 2) D + (5P + 3) N] | as above |

Forward: a stream's row is flushed, written, scored and added to the pool while it is in registers. The pool's softmax
is a running one, so that no row is needed twice, for any N and D; 3N of the small numbers are for the backward pass.

Backward: the streams after the flush are not read but made again from those before it. The pool's gradient needs a look
at all of a token's streams before the first stream's gradient can be written. Up to 4 streams of width 2048 are held in
registers in between; more are read again from the cache that just brought them: memory itself is read once. Rows wider
than 4096 are done in parts of 2048, which brings the pending output and the read's gradient a second time as well.

Small numbers (β, gates, roots and scores) lie token by token. Parameters are read once a program, in parts once a
tile; each program writes one row of the queries' gradients, and PyTorch sums the rows: the same bits every run. Second
derivatives raise: take the reference for those.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.kernels import device_of, padded, partial_rows, warps_for, wide_type
from leadline.ops.multi_gate.kernels import step_backward, step_forward
from leadline.ops.precision import wide
from leadline.ops.rows import Rows, as_strided_rows

PER_LANE = 16
"""Numbers of a row in each lane; half as many doubles, and where the backward pass holds a token's streams."""
MOST_HELD, WIDEST_HELD = 4, 2048
"""Streams, and width, up to which the backward pass holds a token's streams in registers."""
WIDEST, PART = 4096, 2048
"""The backward pass goes through wider rows in parts of this width."""


def constants(dtype: torch.dtype, count: int, dim: int) -> dict[str, Any]:
    """What the forward kernel is compiled for: a tile of whole tokens."""
    width = padded(dim)
    tokens = max(1, 512 // width)
    return {
        "COUNT": count,
        "DIM": dim,
        "WIDE": wide_type(dtype),
        "TOKENS": tokens,
        "WIDTH": width,
        "STREAMS": padded(count),
        "num_warps": warps_for(tokens * width, PER_LANE // (2 if dtype == torch.float64 else 1)),
    }


def backward_constants(dtype: torch.dtype, count: int, dim: int) -> dict[str, Any]:
    """What the backward kernel is compiled for: the same tokens, in parts where rows are wide."""
    fixed = constants(dtype, count, dim)
    width = padded(dim) if padded(dim) <= WIDEST else PART
    hold = count <= MOST_HELD and dim <= WIDEST_HELD
    per_lane = PER_LANE // (4 if dtype == torch.float64 else 2 if width <= WIDEST_HELD else 1)
    return {**fixed, "WIDTH": width, "HELD": hold, "num_warps": warps_for(fixed["TOKENS"] * width, per_lane)}


def programs(tokens: int, fixed: dict[str, Any]) -> int:
    """How many share the tokens; a forward pass takes as many as a backward pass."""
    return min(partial_rows(tokens), -(-tokens // fixed["TOKENS"]))


class _Small:
    """β, gates and their gradients: (N, ...) with any strides, as a stride over streams and one over tokens."""

    def __init__(self, tensor: Tensor | None) -> None:
        self.tensor = None if tensor is None else tensor.reshape(tensor.shape[0], -1)
        self.strides = (0, 0) if self.tensor is None else self.tensor.stride()


def _rows(tensor: Tensor | None, skip: int = 0) -> tuple[Tensor | None, tuple[int, ...], bool]:
    """A tensor or none of it, its strides (over streams first, if any), and whether they are even."""
    if tensor is None:
        return None, (0,) * skip + (1, 0, 0), True
    rows: Rows = as_strided_rows(tensor, skip)
    streams = rows.tensor.stride()[:skip]
    return rows.tensor, (*streams, *rows.strides), rows.even and all(stride % 16 == 0 for stride in streams)


def _token_major(like: Tensor, dtype: torch.dtype) -> Tensor:
    """(N, ...) for streams `like`, with a token's numbers side by side."""
    return like.new_empty((*like.shape[1:-1], like.shape[0]), dtype=dtype).movedim(-1, 0)


@torch.library.custom_op("leadline::multi_gate_step", mutates_args=())
def step(
    streams: Tensor,
    output: Tensor | None,
    beta: Tensor | None,
    pool_query: Tensor | None,
    gate_query: Tensor | None,
    gate_bias: Tensor | None,
    independent: bool,
    eps: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    new, read, gates, stats = _room(streams, output, pool_query, gate_query, keep)
    if tokens := streams.shape[1:-1].numel():
        s, s_strides, s_even = _rows(streams, 1)
        f, f_strides, f_even = _rows(output)
        small = _Small(beta)
        fixed = constants(streams.dtype, streams.shape[0], streams.shape[-1])
        with device_of(streams):
            step_forward[(programs(tokens, fixed),)](
                s,
                f,
                small.tensor,
                None if pool_query is None else pool_query.contiguous(),
                None if gate_query is None else gate_query.contiguous(),
                gate_bias,
                new,
                read,
                gates,
                stats,
                tokens,
                *s_strides,
                *f_strides,
                *small.strides,
                eps,
                FLUSH=output is not None,
                POOL=pool_query is not None,
                GATE=gate_query is not None,
                INDEPENDENT=independent,
                KEEP=keep,
                EVEN=s_even and f_even,
                **fixed,
            )
    return new, read, gates, stats


@step.register_fake
def _(
    streams: Tensor,
    output: Tensor | None,
    beta: Tensor | None,
    pool_query: Tensor | None,
    gate_query: Tensor | None,
    gate_bias: Tensor | None,
    independent: bool,
    eps: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _room(streams, output, pool_query, gate_query, keep)


def _room(
    streams: Tensor, output: Tensor | None, pool_query: Tensor | None, gate_query: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Streams, read, gates and what the backward pass needs, unwritten; empty where there is nothing to give."""
    dtype = wide(streams.dtype)
    new = streams.new_empty(streams.shape if output is not None else 0)
    read = streams.new_empty(streams.shape[1:])
    gates = streams.new_empty(0, dtype=dtype) if gate_query is None else _token_major(streams, dtype)
    kinds = 1 + (pool_query is not None) + (gate_query is not None)
    kept = (*streams.shape[1:-1], kinds, streams.shape[0]) if keep else (0,)
    return new, read, gates, streams.new_empty(kept, dtype=dtype)


@torch.library.custom_op("leadline::multi_gate_step_backward", mutates_args=())
def step_gradients(
    streams: Tensor,
    output: Tensor | None,
    beta: Tensor | None,
    pool_query: Tensor | None,
    gate_query: Tensor | None,
    gates: Tensor | None,
    stats: Tensor,
    dnew: Tensor | None,
    dread: Tensor | None,
    dgates: Tensor | None,
    independent: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dtype, count, dim = wide(streams.dtype), streams.shape[0], streams.shape[-1]
    tokens = streams.shape[1:-1].numel()
    fixed = backward_constants(streams.dtype, count, dim)
    fixed["HELD"] &= pool_query is not None and dread is not None
    dstreams, doutput, dbeta = _gradient_room(streams, output)
    queries = (pool_query is not None) + (gate_query is not None)
    dqueries = streams.new_empty((programs(tokens, fixed), queries, dim), dtype=dtype)
    dbias = streams.new_empty(len(dqueries), dtype=dtype)
    if tokens:
        s, s_strides, s_even = _rows(streams, 1)
        f, f_strides, f_even = _rows(output)
        n, n_strides, n_even = _rows(dnew, 1)
        h, h_strides, h_even = _rows(dread)
        small, dsmall = _Small(beta), _Small(dgates)
        with device_of(streams):
            step_backward[(len(dqueries),)](
                s,
                f,
                small.tensor,
                None if pool_query is None else pool_query.contiguous(),
                None if gate_query is None else gate_query.contiguous(),
                None if gates is None else gates.movedim(0, -1).contiguous(),
                stats,
                n,
                h,
                dsmall.tensor,
                dstreams,
                doutput,
                dbeta,
                dqueries,
                dbias,
                tokens,
                *s_strides,
                *f_strides,
                *small.strides,
                *n_strides,
                *h_strides,
                *dsmall.strides,
                FLUSH=output is not None,
                POOL=pool_query is not None,
                GATE=gate_query is not None,
                INDEPENDENT=independent,
                DNEW=dnew is not None,
                DREAD=dread is not None,
                DGATES=dgates is not None,
                EVEN=s_even and f_even and n_even and h_even,
                **fixed,
            )
    sums = list(dqueries.sum(dim=0).unbind(0))
    dpool = streams.new_empty(0) if pool_query is None else sums.pop(0).to(pool_query.dtype).clone()
    dgate = streams.new_empty(0) if gate_query is None else sums.pop(0).to(gate_query.dtype).clone()
    dbias = streams.new_empty(0) if gate_query is None else dbias.sum().reshape(1)
    return dstreams, doutput, dbeta, dpool, dgate, dbias


@step_gradients.register_fake
def _(
    streams: Tensor,
    output: Tensor | None,
    beta: Tensor | None,
    pool_query: Tensor | None,
    gate_query: Tensor | None,
    gates: Tensor | None,
    stats: Tensor,
    dnew: Tensor | None,
    dread: Tensor | None,
    dgates: Tensor | None,
    independent: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dpool = streams.new_empty(0) if pool_query is None else pool_query.new_empty(pool_query.shape)
    dgate = streams.new_empty(0) if gate_query is None else gate_query.new_empty(gate_query.shape)
    dbias = streams.new_empty(0) if gate_query is None else streams.new_empty(1, dtype=wide(streams.dtype))
    return *_gradient_room(streams, output), dpool, dgate, dbias


def _gradient_room(streams: Tensor, output: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of streams, pending output and its β, unwritten; empty where nothing is pending."""
    dtype = wide(streams.dtype)
    dstreams = streams.new_empty(streams.shape)
    if output is None:
        return dstreams, streams.new_empty(0), streams.new_empty(0, dtype=dtype)
    return dstreams, output.new_empty(output.shape), _token_major(streams, dtype)


class _Step(torch.autograd.Function):
    """Ties the results of `step` to its inputs.

    The kernel runs before: `torch.compile` can't take a number that it traces as data, eps, into a function.
    """

    @staticmethod
    def forward(
        ctx: Any,
        streams: Tensor,
        output: Tensor | None,
        beta: Tensor | None,
        pool_query: Tensor | None,
        gate_query: Tensor | None,
        gate_bias: Tensor | None,
        new: Tensor,
        read: Tensor,
        made: Tensor,
        stats: Tensor,
        kind: str,
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        ctx.independent = kind == "independent"
        gates = None if gate_query is None else made.view_as(made)
        ctx.save_for_backward(streams, output, beta, pool_query, gate_query, gates, stats, gate_bias)
        return (None if output is None else new.view_as(new)), read.view_as(read), gates

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dnew: Tensor | None, dread: Tensor | None, dgates: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        if dnew is None and dread is None and dgates is None:
            return (None,) * 11
        *saved, bias = ctx.saved_tensors
        _, output, beta, pool_query, gate_query, _, _ = saved
        ds, df, dbeta, dpool, dgate, dbias = step_gradients(*saved, dnew, dread, dgates, ctx.independent)
        return (
            ds,
            None if output is None else df,
            None if beta is None else dbeta.to(beta.dtype),
            None if pool_query is None else dpool,
            None if gate_query is None else dgate,
            None if bias is None else dbias.to(bias.dtype).reshape(bias.shape),
            *(None,) * 5,
        )


def multi_gate_step_triton(
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
    parts, keep = (streams, output, beta, pool_query, query, bias), torch.is_grad_enabled()
    with torch.no_grad():
        new, read, made, stats = step(*parts, kind == "independent", eps, keep)
    gates = None if query is None else made
    if keep:
        new, read, gates = _Step.apply(*parts, new, read, made, stats, kind)
    return (streams if output is None else new), read, gates
