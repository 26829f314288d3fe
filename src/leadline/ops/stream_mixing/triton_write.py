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

from collections import namedtuple
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.kernels import Tile, device_of, padded, wide_type
from leadline.ops.precision import no_autocast, wide
from leadline.ops.stream_mixing.triton_rows import (
    columns_for,
    exact_product,
    padded_side,
    rounded_product,
    unit_stride,
)

MOST_IN_LANES = 8
"""Streams that are summed without a matrix product."""


class _Form(NamedTuple):
    """What a kernel is compiled for: sizes, its tile, and how it sums and multiplies."""

    STREAMS: int
    DIM: int
    ROWS: int
    COLUMNS: int
    IN_LANES: bool
    WIDE: Any
    PRECISION: str
    EXACT: str


_Inputs = namedtuple(
    "_Inputs",
    "streams output mixing post stride_t stride_n output_stride "
    "mixing_stride_t mixing_stride_i mixing_stride_j post_stride_t post_stride_i",
)
_Grads = namedtuple("_Grads", "dstreams doutput dmixing dpost")


def write_streams(streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor) -> Tensor:
    """See `leadline.ops.stream_mixing.write_streams`."""
    run = _WriteStreams.apply if torch.is_grad_enabled() else forward
    new_TND: Tensor = run(streams_TND, output_TD, mixing_TNN, post_TN)
    return new_TND


def _inputs(streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor) -> _Inputs:
    x_TND, f_TD = unit_stride(streams_TND), unit_stride(output_TD)
    strides = (*x_TND.stride()[:2], f_TD.stride(0), *mixing_TNN.stride(), *post_TN.stride())
    return _Inputs(x_TND, f_TD, mixing_TNN, post_TN, *strides)


def _form(streams_TND: Tensor, tile: Tile) -> _Form:
    _, streams, dim = streams_TND.shape
    products = (rounded_product(streams_TND.dtype), exact_product(streams_TND.dtype))
    return _Form(
        streams, dim, tile.rows, tile.columns, streams <= MOST_IN_LANES, wide_type(streams_TND.dtype), *products
    )


@torch.library.custom_op("leadline::write_streams", mutates_args=())
def forward(streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor) -> Tensor:
    """H' (T, N, D) in the streams' dtype."""
    tokens, streams, dim = streams_TND.shape
    new_TND = streams_TND.new_empty(tokens, streams, dim)
    if tokens > 0:
        tile = forward_tile(streams, dim, streams_TND.dtype)
        given, form = _inputs(streams_TND, output_TD, mixing_TNN, post_TN), _form(streams_TND, tile)
        with device_of(streams_TND):
            _write_forward[(tokens, triton.cdiv(dim, tile.columns))](given, new_TND, FORM=form, num_warps=tile.warps)
    return new_TND


@forward.register_fake
def _(streams_TND: Tensor, *_: Tensor) -> Tensor:
    return streams_TND.new_empty(streams_TND.shape)


@torch.library.custom_op("leadline::write_streams_backward", mutates_args=())
def backward(
    dnew_TND: Tensor, streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the streams, the output, the mixing and post."""
    results = _backward_results(dnew_TND, streams_TND, output_TD, mixing_TNN, post_TN)
    tokens, streams, dim = streams_TND.shape
    if tokens > 0:
        g_TND, tile = unit_stride(dnew_TND), backward_tile(streams, dim, streams_TND.dtype)
        given, form = _inputs(streams_TND, output_TD, mixing_TNN, post_TN), _form(streams_TND, tile)
        with device_of(streams_TND):
            _write_backward[(tokens,)](
                (g_TND, *g_TND.stride()[:2]), given, _Grads(*results), FORM=form, num_warps=tile.warps
            )
    return results


@backward.register_fake
def _backward_results(dnew_TND: Tensor, *leaves: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dx, doutput, dmixing, dpost = (tensor.new_empty(tensor.shape) for tensor in leaves)
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
def _write_forward(given, new, FORM: tl.constexpr):
    STREAMS: tl.constexpr = FORM.STREAMS
    token = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, FORM.ROWS)
    live = row < FORM.STREAMS
    c = tl.program_id(1) * FORM.COLUMNS + tl.arange(0, FORM.COLUMNS)
    inside = c < FORM.DIM
    x = tl.load(
        given.streams + token * given.stride_t + (row * given.stride_n)[:, None] + c[None, :],
        mask=live[:, None] & inside[None, :],
        other=0.0,
    ).to(FORM.WIDE)
    f = tl.load(given.output + token * given.output_stride + c, mask=inside, other=0.0).to(FORM.WIDE)
    m = given.mixing + token * given.mixing_stride_t
    to = new + token * FORM.STREAMS * FORM.DIM
    if FORM.IN_LANES:
        for i in tl.static_range(STREAMS):
            weights = tl.load(m + i * given.mixing_stride_i + row * given.mixing_stride_j, mask=live, other=0.0)
            p = tl.load(given.post + token * given.post_stride_t + i * given.post_stride_i)
            total = tl.sum(weights[:, None] * x, axis=0) + p * f
            tl.store(to + i * FORM.DIM + c, total.to(new.dtype.element_ty), mask=inside)
    else:
        weights = tl.load(
            m + (row * given.mixing_stride_i)[:, None] + (row * given.mixing_stride_j)[None, :],
            mask=live[:, None] & live[None, :],
            other=0.0,
        )
        p = tl.load(given.post + token * given.post_stride_t + row * given.post_stride_i, mask=live, other=0.0)
        total = tl.dot(weights, x, p[:, None] * f[None, :], input_precision=FORM.PRECISION, out_dtype=FORM.WIDE)
        tl.store(
            to + (row * FORM.DIM)[:, None] + c[None, :],
            total.to(new.dtype.element_ty),
            mask=live[:, None] & inside[None, :],
        )


@triton.jit
def _write_backward(incoming, given, grads, FORM: tl.constexpr):
    STREAMS: tl.constexpr = FORM.STREAMS
    upstream, upstream_stride_t, upstream_stride_n = incoming
    token = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, FORM.ROWS)
    live = row < FORM.STREAMS
    m = given.mixing + token * given.mixing_stride_t
    to = grads.dstreams + token * FORM.STREAMS * FORM.DIM
    p = tl.load(given.post + token * given.post_stride_t + row * given.post_stride_i, mask=live, other=0.0)
    if not FORM.IN_LANES:
        transposed = tl.load(
            m + (row * given.mixing_stride_j)[:, None] + (row * given.mixing_stride_i)[None, :],
            mask=live[:, None] & live[None, :],
            other=0.0,
        )
    dm = tl.full([FORM.ROWS, FORM.ROWS], 0, FORM.WIDE)
    dp = tl.full([FORM.ROWS], 0, FORM.WIDE)
    for at in range(0, FORM.DIM, FORM.COLUMNS):
        c = at + tl.arange(0, FORM.COLUMNS)
        inside = c < FORM.DIM
        both = live[:, None] & inside[None, :]
        start = upstream + token * upstream_stride_t
        g = tl.load(start + (row * upstream_stride_n)[:, None] + c[None, :], mask=both, other=0.0).to(FORM.WIDE)
        start = given.streams + token * given.stride_t
        x = tl.load(start + (row * given.stride_n)[:, None] + c[None, :], mask=both, other=0.0).to(FORM.WIDE)
        f = tl.load(given.output + token * given.output_stride + c, mask=inside, other=0.0).to(FORM.WIDE)
        dp += tl.sum(g * f[None, :], axis=1)
        df = tl.sum(p[:, None] * g, axis=0)
        tl.store(grads.doutput + token * FORM.DIM + c, df.to(grads.doutput.dtype.element_ty), mask=inside)
        if FORM.IN_LANES:
            dm += tl.sum(g[:, None, :] * x[None, :, :], axis=2)
            for j in tl.static_range(STREAMS):
                weights = tl.load(m + row * given.mixing_stride_i + j * given.mixing_stride_j, mask=live, other=0.0)
                dx = tl.sum(weights[:, None] * g, axis=0)
                tl.store(to + j * FORM.DIM + c, dx.to(grads.dstreams.dtype.element_ty), mask=inside)
        else:
            dm = tl.dot(g, tl.trans(x), dm, input_precision=FORM.EXACT, out_dtype=FORM.WIDE)
            dx = tl.dot(transposed, g, input_precision=FORM.PRECISION, out_dtype=FORM.WIDE)
            tl.store(to + (row * FORM.DIM)[:, None] + c[None, :], dx.to(grads.dstreams.dtype.element_ty), mask=both)
    cell = (row * FORM.STREAMS)[:, None] + row[None, :]
    tl.store(grads.dmixing + token * FORM.STREAMS * FORM.STREAMS + cell, dm, mask=live[:, None] & live[None, :])
    tl.store(grads.dpost + token * FORM.STREAMS + row, dp, mask=live)
