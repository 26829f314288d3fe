"""What Triton kernels and their launchers share: shapes of blocks, warps, partial rows, devices. Needs Triton.

Launch shapes are pure functions of width and token count, so that ahead-of-time compilation sees what a launch uses.
Nothing depends on the chip: results are the same on any of one kind.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.ops.precision import wide

LANES = 32
MOST_WARPS = 16
"""Of 64 lanes on AMD: 1024 threads, the most a program may have."""
VECTOR_BYTES = 16
"""The most that one lane reads at once."""
MOST_PARTIAL_ROWS = 1024
TOKENS_A_PARTIAL_ROW = 4


class Tile(NamedTuple):
    """What one step of a kernel's loop holds: `rows` rows, `columns` of width, and the warps that share them."""

    rows: int
    columns: int
    warps: int


def padded(count: int) -> int:
    """The smallest power of two that is at least `count`, and at least 1: the size of the block that holds it."""
    return 1 << max(0, count - 1).bit_length()


def warps_for(block: int, per_lane: int) -> int:
    """Warps for a program that works on `block` numbers (a power of two) with about `per_lane` of them in each lane."""
    return max(1, min(MOST_WARPS, padded(block // (LANES * per_lane))))


def partial_rows(tokens: int) -> int:
    """How many programs share the tokens where each keeps one partial row of a reduction over tokens.

    Program p takes the tokens p, p + programs, ... and writes its row; `row.sum(dim=0)` by PyTorch adds them in a fixed
    order. Zero tokens have no program: the sum of no rows is zero.
    """
    return min(MOST_PARTIAL_ROWS, -(-tokens // TOKENS_A_PARTIAL_ROW))


def wide_type(dtype: torch.dtype) -> tl.dtype:
    """What a kernel computes in: float32, or float64 for float64."""
    return tl.float64 if wide(dtype) == torch.float64 else tl.float32


def as_rows(tensor: Tensor) -> Tensor:
    """(..., D) as contiguous (N, D) from a multiple of VECTOR_BYTES on: the same memory where it lies so, else a copy.

    Triton compiles a kernel for each pattern of pointers that start at such a multiple and pointers that do not.
    """
    rows = tensor.reshape(tensor.shape[:-1].numel(), tensor.shape[-1]).contiguous()
    return rows if rows.data_ptr() % VECTOR_BYTES == 0 else rows.clone()


def even_rows(dim: int, dtype: torch.dtype) -> bool:
    """Whether each row of `as_rows` starts at a multiple of VECTOR_BYTES, so that it is read in whole vectors."""
    return dim * dtype.itemsize % VECTOR_BYTES == 0


def device_of(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Makes the tensor's GPU the current one, on which Triton launches; nothing on a CPU."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


@triton.jit
def row_start(row, inner, outer_stride, inner_stride, EVEN: tl.constexpr):
    """Where rows start: `leadline.ops.rows.Rows`. EVEN says that all do at multiples of 16."""
    start = (row // inner).to(tl.int64) * outer_stride + (row % inner).to(tl.int64) * inner_stride
    if EVEN:
        start = tl.multiple_of(start, 16)
    return start
