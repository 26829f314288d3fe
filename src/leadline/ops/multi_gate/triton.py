"""A step of Multi-Gate Residuals as two fused GPU kernels.

Elements moved per token for N streams, D wide; [] where nothing is pending:

| | read | written |
|---|---|---|
| forward | (N + 1) D + N [N D] | (N + 1) D + 4N [D + 4N] |
| backward, a token's streams held | (2N + 2) D + 10N [(2N + 1) D + 8N] | (N + 1) D + N [N D] |
| backward, streams read again | (3N + 2) D + 10N [(3N + 1) D + 8N] | as above |
| backward, in P parts | (3N + 4) D + (7P + 3) N [(3N + 2) D + (5P + 3) N] | as above |

Forward: a stream's row is flushed, written, scored and added to the pool while it is in registers. The pool's softmax
is a running one, so that no row is needed twice, for any N and D; 3N of the scalars are for the backward pass.

Backward: the streams after the flush are not read but made again from those before it. The pool's gradient needs a look
at all of a token's streams before the first stream's gradient can be written. Up to 4 streams of width 2048 are held in
registers in between; more are read again from the cache that just brought them: memory itself is read once. Rows wider
than 4096 are done in parts of 2048, which brings the pending output and the read's gradient a second time as well.

Per-token scalars (β, gates, inverse RMS and scores) lie token by token. Parameters are read once a program, in parts
once a tile; each program writes one row of the queries' gradients, and PyTorch sums the rows: the same bits every run.
Second derivatives raise: take the reference for those.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.body_math import gradient_like
from leadline.ops.kernels import Tile, device_of, padded, partial_rows, warps_for, wide_type
from leadline.ops.multi_gate.kernels import Form, Grads, Incoming, Inputs, Results, step_backward, step_forward
from leadline.ops.multi_gate.parts import Forward, Gradients, Parameters, Pending, Scalars, Upstream, pending_of
from leadline.ops.precision import wide
from leadline.ops.rows import as_strided_rows

PER_LANE = 16
"""Numbers of a row in each lane; half as many doubles, and where the backward pass holds a token's streams."""
MOST_HELD, WIDEST_HELD = 4, 2048
"""Streams, and width, up to which the backward pass holds a token's streams in registers."""
WIDEST, PART = 4096, 2048
"""The backward pass goes through wider rows in parts of this width."""


def forward_tile(dtype: torch.dtype, dim: int) -> Tile:
    """Whole tokens."""
    width = padded(dim)
    tokens = max(1, 512 // width)
    return Tile(tokens, width, warps_for(tokens * width, PER_LANE // (2 if dtype == torch.float64 else 1)))


def backward_tile(dtype: torch.dtype, dim: int) -> Tile:
    """The same tokens, in parts where rows are wide."""
    tokens, width, _ = forward_tile(dtype, dim)
    width = width if width <= WIDEST else PART
    per_lane = PER_LANE // (4 if dtype == torch.float64 else 2 if width <= WIDEST_HELD else 1)
    return Tile(tokens, width, warps_for(tokens * width, per_lane))


def may_hold(count: int, dim: int) -> bool:
    """Whether the backward pass holds a token's streams, where they are pooled."""
    return count <= MOST_HELD and dim <= WIDEST_HELD


def programs(tokens: int, tile: Tile) -> int:
    """How many share the tokens; a forward pass takes as many as a backward pass."""
    return min(partial_rows(tokens), -(-tokens // tile.rows))


def _form(streams: Tensor, tile: Tile, parts: tuple[bool, bool, bool, bool], **more: Any) -> Form:
    flush, pool, gate, independent = parts
    count, dim = streams.shape[0], streams.shape[-1]
    return Form(
        COUNT=count,
        DIM=dim,
        WIDE=wide_type(streams.dtype),
        FLUSH=flush,
        POOL=pool,
        GATE=gate,
        INDEPENDENT=independent,
        TOKENS=tile.rows,
        WIDTH=tile.columns,
        STREAMS=padded(count),
        PARTS=-(-dim // tile.columns),
        KINDS=1 + pool + gate,
        SCALE=dim**-0.5,
        **more,
    )


def _scalars(tensor: Tensor | None) -> tuple[Tensor | None, tuple[int, ...]]:
    """β, gates or their gradients, (N, ...) with any strides; and their strides over streams and over tokens."""
    if tensor is None:
        return None, (0, 0)
    flat = tensor.reshape(tensor.shape[0], -1)
    return flat, flat.stride()


def _rows(tensor: Tensor | None, skip: int = 0) -> tuple[Tensor | None, tuple[int, ...], bool]:
    """A tensor or none of it, its strides (over streams first, if any), and whether they are even."""
    if tensor is None:
        return None, (0,) * skip + (1, 0, 0), True
    rows = as_strided_rows(tensor, skip)
    streams = rows.tensor.stride()[:skip]
    return rows.tensor, (*streams, *rows.strides), rows.even and all(stride % 16 == 0 for stride in streams)


def _whole(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


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
    """Streams, read, gates and what the backward pass takes; empty where there is none."""
    results = _room(streams, output, beta, pool_query, gate_query, gate_bias, independent, eps, keep)
    if tokens := streams.shape[1:-1].numel():
        s, s_strides, s_even = _rows(streams, 1)
        f, f_strides, f_even = _rows(output)
        b, b_strides = _scalars(beta)
        tile = forward_tile(streams.dtype, streams.shape[-1])
        parts = (output is not None, pool_query is not None, gate_query is not None, independent)
        with device_of(streams):
            step_forward[(programs(tokens, tile),)](
                Inputs(s, f, b, _whole(pool_query), _whole(gate_query), gate_bias),
                Results(*results),
                tokens,
                *(*s_strides, *f_strides, *b_strides),
                eps,
                FORM=_form(streams, tile, parts, EVEN=s_even and f_even, KEEP=keep),
                num_warps=tile.warps,
            )
    return results


@step.register_fake
def _room(
    streams: Tensor, output: Tensor | None, beta: Tensor | None, pool_query: Any, gate_query: Any, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype = wide(streams.dtype)
    new = streams.new_empty(streams.shape if output is not None else 0)
    gates = streams.new_empty(0, dtype=dtype) if gate_query is None else _token_major(streams, dtype)
    kinds = 1 + (pool_query is not None) + (gate_query is not None)
    kept = (*streams.shape[1:-1], kinds, streams.shape[0]) if rest[-1] else (0,)
    return new, streams.new_empty(streams.shape[1:]), gates, streams.new_empty(kept, dtype=dtype)


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
    """Gradients of streams, output, β, pool query, gate query and bias; empty where there is none."""
    count, dim, tokens = streams.shape[0], streams.shape[-1], streams.shape[1:-1].numel()
    pool, gate = pool_query is not None, gate_query is not None
    tile = backward_tile(streams.dtype, dim)
    dstreams, doutput, dbeta = _gradient_room(streams, output)
    dqueries = streams.new_empty((programs(tokens, tile), pool + gate, dim), dtype=dbeta.dtype)
    dbias = streams.new_empty(len(dqueries), dtype=dbeta.dtype)
    if tokens:
        s, s_strides, s_even = _rows(streams, 1)
        f, f_strides, f_even = _rows(output)
        b, b_strides = _scalars(beta)
        (n, n_strides, n_even), (h, h_strides, h_even), (g, g_strides) = _rows(dnew, 1), _rows(dread), _scalars(dgates)
        pooled = pool and dread is not None
        upstream = {"DNEW": dnew is not None, "DREAD": dread is not None}
        passed = {"POOLED": pooled, "GATED": gate and dgates is not None}
        held = pooled and may_hold(count, dim)
        even = s_even and f_even and n_even and h_even
        parts = (output is not None, pool, gate, independent)
        made = None if gates is None else gates.movedim(0, -1).contiguous()
        with device_of(streams):
            step_backward[(len(dqueries),)](
                Inputs(s, f, b, _whole(pool_query), _whole(gate_query), None),
                Incoming(n, h, g, made, stats),
                Grads(dstreams, doutput, dbeta, dqueries, dbias),
                tokens,
                *(*s_strides, *f_strides, *b_strides, *n_strides, *h_strides, *g_strides),
                FORM=_form(streams, tile, parts, EVEN=even, HELD=held, **upstream, **passed),
                num_warps=tile.warps,
            )
    sums = list(dqueries.sum(dim=0).unbind(0))
    dpool = streams.new_empty(0) if pool_query is None else sums.pop(0).to(pool_query.dtype).clone()
    dgate = streams.new_empty(0) if gate_query is None else sums.pop(0).to(gate_query.dtype).clone()
    dbias = dbias.sum().reshape(1) if gate else streams.new_empty(0)
    return dstreams, doutput, dbeta, dpool, dgate, dbias


@step_gradients.register_fake
def _(
    streams: Tensor, output: Tensor | None, beta: Tensor | None, pool_query: Any, gate_query: Any, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dpool, dgate = (streams.new_empty(0) if q is None else q.new_empty(q.shape) for q in (pool_query, gate_query))
    dbias = streams.new_empty(0) if gate_query is None else streams.new_empty(1, dtype=wide(streams.dtype))
    return *_gradient_room(streams, output), dpool, dgate, dbias


def _gradient_room(streams: Tensor, output: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of streams, pending output and its β, unwritten; empty where nothing is pending."""
    dtype = wide(streams.dtype)
    dstreams = streams.new_empty(streams.shape)
    if output is None:
        return dstreams, streams.new_empty(0), streams.new_empty(0, dtype=dtype)
    return dstreams, output.new_empty(output.shape), _token_major(streams, dtype)


def forward(streams: Tensor, pending: Pending | None, parameters: Parameters, keep: bool) -> tuple[Forward, Tensor]:
    """The step; and what the backward pass takes, in which the scores and inverse RMS lie together."""
    *queries, independent, eps = parameters
    new, read, gates, stats = step(streams, *(pending or (None, None)), *queries, independent, eps, keep)
    scalars = Scalars(None if parameters.gate_query is None else gates, stats, None, None)
    return Forward(None if pending is None else new, read, scalars), stats


def backward(
    old: Tensor, pending: Pending | None, parameters: Parameters, gates: Tensor | None, stats: Tensor, given: Upstream
) -> Gradients:
    """The gradients; those of what is not there mean nothing."""
    queries = (parameters.pool_query, parameters.gate_query)
    rest = (*(pending or (None, None)), *queries, gates, stats, *given, parameters.independent)
    return Gradients(*step_gradients(old, *rest))


class _Step(torch.autograd.Function):
    """Ties the results of `step` to its inputs.

    The kernel runs before: `torch.compile` can't take a number that it traces as data, eps, into a function.
    """

    @staticmethod
    def forward(
        ctx: Any, independent: bool, new: Tensor | None, read: Tensor, gates: Tensor | None, stats: Tensor, *inputs: Any
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        ctx.independent = independent
        gates = None if gates is None else gates.view_as(gates)
        ctx.save_for_backward(*inputs, gates, stats)
        return (None if new is None else new.view_as(new)), read.view_as(read), gates

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(grad is None for grad in given):
            return (None,) * 11
        *leaves, gates, stats = ctx.saved_tensors
        streams, output, beta, pool, gate, bias = leaves
        parameters = Parameters(pool, gate, bias, ctx.independent, eps=0.0)
        found = backward(streams, pending_of(output, beta), parameters, gates, stats, Upstream(*given))
        return *(None,) * 5, *map(gradient_like, found, leaves)


def multi_gate_step_triton(
    streams: Tensor, pending: Pending | None, parameters: Parameters
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Streams, read and gates; see `leadline.ops.multi_gate_step`."""
    keep = torch.is_grad_enabled()
    with torch.no_grad():
        found, stats = forward(streams, pending, parameters, keep)
    new, read, gates = found.streams, found.read, found.scalars.gates
    if keep:
        leaves = (streams, *(pending or (None, None)), *parameters[:3])
        new, read, gates = _Step.apply(parameters.independent, new, read, gates, stats, *leaves)
    return (streams if new is None else new), read, gates
