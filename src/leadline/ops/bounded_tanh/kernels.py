"""The kernels of bounded tanh: a program walks over tiles of whole rows, so that a reduction never leaves registers."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import triton
import triton.language as tl

from leadline.ops.kernels import row_start

SMALL = tl.constexpr(0.625)
"""Below it tanh is a continued fraction; above, `1 - exp` loses no digits."""


class Form(NamedTuple):
    """What a kernel is compiled for: sizes, the terms of tanh's fraction, a tile, and what is there.

    FIRST and DMOMENT are the backward kernel's: the site, and whether it reads or writes a gradient of the moment.
    """

    DIM: int
    WIDE: Any
    LEVELS: int
    ROWS: int
    WIDTH: int
    EVEN: bool
    KAPPA: float = 0.0
    WITH_MEAN: bool = False
    KEEP: bool = False
    FIRST: bool = False
    DMOMENT: bool = False


Inputs = namedtuple("Inputs", "x gain lam lam_first moment c", defaults=(None, None, None))
"""Pointers; those with a default are the second site's."""
Results = namedtuple("Results", "y moment stats")
"""What a forward kernel writes; the second site writes no moment."""
Incoming = namedtuple("Incoming", "stats dy")
"""What the backward kernel reads beside the inputs."""
Grads = namedtuple("Grads", "dx dgain dlam dmoment")
"""What it writes. The moment's gradient is written at the second site, and read at the first."""


@triton.jit
def tanh(u, LEVELS: tl.constexpr):
    """tanh, to rounding at every size: Lambert's continued fraction near 0, exponentials elsewhere."""
    size = tl.abs(u)
    square = size * size
    top, below_top = size, tl.zeros_like(size)
    bottom, below_bottom = tl.zeros_like(size) + 1, tl.zeros_like(size) + 1
    for level in tl.static_range(1, LEVELS):
        top, below_top = (2 * level + 1) * top + square * below_top, top
        bottom, below_bottom = (2 * level + 1) * bottom + square * below_bottom, bottom
    decay = tl.exp(-2 * size)
    near = size < SMALL
    ratio = tl.where(near, top, 1 - decay) / tl.where(near, bottom, 1 + decay)
    return tl.where(u < 0, -ratio, ratio)


@triton.jit
def _keep(stats_ptr, row, here, per_lam, steepness, mean, COUNT: tl.constexpr):
    """What the backward pass needs of a row: the slope over λ, κ over the root, and the mean where it counts."""
    at = stats_ptr + row.to(tl.int64) * COUNT
    tl.store(at, per_lam, mask=here)
    tl.store(at + 1, steepness, mask=here)
    if COUNT == 3:
        tl.store(at + 2, mean, mask=here)


@triton.jit(do_not_specialize=range(2, 6))
def first_forward(given, made, rows, x_inner, x_outer, x_row, eps, FORM: tl.constexpr):
    column = tl.arange(0, FORM.WIDTH)
    inside = column < FORM.DIM
    gain = tl.load(given.gain + column, mask=inside, other=0.0).to(FORM.WIDE)
    lam = tl.load(given.lam).to(FORM.WIDE)
    for block in range(tl.program_id(0), tl.cdiv(rows, FORM.ROWS), tl.num_programs(0)):
        row = block * FORM.ROWS + tl.arange(0, FORM.ROWS)
        here = row < rows
        live = here[:, None] & inside[None, :]
        at = row_start(row, x_inner, x_outer, x_row, FORM.EVEN)
        x = tl.load(given.x + at[:, None] + column[None, :], mask=live, other=0.0).to(FORM.WIDE)
        moment = tl.sum(x * x, axis=1) / FORM.DIM
        mean = tl.zeros_like(moment)
        variance = moment
        if FORM.WITH_MEAN:
            mean = tl.sum(x, axis=1) / FORM.DIM
            centred = tl.where(live, x - mean[:, None], 0.0)
            variance = tl.sum(centred * centred, axis=1) / FORM.DIM
        root = tl.sqrt(variance + eps)
        per_lam = 1 / (root * FORM.KAPPA + tl.abs(mean))
        y = gain[None, :] * tanh(x * (per_lam * lam)[:, None], FORM.LEVELS)
        to = row.to(tl.int64)[:, None] * FORM.DIM + column[None, :]
        tl.store(made.y + to, y.to(made.y.dtype.element_ty), mask=live)
        tl.store(made.moment + row, moment, mask=here)
        if FORM.KEEP:
            _keep(made.stats, row, here, per_lam, FORM.KAPPA / root, mean, 2 + FORM.WITH_MEAN)


@triton.jit(do_not_specialize=range(2, 8))
def second_forward(given, made, rows, x_inner, x_outer, x_row, moment_row, c_row, eps, FORM: tl.constexpr):
    column = tl.arange(0, FORM.WIDTH)
    inside = column < FORM.DIM
    gain = tl.load(given.gain + column, mask=inside, other=0.0).to(FORM.WIDE)
    lam = tl.load(given.lam).to(FORM.WIDE)
    lam_first = tl.load(given.lam_first).to(FORM.WIDE)
    for block in range(tl.program_id(0), tl.cdiv(rows, FORM.ROWS), tl.num_programs(0)):
        row = block * FORM.ROWS + tl.arange(0, FORM.ROWS)
        here = row < rows
        live = here[:, None] & inside[None, :]
        moment = tl.load(given.moment + row.to(tl.int64) * moment_row, mask=here, other=0.0).to(FORM.WIDE)
        c = tl.load(given.c + row.to(tl.int64) * c_row, mask=here, other=0.0).to(FORM.WIDE)
        root = tl.sqrt(moment + c * (lam_first * lam_first / (FORM.KAPPA * FORM.KAPPA)) + eps)
        per_lam = 1 / (root * FORM.KAPPA)
        at = row_start(row, x_inner, x_outer, x_row, FORM.EVEN)
        x = tl.load(given.x + at[:, None] + column[None, :], mask=live, other=0.0).to(FORM.WIDE)
        y = gain[None, :] * tanh(x * (per_lam * lam)[:, None], FORM.LEVELS)
        to = row.to(tl.int64)[:, None] * FORM.DIM + column[None, :]
        tl.store(made.y + to, y.to(made.y.dtype.element_ty), mask=live)
        if FORM.KEEP:
            _keep(made.stats, row, here, per_lam, FORM.KAPPA / root, per_lam, 2)


@triton.jit(do_not_specialize=range(3, 11))
def site_backward(
    given, incoming, grads, rows, x_inner, x_outer, x_row, dy_inner, dy_outer, dy_row, dmoment_row, FORM: tl.constexpr
):
    """Both sites: the first adds what comes through the statistics to dx; the second writes it as dmoment instead."""
    column = tl.arange(0, FORM.WIDTH)
    inside = column < FORM.DIM
    gain = tl.load(given.gain + column, mask=inside, other=0.0).to(FORM.WIDE)
    lam = tl.load(given.lam).to(FORM.WIDE)
    dgain = tl.full((FORM.ROWS, FORM.WIDTH), 0, FORM.WIDE)
    dlam = tl.full((FORM.ROWS,), 0, FORM.WIDE)
    for block in range(tl.program_id(0), tl.cdiv(rows, FORM.ROWS), tl.num_programs(0)):
        row = block * FORM.ROWS + tl.arange(0, FORM.ROWS)
        here = row < rows
        live = here[:, None] & inside[None, :]
        at = row_start(row, x_inner, x_outer, x_row, FORM.EVEN)
        x = tl.load(given.x + at[:, None] + column[None, :], mask=live, other=0.0).to(FORM.WIDE)
        at = row_start(row, dy_inner, dy_outer, dy_row, FORM.EVEN)
        dy = tl.load(incoming.dy + at[:, None] + column[None, :], mask=live, other=0.0).to(FORM.WIDE)
        stats_at = incoming.stats + row.to(tl.int64) * (2 + FORM.WITH_MEAN)
        per_lam = tl.load(stats_at, mask=here, other=0.0)
        steepness = tl.load(stats_at + 1, mask=here, other=0.0)
        slope = per_lam * lam
        t = tanh(x * slope[:, None], FORM.LEVELS)
        dgain += dy * t
        du = dy * gain[None, :] * (1 - t * t)
        dslope = tl.sum(du * x, axis=1)
        dlam += dslope * per_lam
        dx = du * slope[:, None]
        pull = dslope * slope * per_lam
        dmoment_at = grads.dmoment + row.to(tl.int64) * dmoment_row if FORM.DMOMENT else row
        if FORM.FIRST:
            along = pull * steepness / -FORM.DIM
            if FORM.DMOMENT:
                along += tl.load(dmoment_at, mask=here, other=0.0).to(FORM.WIDE) * (2 / FORM.DIM)
            dx += along[:, None] * x
            if FORM.WITH_MEAN:
                mean = tl.load(stats_at + 2, mask=here, other=0.0)
                sign = tl.where(mean > 0, 1.0, tl.where(mean < 0, -1.0, 0.0))
                dx += (pull * (steepness * mean - sign) / FORM.DIM)[:, None]
        else:
            tl.store(dmoment_at, -0.5 * pull * steepness, mask=here)
        to = row.to(tl.int64)[:, None] * FORM.DIM + column[None, :]
        tl.store(grads.dx + to, dx.to(grads.dx.dtype.element_ty), mask=live)
    tl.store(grads.dgain + tl.program_id(0) * FORM.DIM + column, tl.sum(dgain, axis=0), mask=inside)
    tl.store(grads.dlam + tl.program_id(0), tl.sum(dlam, axis=0))
