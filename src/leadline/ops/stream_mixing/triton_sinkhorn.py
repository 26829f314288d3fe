"""Sinkhorn's iterations and their gradient on blocks of tokens, in registers.

Blocks are (tokens, rows, columns), rows and columns padded to a power of two N_P; padded entries are zero throughout.
The first iteration is in the log domain, safe for any logits: two softmaxes that leave a kernel K. From there a matrix
is `a ⊙ K ⊙ b` with one factor a row and one a column, so the iterations are pairs of vectors: backward makes them again
and holds them, a few numbers a lane, until it has walked back through them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sinkhorn_kernel(logits, valid, WIDE: tl.constexpr):
    """The softmax over columns; and that over rows of its logarithm: the matrix after one iteration."""
    far = tl.full([], -1e30, WIDE)
    z = tl.where(valid, logits, far)
    z -= tl.max(z, axis=1)[:, None, :]
    e = tl.where(valid, tl.exp(z), 0.0)
    total = _nonzero(tl.sum(e, axis=1))
    columns = e / total[:, None, :]
    z = tl.where(valid, z - tl.log(total)[:, None, :], far)
    z -= tl.max(z, axis=2)[:, :, None]
    e = tl.where(valid, tl.exp(z), 0.0)
    return columns, e / _nonzero(tl.sum(e, axis=2))[:, :, None]


@triton.jit
def _nonzero(total):
    """One where a padded row or column sums to zero."""
    return tl.where(total == 0, 1.0, total)


@triton.jit
def sinkhorn(logits, valid, iterations, WIDE: tl.constexpr):
    """The mixing after so many iterations of columns, then rows."""
    _, mixing = sinkhorn_kernel(logits, valid, WIDE)
    for _step in range(1, iterations):
        mixing /= _nonzero(tl.sum(mixing, axis=1))[:, None, :]
        mixing /= _nonzero(tl.sum(mixing, axis=2))[:, :, None]
    return mixing


@triton.jit
def sinkhorn_backward(
    dmixing,
    logits,
    valid,
    iterations,
    TOKENS: tl.constexpr,
    SIDE: tl.constexpr,
    STEPS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The logits' gradient. STEPS, a power of two, is at least `iterations`."""
    columns, kernel = sinkhorn_kernel(logits, valid, WIDE)
    step = tl.arange(0, STEPS)
    row = tl.sum(tl.zeros([TOKENS, SIDE, SIDE], WIDE), axis=2) + 1
    col = tl.sum(tl.zeros([TOKENS, SIDE, SIDE], WIDE), axis=1) + 1
    held_rows = tl.zeros([TOKENS, STEPS, SIDE], WIDE) + tl.where(step == 0, 1.0, 0.0)[None, :, None].to(WIDE)
    held_cols = held_rows
    for s in range(1, iterations):
        col = 1 / _nonzero(tl.sum(kernel * row[:, :, None], axis=1))
        row = 1 / _nonzero(tl.sum(kernel * col[:, None, :], axis=2))
        held_cols = tl.where((step == s)[None, :, None], col[:, None, :], held_cols)
        held_rows = tl.where((step == s)[None, :, None], row[:, None, :], held_rows)
    pulled = dmixing * kernel
    drow = tl.sum(pulled * col[:, None, :], axis=2)
    dcol = tl.sum(pulled * row[:, :, None], axis=1)
    dkernel = dmixing * row[:, :, None] * col[:, None, :]
    for back in range(1, iterations):
        s = iterations - back
        row, col = _held(held_rows, step, s), _held(held_cols, step, s)
        drow = -drow * row * row
        dkernel += drow[:, :, None] * col[:, None, :]
        dcol = -(dcol + tl.sum(kernel * drow[:, :, None], axis=1)) * col * col
        dkernel += _held(held_rows, step, s - 1)[:, :, None] * dcol[:, None, :]
        drow = tl.sum(kernel * dcol[:, None, :], axis=2)
        dcol = tl.zeros_like(dcol)
    dcolumns = kernel * (dkernel - tl.sum(dkernel * kernel, axis=2)[:, :, None])
    return dcolumns - columns * tl.sum(dcolumns, axis=1)[:, None, :]


@triton.jit
def _held(vectors, step, s):
    return tl.sum(tl.where((step == s)[None, :, None], vectors, 0.0), axis=1)
