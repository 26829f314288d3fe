"""What the stream kernels share: products in the right precision, launch shapes, the gradient of a projection's weight.

A *row* is what one root mean square is taken of: one stream of a token (Hyper-Connections), or all of a token's streams
(mHC). T tokens, N streams, D width, k projections, K row width: D or N·D.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.ops.kernels import Tile, device_of, padded, wide_type
from leadline.ops.precision import wide

SMALLEST_PRODUCT = 16
"""No side of a matrix product in a kernel is smaller: it is padded with zeros."""
MOST_SPLITS = 32
PROGRAMS_WANTED = 512


Results = namedtuple("Results", "pre h mixing post projected roots")
"""What the forward kernel of a width step writes."""
Incoming = namedtuple(
    "Incoming", "dpre dh dmixing dpost handed projected roots dh_stride_t handed_stride_t handed_stride_n"
)
"""What its backward kernel reads: gradients, with `handed` that of the streams' later uses; what was kept; strides."""
Grads = namedtuple("Grads", "streams made slopes")
"""What it writes: the gradients of the streams and of what the projections made, and what multiplies the streams in the
weight's gradient."""
Made = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""The tensors of `Results`."""


class _WeightForm(NamedTuple):
    """What the kernel of `weight_gradient` is compiled for."""

    STREAMS: int
    DIM: int
    COUNT: int
    PER_STREAM: bool
    ROWS: int
    COUNTS: int
    COLUMNS: int
    WIDE: Any
    PRECISION: str


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


def results_for(streams_TND: Tensor, weight: Tensor, projected: tuple[int, ...], roots: tuple[int, ...]) -> Made:
    """Unwritten, for projections and inverse RMS of these shapes."""
    tokens, streams, dim = streams_TND.shape
    pre_TN, mixing_TNN, post_TN, y, root = (
        weight.new_empty(shape)
        for shape in ((tokens, streams), (tokens, streams, streams), (tokens, streams), projected, roots)
    )
    return pre_TN, streams_TND.new_empty(tokens, dim), mixing_TNN, post_TN, y, root


def zeros_for(given: Sequence[Tensor | None], streams_TND: Tensor, like: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of pre, h, mixing and post, zeros where there are none; and that of the streams' later uses.

    Args:
        given: as autograd passes them.
        like: of the coefficients' dtype.
    """
    tokens, streams, dim = streams_TND.shape
    shapes = ((tokens, streams), (tokens, dim), (tokens, streams, streams), (tokens, streams))
    made = (like, streams_TND, like, like)
    *four, handed = given
    whole = (t.new_zeros(shape) if g is None else g for g, t, shape in zip(four, made, shapes, strict=True))
    return *whole, handed


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
    form = _WeightForm(
        STREAMS=streams,
        DIM=dim,
        COUNT=count,
        PER_STREAM=per_stream,
        ROWS=tile.rows,
        COUNTS=counts,
        COLUMNS=tile.columns,
        WIDE=wide_type(streams_TND.dtype),
        PRECISION=exact_product(streams_TND.dtype),
    )
    with device_of(streams_TND):
        _weight_gradient_kernel[(chunks, count_blocks, splits)](
            streams_TND, given, partial, rows, splits, *streams_TND.stride()[:2], FORM=form, num_warps=tile.warps
        )
    return partial.sum(0) if splits > 1 else partial[0]


def weight_tile(dim: int, count: int, dtype: torch.dtype) -> Tile:
    """The launch shape of `weight_gradient` for k = `count`."""
    if wide(dtype) == dtype:
        return Tile(16, columns_for(dim, 64), 4)
    return Tile(32, columns_for(dim, 64), 4 if padded_side(count) == 16 else 8)


@triton.jit(do_not_specialize=["rows", "splits"])
def _weight_gradient_kernel(streams, given, partial, rows, splits, stride_t, stride_n, FORM: tl.constexpr):
    chunk, split = tl.program_id(0), tl.program_id(2)
    count = tl.program_id(1) * FORM.COUNTS + tl.arange(0, FORM.COUNTS)
    if FORM.PER_STREAM:
        stream = 0
        column = chunk * FORM.COLUMNS + tl.arange(0, FORM.COLUMNS)
    else:
        stream = chunk % FORM.STREAMS
        column = (chunk // FORM.STREAMS) * FORM.COLUMNS + tl.arange(0, FORM.COLUMNS)
    inside = column < FORM.DIM
    total = tl.full([FORM.COUNTS, FORM.COLUMNS], 0, FORM.WIDE)
    for block in range(split, tl.cdiv(rows, FORM.ROWS), splits):
        row = (block * FORM.ROWS + tl.arange(0, FORM.ROWS)).to(tl.int64)
        if FORM.PER_STREAM:
            start = row // FORM.STREAMS * stride_t + row % FORM.STREAMS * stride_n
        else:
            start = row * stride_t + stream * stride_n
        live = row < rows
        x = tl.load(streams + start[:, None] + column[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        g = tl.load(
            given + row[None, :] * FORM.COUNT + count[:, None],
            mask=live[None, :] & (count < FORM.COUNT)[:, None],
            other=0.0,
        )
        total = tl.dot(g, x.to(FORM.WIDE), total, input_precision=FORM.PRECISION, out_dtype=FORM.WIDE)
    width = FORM.DIM if FORM.PER_STREAM else FORM.STREAMS * FORM.DIM
    at = (split * FORM.COUNT + count).to(tl.int64) * width
    tl.store(
        partial + at[:, None] + stream * FORM.DIM + column[None, :],
        total,
        mask=(count < FORM.COUNT)[:, None] & inside[None, :],
    )
