"""The depth step `H'_i = Σ_j M_ij H_j + post_i F` as one kernel forward and one backward: everything is moved once.

Up to MOST_IN_LANES streams are summed within a lane, which holds the same columns of all of them. More streams are a
small matrix product of one token, so that no other token's numbers, infinite ones say, enter.

Elements moved a token, for N streams, D width, B blocks of columns in a row:

| | read | written |
|---|---|---|
| forward | (N + 1) D; B (N² + N) | N D |
| backward | (2N + 1) D; N² + N (B N² + N for streams in lanes) | (N + 1) D; N² + N |

Saved for backward: the arguments, by reference.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.kernels import device_of, padded, wide_type
from leadline.ops.precision import no_autocast, wide
from leadline.ops.stream_mixing.triton_rows import (
    Tile,
    columns_for,
    exact_product,
    padded_side,
    rounded_product,
    unit_stride,
)

MOST_IN_LANES = 8
"""Streams that are summed without a matrix product."""


def write_streams(streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor) -> Tensor:
    """See `leadline.ops.stream_mixing.write_streams`."""
    run = _WriteStreams.apply if torch.is_grad_enabled() else forward
    new_TND: Tensor = run(streams_TND, output_TD, mixing_TNN, post_TN)
    return new_TND


@torch.library.custom_op("leadline::write_streams", mutates_args=())
def forward(streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor) -> Tensor:
    """H' (T, N, D) in the streams' dtype."""
    tokens, streams, dim = streams_TND.shape
    new_TND = streams_TND.new_empty(tokens, streams, dim)
    if tokens == 0:
        return new_TND
    x_TND, f_TD = unit_stride(streams_TND), unit_stride(output_TD)
    tile = forward_tile(streams, dim, x_TND.dtype)
    with device_of(x_TND):
        _write_forward[(tokens, triton.cdiv(dim, tile.columns))](
            x_TND,
            f_TD,
            mixing_TNN,
            post_TN,
            new_TND,
            x_TND.stride(0),
            x_TND.stride(1),
            f_TD.stride(0),
            *mixing_TNN.stride(),
            *post_TN.stride(),
            STREAMS=streams,
            DIM=dim,
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            IN_LANES=streams <= MOST_IN_LANES,
            WIDE=wide_type(x_TND.dtype),
            PRECISION=rounded_product(x_TND.dtype),
            num_warps=tile.warps,
        )
    return new_TND


@forward.register_fake
def _forward_results(streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor) -> Tensor:
    return streams_TND.new_empty(streams_TND.shape)


@torch.library.custom_op("leadline::write_streams_backward", mutates_args=())
def backward(
    dnew_TND: Tensor, streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the streams, the output, the mixing and post."""
    results = _backward_results(dnew_TND, streams_TND, output_TD, mixing_TNN, post_TN)
    tokens, streams, dim = streams_TND.shape
    if tokens == 0:
        return results
    g_TND, x_TND, f_TD = unit_stride(dnew_TND), unit_stride(streams_TND), unit_stride(output_TD)
    tile = backward_tile(streams, dim, x_TND.dtype)
    with device_of(x_TND):
        _write_backward[(tokens,)](
            g_TND,
            x_TND,
            f_TD,
            mixing_TNN,
            post_TN,
            *results,
            g_TND.stride(0),
            g_TND.stride(1),
            x_TND.stride(0),
            x_TND.stride(1),
            f_TD.stride(0),
            *mixing_TNN.stride(),
            *post_TN.stride(),
            STREAMS=streams,
            DIM=dim,
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            IN_LANES=streams <= MOST_IN_LANES,
            WIDE=wide_type(x_TND.dtype),
            PRECISION=rounded_product(x_TND.dtype),
            EXACT=exact_product(x_TND.dtype),
            num_warps=tile.warps,
        )
    return results


@backward.register_fake
def _backward_results(
    dnew_TND: Tensor, streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs = (streams_TND, output_TD, mixing_TNN, post_TN)
    dx, doutput, dmixing, dpost = (tensor.new_empty(tensor.shape) for tensor in inputs)
    return dx, doutput, dmixing, dpost


class _WriteStreams(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor) -> Tensor:
        ctx.save_for_backward(streams_TND, output_TD, mixing_TNN, post_TN)
        new_TND: Tensor = forward(streams_TND, output_TD, mixing_TNN, post_TN)
        return new_TND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dnew_TND: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with no_autocast(dnew_TND):
            grads: tuple[Tensor, Tensor, Tensor, Tensor] = backward(dnew_TND, *ctx.saved_tensors)
        return grads


def forward_tile(streams: int, dim: int, dtype: torch.dtype) -> Tile:
    """One token's streams by as many columns as a program takes."""
    if streams <= MOST_IN_LANES:
        columns = columns_for(dim, 1024 if streams <= 4 else 512)
        return Tile(padded(streams), columns, max(1, columns // 256))
    return _product_tile(streams, dim, dtype)


def backward_tile(streams: int, dim: int, dtype: torch.dtype) -> Tile:
    """One token's streams by as many columns as a step takes; one warp, so that sums over columns stay within it."""
    if streams <= MOST_IN_LANES:
        return Tile(padded(streams), columns_for(dim, 256 if streams <= 4 else 64), 1)
    return _product_tile(streams, dim, dtype)


def _product_tile(streams: int, dim: int, dtype: torch.dtype) -> Tile:
    rows = padded_side(streams)
    narrow = wide(dtype) != dtype
    columns = 64 if rows == 16 else 32 if narrow else 16
    return Tile(rows, columns_for(dim, columns), 4 if rows <= 32 else 8)


@triton.jit
def _write_forward(
    streams,
    output,
    mixing,
    post,
    new,
    stride_t,
    stride_n,
    output_stride,
    mixing_stride_t,
    mixing_stride_i,
    mixing_stride_j,
    post_stride_t,
    post_stride_i,
    STREAMS: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IN_LANES: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    live = row < STREAMS
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = c < DIM
    x = tl.load(
        streams + token * stride_t + (row * stride_n)[:, None] + c[None, :],
        mask=live[:, None] & inside[None, :],
        other=0.0,
    ).to(WIDE)
    f = tl.load(output + token * output_stride + c, mask=inside, other=0.0).to(WIDE)
    m = mixing + token * mixing_stride_t
    to = new + token * STREAMS * DIM
    if IN_LANES:
        for i in tl.static_range(STREAMS):
            weights = tl.load(m + i * mixing_stride_i + row * mixing_stride_j, mask=live, other=0.0)
            p = tl.load(post + token * post_stride_t + i * post_stride_i)
            total = tl.sum(weights[:, None] * x, axis=0) + p * f
            tl.store(to + i * DIM + c, total.to(new.dtype.element_ty), mask=inside)
    else:
        weights = tl.load(
            m + (row * mixing_stride_i)[:, None] + (row * mixing_stride_j)[None, :],
            mask=live[:, None] & live[None, :],
            other=0.0,
        )
        p = tl.load(post + token * post_stride_t + row * post_stride_i, mask=live, other=0.0)
        total = tl.dot(weights, x, p[:, None] * f[None, :], input_precision=PRECISION, out_dtype=WIDE)
        tl.store(
            to + (row * DIM)[:, None] + c[None, :],
            total.to(new.dtype.element_ty),
            mask=live[:, None] & inside[None, :],
        )


@triton.jit
def _write_backward(
    upstream,
    streams,
    output,
    mixing,
    post,
    dstreams,
    doutput,
    dmixing,
    dpost,
    upstream_stride_t,
    upstream_stride_n,
    stride_t,
    stride_n,
    output_stride,
    mixing_stride_t,
    mixing_stride_i,
    mixing_stride_j,
    post_stride_t,
    post_stride_i,
    STREAMS: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IN_LANES: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    EXACT: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    live = row < STREAMS
    m = mixing + token * mixing_stride_t
    to = dstreams + token * STREAMS * DIM
    p = tl.load(post + token * post_stride_t + row * post_stride_i, mask=live, other=0.0)
    if not IN_LANES:
        transposed = tl.load(
            m + (row * mixing_stride_j)[:, None] + (row * mixing_stride_i)[None, :],
            mask=live[:, None] & live[None, :],
            other=0.0,
        )
    dm = tl.zeros([ROWS, ROWS], WIDE)
    dp = tl.zeros([ROWS], WIDE)
    for at in range(0, DIM, COLUMNS):
        c = at + tl.arange(0, COLUMNS)
        inside = c < DIM
        both = live[:, None] & inside[None, :]
        start = upstream + token * upstream_stride_t
        g = tl.load(start + (row * upstream_stride_n)[:, None] + c[None, :], mask=both, other=0.0).to(WIDE)
        start = streams + token * stride_t
        x = tl.load(start + (row * stride_n)[:, None] + c[None, :], mask=both, other=0.0).to(WIDE)
        f = tl.load(output + token * output_stride + c, mask=inside, other=0.0).to(WIDE)
        dp += tl.sum(g * f[None, :], axis=1)
        df = tl.sum(p[:, None] * g, axis=0)
        tl.store(doutput + token * DIM + c, df.to(doutput.dtype.element_ty), mask=inside)
        if IN_LANES:
            dm += tl.sum(g[:, None, :] * x[None, :, :], axis=2)
            for j in tl.static_range(STREAMS):
                weights = tl.load(m + row * mixing_stride_i + j * mixing_stride_j, mask=live, other=0.0)
                dx = tl.sum(weights[:, None] * g, axis=0)
                tl.store(to + j * DIM + c, dx.to(dstreams.dtype.element_ty), mask=inside)
        else:
            dm = tl.dot(g, tl.trans(x), dm, input_precision=EXACT, out_dtype=WIDE)
            dx = tl.dot(transposed, g, input_precision=PRECISION, out_dtype=WIDE)
            tl.store(to + (row * DIM)[:, None] + c[None, :], dx.to(dstreams.dtype.element_ty), mask=both)
    cell = (row * STREAMS)[:, None] + row[None, :]
    tl.store(dmixing + token * STREAMS * STREAMS + cell, dm, mask=live[:, None] & live[None, :])
    tl.store(dpost + token * STREAMS + row, dp, mask=live)
