"""The kernels of `triton_manifold`, which says what they move."""

from __future__ import annotations

import triton
import triton.language as tl

from leadline.ops.stream_mixing.triton_sinkhorn import sinkhorn, sinkhorn_backward


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _made(projected, bias, scale, start, at, known, mask):
    """`bias + scale y` of the projections `at` (those `known`), of tokens whose projections begin at `start`."""
    y = tl.load(projected + start + at, mask=mask, other=0.0)
    return tl.load(bias + at, mask=known, other=0.0) + tl.load(scale + at, mask=known, other=0.0) * y


@triton.jit
def _weights(made, inside):
    """The softmax over the permutations, zero where there is none."""
    u = tl.where(inside, made, -1e30)
    e = tl.where(inside, tl.exp(u - tl.max(u, axis=1)[:, None]), 0.0)
    total = tl.sum(e, axis=1)
    return e / tl.where(total == 0, 1.0, total)[:, None]


@triton.jit(do_not_specialize=["tokens", "iterations"])
def manifold_forward(
    streams,
    weight,
    bias,
    scale,
    table,
    pre,
    h,
    mixing,
    post,
    projected,
    roots,
    tokens,
    iterations,
    stride_t,
    stride_n,
    weight_stride_k,
    weight_stride_c,
    EPS: tl.constexpr,
    STREAMS: tl.constexpr,
    DIM: tl.constexpr,
    NUMBERS: tl.constexpr,
    SINKHORN: tl.constexpr,
    TOKENS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    SIDE: tl.constexpr,
    ORDERS: tl.constexpr,
    COUNTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    COUNT: tl.constexpr = 2 * STREAMS + NUMBERS
    first = tl.program_id(0).to(tl.int64) * TOKENS
    token = first + tl.arange(0, TOKENS)
    live = token < tokens
    column = tl.arange(0, COLUMNS)
    chunks = tl.cdiv(DIM, COLUMNS)
    for block in range(0, COUNT, COUNTS):
        k = block + tl.arange(0, COUNTS)
        known = k < COUNT
        y = tl.zeros([TOKENS, COUNTS], WIDE)
        square = tl.zeros([TOKENS], WIDE)
        for step in range(STREAMS * chunks):
            stream, c = step % STREAMS, step // STREAMS * COLUMNS + column
            inside = c < DIM
            of_token = stream * stride_n + token * stride_t
            both = live[:, None] & inside[None, :]
            x = tl.load(streams + of_token[:, None] + c[None, :], mask=both, other=0.0).to(WIDE)
            from_weight = (k * weight_stride_k)[None, :] + ((stream * DIM + c) * weight_stride_c)[:, None]
            w = tl.load(weight + from_weight, mask=known[None, :] & inside[:, None], other=0.0)
            y = tl.dot(x, w, y, input_precision=PRECISION, out_dtype=WIDE)
            square += tl.sum(x * x, axis=1)
        root = tl.rsqrt(square / (STREAMS * DIM) + EPS)
        tl.store(roots + token, root, mask=live & (block == 0))
        tl.store(
            projected + token[:, None] * COUNT + k[None, :], y * root[:, None], mask=live[:, None] & known[None, :]
        )
    tl.debug_barrier()

    side = tl.arange(0, SIDE)
    used = (side < STREAMS)[None, :]
    both = live[:, None] & used
    start = token[:, None] * COUNT
    entry = token[:, None] * STREAMS + side[None, :]
    tl.store(pre + entry, _sigmoid(_made(projected, bias, scale, start, side[None, :], used, both)), mask=both)
    made = _made(projected, bias, scale, start, STREAMS + side[None, :], used, both)
    tl.store(post + entry, 2 * _sigmoid(made), mask=both)
    for sub in range(0, TOKENS, AT_ONCE):
        t = first + sub + tl.arange(0, AT_ONCE)
        if SINKHORN:
            cell = side[:, None] * STREAMS + side[None, :]
            filled = ((side < STREAMS)[:, None] & (side < STREAMS)[None, :])[None, :, :]
            valid = (t < tokens)[:, None, None] & filled
            at = t[:, None, None] * COUNT
            z = _made(projected, bias, scale, at, 2 * STREAMS + cell[None, :, :], filled, valid)
            m = sinkhorn(z, valid, iterations, WIDE)
            tl.store(mixing + t[:, None, None] * STREAMS * STREAMS + cell[None, :, :], m, mask=valid)
        else:
            order = tl.arange(0, ORDERS)
            known = (order < NUMBERS)[None, :]
            listed = (t < tokens)[:, None] & known
            z = _made(projected, bias, scale, t[:, None] * COUNT, 2 * STREAMS + order[None, :], known, listed)
            p = _weights(z, listed)
            for at in range(STREAMS * STREAMS):
                ones = tl.load(table + at * NUMBERS + order, mask=order < NUMBERS, other=0.0)
                m = tl.sum(p * ones[None, :], axis=1)
                tl.store(mixing + t * STREAMS * STREAMS + at, m, mask=t < tokens)
    tl.debug_barrier()

    for step in range(chunks):
        c = (chunks - 1 - step) * COLUMNS + column
        inside = live[:, None] & (c < DIM)[None, :]
        total = tl.zeros([TOKENS, COLUMNS], WIDE)
        for stream in range(STREAMS):
            reads = tl.load(pre + token * STREAMS + stream, mask=live, other=0.0)
            of_token = stream * stride_n + token * stride_t
            total += reads[:, None] * tl.load(streams + of_token[:, None] + c[None, :], mask=inside, other=0.0).to(WIDE)
        tl.store(h + token[:, None] * DIM + c[None, :], total.to(h.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens", "iterations"])
def manifold_backward(
    dpre,
    dh,
    dmixing,
    dpost,
    handed,
    streams,
    weight,
    bias,
    scale,
    table,
    projected,
    roots,
    grad,
    dmade,
    given,
    tokens,
    iterations,
    dh_stride,
    handed_stride_t,
    handed_stride_n,
    stride_t,
    stride_n,
    weight_stride_k,
    weight_stride_c,
    STREAMS: tl.constexpr,
    DIM: tl.constexpr,
    NUMBERS: tl.constexpr,
    SINKHORN: tl.constexpr,
    TOKENS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    SIDE: tl.constexpr,
    ORDERS: tl.constexpr,
    COUNTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEPS: tl.constexpr,
    HANDED: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    COUNT: tl.constexpr = 2 * STREAMS + NUMBERS
    first = tl.program_id(0).to(tl.int64) * TOKENS
    token = first + tl.arange(0, TOKENS)
    live = token < tokens
    column = tl.arange(0, COLUMNS)
    chunks = tl.cdiv(DIM, COLUMNS)
    side = tl.arange(0, SIDE)
    along = tl.zeros([TOKENS, SIDE], WIDE)
    for chunk in range(chunks):
        c = chunk * COLUMNS + column
        inside = live[:, None] & (c < DIM)[None, :]
        g = tl.load(dh + (token * dh_stride)[:, None] + c[None, :], mask=inside, other=0.0).to(WIDE)
        for stream in range(STREAMS):
            of_token = stream * stride_n + token * stride_t
            x = tl.load(streams + of_token[:, None] + c[None, :], mask=inside, other=0.0).to(WIDE)
            along += tl.where((side == stream)[None, :], tl.sum(x * g, axis=1)[:, None], 0.0)

    used = (side < STREAMS)[None, :]
    both = live[:, None] & used
    start = token[:, None] * COUNT
    entry = token[:, None] * STREAMS + side[None, :]
    p = _sigmoid(_made(projected, bias, scale, start, side[None, :], used, both))
    du = (along + tl.load(dpre + entry, mask=both, other=0.0)) * p * (1 - p)
    tl.store(dmade + start + side[None, :], du, mask=both)
    p = _sigmoid(_made(projected, bias, scale, start, STREAMS + side[None, :], used, both))
    du = tl.load(dpost + entry, mask=both, other=0.0) * 2 * p * (1 - p)
    tl.store(dmade + start + STREAMS + side[None, :], du, mask=both)
    for sub in range(0, TOKENS, AT_ONCE):
        t = first + sub + tl.arange(0, AT_ONCE)
        if SINKHORN:
            cell = side[:, None] * STREAMS + side[None, :]
            filled = ((side < STREAMS)[:, None] & (side < STREAMS)[None, :])[None, :, :]
            valid = (t < tokens)[:, None, None] & filled
            at = t[:, None, None] * COUNT
            z = _made(projected, bias, scale, at, 2 * STREAMS + cell[None, :, :], filled, valid)
            from_mixing = t[:, None, None] * STREAMS * STREAMS + cell[None, :, :]
            dm = tl.load(dmixing + from_mixing, mask=valid, other=0.0)
            dz = sinkhorn_backward(dm, z, valid, iterations, AT_ONCE, SIDE, STEPS, WIDE)
            tl.store(dmade + at + 2 * STREAMS + cell[None, :, :], dz, mask=valid)
        else:
            order = tl.arange(0, ORDERS)
            known = (order < NUMBERS)[None, :]
            listed = (t < tokens)[:, None] & known
            at = t[:, None] * COUNT
            z = _made(projected, bias, scale, at, 2 * STREAMS + order[None, :], known, listed)
            weights = _weights(z, listed)
            dweights = tl.zeros([AT_ONCE, ORDERS], WIDE)
            for one in range(STREAMS * STREAMS):
                ones = tl.load(table + one * NUMBERS + order, mask=order < NUMBERS, other=0.0)
                dm = tl.load(dmixing + t * STREAMS * STREAMS + one, mask=t < tokens, other=0.0)
                dweights += dm[:, None] * ones[None, :]
            dz = weights * (dweights - tl.sum(weights * dweights, axis=1)[:, None])
            tl.store(dmade + at + 2 * STREAMS + order[None, :], dz, mask=listed)
    tl.debug_barrier()

    root = tl.load(roots + token, mask=live, other=0.0)
    pull = tl.zeros([TOKENS], WIDE)
    dy = tl.zeros([TOKENS, COUNTS], WIDE)
    for block in range(0, COUNT, COUNTS):
        k = block + tl.arange(0, COUNTS)
        known = live[:, None] & (k < COUNT)[None, :]
        dy = tl.load(dmade + start + k[None, :], mask=known, other=0.0)
        dy *= tl.load(scale + k, mask=k < COUNT, other=0.0)[None, :]
        pull += tl.sum(dy * tl.load(projected + start + k[None, :], mask=known, other=0.0), axis=1)
        dy *= root[:, None]
        tl.store(given + start + k[None, :], dy, mask=known)
    back = pull * root * root / (STREAMS * DIM)
    if COUNT > COUNTS:
        tl.debug_barrier()

    for step in range(STREAMS * chunks):
        stream, c = step % STREAMS, (chunks - 1 - step // STREAMS) * COLUMNS + column
        inside = live[:, None] & (c < DIM)[None, :]
        total = tl.zeros([TOKENS, COLUMNS], WIDE)
        for block in range(0, COUNT, COUNTS):
            k = block + tl.arange(0, COUNTS)
            if COUNT > COUNTS:
                known = live[:, None] & (k < COUNT)[None, :]
                dy = tl.load(given + start + k[None, :], mask=known, other=0.0)
            from_weight = (k * weight_stride_k)[:, None] + ((stream * DIM + c) * weight_stride_c)[None, :]
            w = tl.load(weight + from_weight, mask=(k < COUNT)[:, None] & (c < DIM)[None, :], other=0.0)
            total = tl.dot(dy, w, total, input_precision=PRECISION, out_dtype=WIDE)
        y = tl.load(projected + token * COUNT + stream, mask=live, other=0.0)
        reads = _sigmoid(tl.load(bias + stream) + tl.load(scale + stream) * y)
        of_token = stream * stride_n + token * stride_t
        x = tl.load(streams + of_token[:, None] + c[None, :], mask=inside, other=0.0).to(WIDE)
        g = tl.load(dh + (token * dh_stride)[:, None] + c[None, :], mask=inside, other=0.0).to(WIDE)
        total += reads[:, None] * g - back[:, None] * x
        if HANDED:
            of_token = stream * handed_stride_n + token * handed_stride_t
            total += tl.load(handed + of_token[:, None] + c[None, :], mask=inside, other=0.0).to(WIDE)
        to = (token * STREAMS + stream) * DIM
        tl.store(grad + to[:, None] + c[None, :], total.to(grad.dtype.element_ty), mask=inside)
