"""The kernels of bounded tanh: a program walks over tiles of whole rows, so that a reduction never leaves registers."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

SMALL = tl.constexpr(0.625)
"""Below it tanh is a continued fraction; above, `1 - exp` loses no digits."""

NUMBERS = [
    "rows",
    "x_inner",
    "x_outer",
    "x_row",
    "dy_inner",
    "dy_outer",
    "dy_row",
    "moment_row",
    "c_row",
    "dmoment_row",
]
"""No kernel is compiled anew for other numbers of tokens; EVEN says where rows start at multiples of 16."""


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
def _start(row, inner, outer_stride, inner_stride, EVEN: tl.constexpr):
    """Where rows start: `leadline.ops.rows.Rows`."""
    start = (row // inner).to(tl.int64) * outer_stride + (row % inner).to(tl.int64) * inner_stride
    if EVEN:
        start = tl.multiple_of(start, 16)
    return start


@triton.jit
def _keep(stats_ptr, row, here, per_lam, steepness, mean, COUNT: tl.constexpr):
    """What the backward pass needs of a row: the slope over λ, κ over the root, and the mean where it counts."""
    at = stats_ptr + row.to(tl.int64) * COUNT
    tl.store(at, per_lam, mask=here)
    tl.store(at + 1, steepness, mask=here)
    if COUNT == 3:
        tl.store(at + 2, mean, mask=here)


@triton.jit(do_not_specialize=NUMBERS)
def first_forward(
    x_ptr,
    gain_ptr,
    lam_ptr,
    y_ptr,
    moment_ptr,
    stats_ptr,
    rows,
    x_inner,
    x_outer,
    x_row,
    eps,
    KAPPA: tl.constexpr,
    DIM: tl.constexpr,
    WITH_MEAN: tl.constexpr,
    KEEP: tl.constexpr,
    EVEN: tl.constexpr,
    WIDE: tl.constexpr,
    LEVELS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    column = tl.arange(0, WIDTH)
    inside = column < DIM
    gain = tl.load(gain_ptr + column, mask=inside, other=0.0).to(WIDE)
    lam = tl.load(lam_ptr).to(WIDE)
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)
        here = row < rows
        live = here[:, None] & inside[None, :]
        at = _start(row, x_inner, x_outer, x_row, EVEN)
        x = tl.load(x_ptr + at[:, None] + column[None, :], mask=live, other=0.0).to(WIDE)
        moment = tl.sum(x * x, axis=1) / DIM
        mean = tl.zeros_like(moment)
        variance = moment
        if WITH_MEAN:
            mean = tl.sum(x, axis=1) / DIM
            centred = tl.where(live, x - mean[:, None], 0.0)
            variance = tl.sum(centred * centred, axis=1) / DIM
        root = tl.sqrt(variance + eps)
        per_lam = 1 / (root * KAPPA + tl.abs(mean))
        y = gain[None, :] * tanh(x * (per_lam * lam)[:, None], LEVELS)
        to = row.to(tl.int64)[:, None] * DIM + column[None, :]
        tl.store(y_ptr + to, y.to(y_ptr.dtype.element_ty), mask=live)
        tl.store(moment_ptr + row, moment, mask=here)
        if KEEP:
            _keep(stats_ptr, row, here, per_lam, KAPPA / root, mean, 2 + WITH_MEAN)


@triton.jit(do_not_specialize=NUMBERS)
def second_forward(
    x_ptr,
    gain_ptr,
    lam_ptr,
    lam_first_ptr,
    moment_ptr,
    c_ptr,
    y_ptr,
    stats_ptr,
    rows,
    x_inner,
    x_outer,
    x_row,
    moment_row,
    c_row,
    eps,
    KAPPA: tl.constexpr,
    DIM: tl.constexpr,
    KEEP: tl.constexpr,
    EVEN: tl.constexpr,
    WIDE: tl.constexpr,
    LEVELS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    column = tl.arange(0, WIDTH)
    inside = column < DIM
    gain = tl.load(gain_ptr + column, mask=inside, other=0.0).to(WIDE)
    lam = tl.load(lam_ptr).to(WIDE)
    lam_first = tl.load(lam_first_ptr).to(WIDE)
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)
        here = row < rows
        live = here[:, None] & inside[None, :]
        moment = tl.load(moment_ptr + row.to(tl.int64) * moment_row, mask=here, other=0.0).to(WIDE)
        c = tl.load(c_ptr + row.to(tl.int64) * c_row, mask=here, other=0.0).to(WIDE)
        root = tl.sqrt(moment + c * (lam_first * lam_first / (KAPPA * KAPPA)) + eps)
        per_lam = 1 / (root * KAPPA)
        at = _start(row, x_inner, x_outer, x_row, EVEN)
        x = tl.load(x_ptr + at[:, None] + column[None, :], mask=live, other=0.0).to(WIDE)
        y = gain[None, :] * tanh(x * (per_lam * lam)[:, None], LEVELS)
        to = row.to(tl.int64)[:, None] * DIM + column[None, :]
        tl.store(y_ptr + to, y.to(y_ptr.dtype.element_ty), mask=live)
        if KEEP:
            _keep(stats_ptr, row, here, per_lam, KAPPA / root, per_lam, 2)


@triton.jit(do_not_specialize=NUMBERS)
def site_backward(
    x_ptr,
    gain_ptr,
    lam_ptr,
    stats_ptr,
    dy_ptr,
    dmoment_ptr,
    dx_ptr,
    dgain_ptr,
    dlam_ptr,
    rows,
    x_inner,
    x_outer,
    x_row,
    dy_inner,
    dy_outer,
    dy_row,
    dmoment_row,
    DIM: tl.constexpr,
    FIRST: tl.constexpr,
    WITH_MEAN: tl.constexpr,
    DMOMENT: tl.constexpr,
    EVEN: tl.constexpr,
    WIDE: tl.constexpr,
    LEVELS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Both sites: FIRST adds what comes through the statistics to dx; the second site writes it as dmoment instead."""
    column = tl.arange(0, WIDTH)
    inside = column < DIM
    gain = tl.load(gain_ptr + column, mask=inside, other=0.0).to(WIDE)
    lam = tl.load(lam_ptr).to(WIDE)
    dgain = tl.zeros((ROWS, WIDTH), WIDE)
    dlam = tl.zeros((ROWS,), WIDE)
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)
        here = row < rows
        live = here[:, None] & inside[None, :]
        at = _start(row, x_inner, x_outer, x_row, EVEN)
        x = tl.load(x_ptr + at[:, None] + column[None, :], mask=live, other=0.0).to(WIDE)
        at = _start(row, dy_inner, dy_outer, dy_row, EVEN)
        dy = tl.load(dy_ptr + at[:, None] + column[None, :], mask=live, other=0.0).to(WIDE)
        stats_at = stats_ptr + row.to(tl.int64) * (2 + WITH_MEAN)
        per_lam = tl.load(stats_at, mask=here, other=0.0)
        steepness = tl.load(stats_at + 1, mask=here, other=0.0)
        slope = per_lam * lam
        t = tanh(x * slope[:, None], LEVELS)
        dgain += dy * t
        du = dy * gain[None, :] * (1 - t * t)
        dslope = tl.sum(du * x, axis=1)
        dlam += dslope * per_lam
        dx = du * slope[:, None]
        pull = dslope * slope * per_lam
        dmoment_at = dmoment_ptr + row.to(tl.int64) * dmoment_row if DMOMENT else row
        if FIRST:
            along = pull * steepness / -DIM
            if DMOMENT:
                along += tl.load(dmoment_at, mask=here, other=0.0).to(WIDE) * (2 / DIM)
            dx += along[:, None] * x
            if WITH_MEAN:
                mean = tl.load(stats_at + 2, mask=here, other=0.0)
                sign = tl.where(mean > 0, 1.0, tl.where(mean < 0, -1.0, 0.0))
                dx += (pull * (steepness * mean - sign) / DIM)[:, None]
        else:
            tl.store(dmoment_at, -0.5 * pull * steepness, mask=here)
        to = row.to(tl.int64)[:, None] * DIM + column[None, :]
        tl.store(dx_ptr + to, dx.to(dx_ptr.dtype.element_ty), mask=live)
    tl.store(dgain_ptr + tl.program_id(0) * DIM + column, tl.sum(dgain, axis=0), mask=inside)
    tl.store(dlam_ptr + tl.program_id(0), tl.sum(dlam, axis=0))
