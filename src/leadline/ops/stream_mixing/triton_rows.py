"""What the stream kernels share: products in the right precision, launch shapes, the gradient of a projection's weight.

A *row* is what one root mean square is taken of: one stream of a token (Hyper-Connections), or all of a token's streams
(mHC). T tokens, N streams, D width, k projections, K row width: D or N·D.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.ops.kernels import device_of, padded, wide_type
from leadline.ops.precision import wide

SMALLEST_PRODUCT = 16
"""No side of a matrix product in a kernel is smaller: it is padded with zeros."""
MOST_SPLITS = 32
PROGRAMS_WANTED = 512


class Tile(NamedTuple):
    """What one step of a kernel's loop holds: `rows` rows, `columns` of width, and the warps that share them."""

    rows: int
    columns: int
    warps: int


def exact_product(dtype: torch.dtype) -> str:
    """How to multiply for a result good to float32: where one factor has 16 bits, both are split into bfloat16.

    Six products of three parts each run on tensor cores and drop less than 2^-24 of a product. Triton's interpreter
    multiplies in float32 whatever is asked.
    """
    return "bf16x6" if wide(dtype) != dtype and not triton.knobs.runtime.interpret else "ieee"


def rounded_product(dtype: torch.dtype) -> str:
    """How to multiply where the result is rounded to `dtype` anyway: three products, which drop less than 2^-15."""
    return "bf16x3" if wide(dtype) != dtype and not triton.knobs.runtime.interpret else "ieee"


def padded_side(count: int) -> int:
    """The block that holds `count` numbers as a side of a matrix product."""
    return max(SMALLEST_PRODUCT, padded(count))


def columns_for(dim: int, most: int) -> int:
    """The widest block, up to `most` columns, that wastes no more than an eighth of a row's width."""
    block = most
    while block > SMALLEST_PRODUCT and 8 * (-dim % block) > dim:
        block //= 2
    return block


def unit_stride(tensor: Tensor) -> Tensor:
    """The tensor with its last dimension's elements side by side: a copy only where they are not."""
    return tensor if tensor.shape[-1] == 1 or tensor.stride(-1) == 1 else tensor.contiguous()


@triton.jit
def tanh(x):
    """By a series near zero, where `(1 - t) / (1 + t)` would lose digits; `t = exp(-2|x|)` overflows nowhere."""
    square = x * x
    series = x * (1 - square * (1 / 3 - square * (2 / 15 - square * (17 / 315 - square * (62 / 2835)))))
    t = tl.exp(-2 * tl.abs(x))
    far = (1 - t) / (1 + t)
    return tl.where(tl.abs(x) < 0.1, series, tl.where(x < 0, -far, far))


def weight_gradient(streams_TND: Tensor, given: Tensor, per_stream: bool) -> Tensor:
    """`Σ_rows given_rk x_rc`, (k, K): one more read of the streams, and as many partial results as splits of the rows.

    Args:
        streams_TND: (T, N, D) with unit stride along D.
        given: (rows, k), contiguous: T·N rows of width D if `per_stream`, else T rows of width N·D.
        per_stream: what a row is.
    """
    tokens, streams, dim = streams_TND.shape
    rows, count = given.shape
    width = dim if per_stream else streams * dim
    if tokens == 0:
        return given.new_zeros(count, width)
    tile = weight_tile(dim, count, streams_TND.dtype)
    counts = min(64, padded_side(count))
    chunks = triton.cdiv(dim, tile.columns) * (1 if per_stream else streams)
    count_blocks = triton.cdiv(count, counts)
    splits = max(1, min(MOST_SPLITS, PROGRAMS_WANTED // (chunks * count_blocks), triton.cdiv(rows, 4 * tile.rows)))
    partial = given.new_empty(splits, count, width)
    with device_of(streams_TND):
        _weight_gradient_kernel[(chunks, count_blocks, splits)](
            streams_TND,
            given,
            partial,
            rows,
            splits,
            streams_TND.stride(0),
            streams_TND.stride(1),
            STREAMS=streams,
            DIM=dim,
            COUNT=count,
            PER_STREAM=per_stream,
            ROWS=tile.rows,
            COUNTS=counts,
            COLUMNS=tile.columns,
            WIDE=wide_type(streams_TND.dtype),
            PRECISION=exact_product(streams_TND.dtype),
            num_warps=tile.warps,
        )
    return partial.sum(0) if splits > 1 else partial[0]


def weight_tile(dim: int, count: int, dtype: torch.dtype) -> Tile:
    """The launch shape of `weight_gradient` for k = `count`."""
    if wide(dtype) == dtype:
        return Tile(16, columns_for(dim, 64), 4)
    return Tile(32, columns_for(dim, 64), 4 if padded_side(count) == 16 else 8)


@triton.jit(do_not_specialize=["rows", "splits"])
def _weight_gradient_kernel(
    streams,
    given,
    partial,
    rows,
    splits,
    stride_t,
    stride_n,
    STREAMS: tl.constexpr,
    DIM: tl.constexpr,
    COUNT: tl.constexpr,
    PER_STREAM: tl.constexpr,
    ROWS: tl.constexpr,
    COUNTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    chunk, split = tl.program_id(0), tl.program_id(2)
    count = tl.program_id(1) * COUNTS + tl.arange(0, COUNTS)
    if PER_STREAM:
        stream = 0
        column = chunk * COLUMNS + tl.arange(0, COLUMNS)
    else:
        stream = chunk % STREAMS
        column = (chunk // STREAMS) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < DIM
    total = tl.zeros([COUNTS, COLUMNS], WIDE)
    for block in range(split, tl.cdiv(rows, ROWS), splits):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        if PER_STREAM:
            start = row // STREAMS * stride_t + row % STREAMS * stride_n
        else:
            start = row * stride_t + stream * stride_n
        live = row < rows
        x = tl.load(streams + start[:, None] + column[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        g = tl.load(
            given + row[None, :] * COUNT + count[:, None], mask=live[None, :] & (count < COUNT)[:, None], other=0.0
        )
        total = tl.dot(g, x.to(WIDE), total, input_precision=PRECISION, out_dtype=WIDE)
    width = DIM if PER_STREAM else STREAMS * DIM
    at = (split * COUNT + count).to(tl.int64) * width
    tl.store(
        partial + at[:, None] + stream * DIM + column[None, :],
        total,
        mask=(count < COUNT)[:, None] & inside[None, :],
    )
