"""The kernels of `triton_manifold`, which says what they move."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import triton
import triton.language as tl

from leadline.ops.stream_mixing.triton_sinkhorn import sinkhorn, sinkhorn_backward


class Form(NamedTuple):
    """What a kernel is compiled for: sizes, kind of mixing, tiles, arithmetic, and what is there.

    Attributes:
        NUMBERS, COUNT: numbers of a mixing, and of all projections.
        TOKENS, COLUMNS, COUNTS: of a program, of a step over the width, and projections at a time.
        AT_ONCE: tokens whose mixing is worked on at a time.
        SIDE, ORDERS, STEPS: streams, permutations and iterations, padded.
    """

    STREAMS: int
    DIM: int
    NUMBERS: int
    COUNT: int
    SINKHORN: bool
    TOKENS: int
    AT_ONCE: int
    SIDE: int
    ORDERS: int
    COUNTS: int
    COLUMNS: int
    STEPS: int
    WIDE: Any
    PRECISION: str
    EPS: float = 0.0
    HANDED: bool = False


Inputs = namedtuple("Inputs", "streams weight bias scale table stride_t stride_n weight_stride_k weight_stride_c")


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _made(projected, bias, scale, start, at, known, mask):
    """`bias + scale y` of the projections `at` (those `known`), of tokens whose projections begin at `start`."""
    y = tl.load(projected + start + at, mask=mask, other=0.0)
    return tl.load(bias + at, mask=known, other=0.0) + tl.load(scale + at, mask=known, other=0.0) * y


@triton.jit
def _matrices(given, projected, t, tokens, side, FORM: tl.constexpr):
    """Of tokens t: where a matrix's entries are, which of them there are, where the tokens start, and the logits."""
    cell = side[:, None] * FORM.STREAMS + side[None, :]
    filled = ((side < FORM.STREAMS)[:, None] & (side < FORM.STREAMS)[None, :])[None, :, :]
    valid = (t < tokens)[:, None, None] & filled
    at = t[:, None, None] * FORM.COUNT
    entry = 2 * FORM.STREAMS + cell[None, :, :]
    return cell, valid, at, _made(projected, given.bias, given.scale, at, entry, filled, valid)


@triton.jit
def _permuted(given, projected, t, tokens, FORM: tl.constexpr):
    """Of tokens t: the permutations, which of them there are, where the tokens start, and the weights."""
    order = tl.arange(0, FORM.ORDERS)
    known = (order < FORM.NUMBERS)[None, :]
    listed = (t < tokens)[:, None] & known
    at = t[:, None] * FORM.COUNT
    entry = 2 * FORM.STREAMS + order[None, :]
    return order, listed, at, _weights(_made(projected, given.bias, given.scale, at, entry, known, listed), listed)


@triton.jit
def _weights(made, inside):
    """The softmax over the permutations, zero where there is none."""
    u = tl.where(inside, made, -1e30)
    e = tl.where(inside, tl.exp(u - tl.max(u, axis=1)[:, None]), 0.0)
    total = tl.sum(e, axis=1)
    return e / tl.where(total == 0, 1.0, total)[:, None]


@triton.jit(do_not_specialize=["tokens", "iterations"])
def manifold_forward(given, made, tokens, iterations, FORM: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * FORM.TOKENS
    token = first + tl.arange(0, FORM.TOKENS)
    live = token < tokens
    column = tl.arange(0, FORM.COLUMNS)
    chunks = tl.cdiv(FORM.DIM, FORM.COLUMNS)
    for block in range(0, FORM.COUNT, FORM.COUNTS):
        k = block + tl.arange(0, FORM.COUNTS)
        known = k < FORM.COUNT
        y = tl.full([FORM.TOKENS, FORM.COUNTS], 0, FORM.WIDE)
        square = tl.full([FORM.TOKENS], 0, FORM.WIDE)
        for step in range(FORM.STREAMS * chunks):
            stream, c = step % FORM.STREAMS, step // FORM.STREAMS * FORM.COLUMNS + column
            inside = c < FORM.DIM
            of_token = stream * given.stride_n + token * given.stride_t
            both = live[:, None] & inside[None, :]
            x = tl.load(given.streams + of_token[:, None] + c[None, :], mask=both, other=0.0).to(FORM.WIDE)
            from_weight = (k * given.weight_stride_k)[None, :] + ((stream * FORM.DIM + c) * given.weight_stride_c)[
                :, None
            ]
            w = tl.load(given.weight + from_weight, mask=known[None, :] & inside[:, None], other=0.0)
            y = tl.dot(x, w, y, input_precision=FORM.PRECISION, out_dtype=FORM.WIDE)
            square += tl.sum(x * x, axis=1)
        root = tl.rsqrt(square / (FORM.STREAMS * FORM.DIM) + FORM.EPS)
        tl.store(made.roots + token, root, mask=live & (block == 0))
        tl.store(
            made.projected + token[:, None] * FORM.COUNT + k[None, :],
            y * root[:, None],
            mask=live[:, None] & known[None, :],
        )
    tl.debug_barrier()

    side = tl.arange(0, FORM.SIDE)
    used = (side < FORM.STREAMS)[None, :]
    both = live[:, None] & used
    start = token[:, None] * FORM.COUNT
    entry = token[:, None] * FORM.STREAMS + side[None, :]
    tl.store(
        made.pre + entry,
        _sigmoid(_made(made.projected, given.bias, given.scale, start, side[None, :], used, both)),
        mask=both,
    )
    value = _made(made.projected, given.bias, given.scale, start, FORM.STREAMS + side[None, :], used, both)
    tl.store(made.post + entry, 2 * _sigmoid(value), mask=both)
    for sub in range(0, FORM.TOKENS, FORM.AT_ONCE):
        t = first + sub + tl.arange(0, FORM.AT_ONCE)
        if FORM.SINKHORN:
            cell, valid, at, z = _matrices(given, made.projected, t, tokens, side, FORM)
            m = sinkhorn(z, valid, iterations, FORM.WIDE)
            tl.store(made.mixing + t[:, None, None] * FORM.STREAMS * FORM.STREAMS + cell[None, :, :], m, mask=valid)
        else:
            order, _, _, p = _permuted(given, made.projected, t, tokens, FORM)
            for at in range(FORM.STREAMS * FORM.STREAMS):
                ones = tl.load(given.table + at * FORM.NUMBERS + order, mask=order < FORM.NUMBERS, other=0.0)
                m = tl.sum(p * ones[None, :], axis=1)
                tl.store(made.mixing + t * FORM.STREAMS * FORM.STREAMS + at, m, mask=t < tokens)
    tl.debug_barrier()

    for step in range(chunks):
        c = (chunks - 1 - step) * FORM.COLUMNS + column
        inside = live[:, None] & (c < FORM.DIM)[None, :]
        total = tl.full([FORM.TOKENS, FORM.COLUMNS], 0, FORM.WIDE)
        for stream in range(FORM.STREAMS):
            reads = tl.load(made.pre + token * FORM.STREAMS + stream, mask=live, other=0.0)
            of_token = stream * given.stride_n + token * given.stride_t
            total += reads[:, None] * tl.load(
                given.streams + of_token[:, None] + c[None, :], mask=inside, other=0.0
            ).to(FORM.WIDE)
        tl.store(made.h + token[:, None] * FORM.DIM + c[None, :], total.to(made.h.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens", "iterations"])
def manifold_backward(incoming, given, grads, tokens, iterations, FORM: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * FORM.TOKENS
    token = first + tl.arange(0, FORM.TOKENS)
    live = token < tokens
    column = tl.arange(0, FORM.COLUMNS)
    chunks = tl.cdiv(FORM.DIM, FORM.COLUMNS)
    side = tl.arange(0, FORM.SIDE)
    along = tl.full([FORM.TOKENS, FORM.SIDE], 0, FORM.WIDE)
    for chunk in range(chunks):
        c = chunk * FORM.COLUMNS + column
        inside = live[:, None] & (c < FORM.DIM)[None, :]
        g = tl.load(incoming.dh + (token * incoming.dh_stride_t)[:, None] + c[None, :], mask=inside, other=0.0).to(
            FORM.WIDE
        )
        for stream in range(FORM.STREAMS):
            of_token = stream * given.stride_n + token * given.stride_t
            x = tl.load(given.streams + of_token[:, None] + c[None, :], mask=inside, other=0.0).to(FORM.WIDE)
            along += tl.where((side == stream)[None, :], tl.sum(x * g, axis=1)[:, None], 0.0)

    used = (side < FORM.STREAMS)[None, :]
    both = live[:, None] & used
    start = token[:, None] * FORM.COUNT
    entry = token[:, None] * FORM.STREAMS + side[None, :]
    p = _sigmoid(_made(incoming.projected, given.bias, given.scale, start, side[None, :], used, both))
    du = (along + tl.load(incoming.dpre + entry, mask=both, other=0.0)) * p * (1 - p)
    tl.store(grads.made + start + side[None, :], du, mask=both)
    p = _sigmoid(_made(incoming.projected, given.bias, given.scale, start, FORM.STREAMS + side[None, :], used, both))
    du = tl.load(incoming.dpost + entry, mask=both, other=0.0) * 2 * p * (1 - p)
    tl.store(grads.made + start + FORM.STREAMS + side[None, :], du, mask=both)
    for sub in range(0, FORM.TOKENS, FORM.AT_ONCE):
        t = first + sub + tl.arange(0, FORM.AT_ONCE)
        if FORM.SINKHORN:
            cell, valid, at, z = _matrices(given, incoming.projected, t, tokens, side, FORM)
            from_mixing = t[:, None, None] * FORM.STREAMS * FORM.STREAMS + cell[None, :, :]
            dm = tl.load(incoming.dmixing + from_mixing, mask=valid, other=0.0)
            dz = sinkhorn_backward(dm, z, valid, iterations, FORM.AT_ONCE, FORM.SIDE, FORM.STEPS, FORM.WIDE)
            tl.store(grads.made + at + 2 * FORM.STREAMS + cell[None, :, :], dz, mask=valid)
        else:
            order, listed, at, weights = _permuted(given, incoming.projected, t, tokens, FORM)
            dweights = tl.full([FORM.AT_ONCE, FORM.ORDERS], 0, FORM.WIDE)
            for one in range(FORM.STREAMS * FORM.STREAMS):
                ones = tl.load(given.table + one * FORM.NUMBERS + order, mask=order < FORM.NUMBERS, other=0.0)
                dm = tl.load(incoming.dmixing + t * FORM.STREAMS * FORM.STREAMS + one, mask=t < tokens, other=0.0)
                dweights += dm[:, None] * ones[None, :]
            dz = weights * (dweights - tl.sum(weights * dweights, axis=1)[:, None])
            tl.store(grads.made + at + 2 * FORM.STREAMS + order[None, :], dz, mask=listed)
    tl.debug_barrier()

    root = tl.load(incoming.roots + token, mask=live, other=0.0)
    pull = tl.full([FORM.TOKENS], 0, FORM.WIDE)
    dy = tl.full([FORM.TOKENS, FORM.COUNTS], 0, FORM.WIDE)
    for block in range(0, FORM.COUNT, FORM.COUNTS):
        k = block + tl.arange(0, FORM.COUNTS)
        known = live[:, None] & (k < FORM.COUNT)[None, :]
        dy = tl.load(grads.made + start + k[None, :], mask=known, other=0.0)
        dy *= tl.load(given.scale + k, mask=k < FORM.COUNT, other=0.0)[None, :]
        pull += tl.sum(dy * tl.load(incoming.projected + start + k[None, :], mask=known, other=0.0), axis=1)
        dy *= root[:, None]
        tl.store(grads.slopes + start + k[None, :], dy, mask=known)
    back = pull * root * root / (FORM.STREAMS * FORM.DIM)
    if FORM.COUNT > FORM.COUNTS:
        tl.debug_barrier()

    for step in range(FORM.STREAMS * chunks):
        stream, c = step % FORM.STREAMS, (chunks - 1 - step // FORM.STREAMS) * FORM.COLUMNS + column
        inside = live[:, None] & (c < FORM.DIM)[None, :]
        total = tl.full([FORM.TOKENS, FORM.COLUMNS], 0, FORM.WIDE)
        for block in range(0, FORM.COUNT, FORM.COUNTS):
            k = block + tl.arange(0, FORM.COUNTS)
            if FORM.COUNT > FORM.COUNTS:
                known = live[:, None] & (k < FORM.COUNT)[None, :]
                dy = tl.load(grads.slopes + start + k[None, :], mask=known, other=0.0)
            from_weight = (k * given.weight_stride_k)[:, None] + ((stream * FORM.DIM + c) * given.weight_stride_c)[
                None, :
            ]
            w = tl.load(given.weight + from_weight, mask=(k < FORM.COUNT)[:, None] & (c < FORM.DIM)[None, :], other=0.0)
            total = tl.dot(dy, w, total, input_precision=FORM.PRECISION, out_dtype=FORM.WIDE)
        y = tl.load(incoming.projected + token * FORM.COUNT + stream, mask=live, other=0.0)
        reads = _sigmoid(tl.load(given.bias + stream) + tl.load(given.scale + stream) * y)
        of_token = stream * given.stride_n + token * given.stride_t
        x = tl.load(given.streams + of_token[:, None] + c[None, :], mask=inside, other=0.0).to(FORM.WIDE)
        g = tl.load(incoming.dh + (token * incoming.dh_stride_t)[:, None] + c[None, :], mask=inside, other=0.0).to(
            FORM.WIDE
        )
        total += reads[:, None] * g - back[:, None] * x
        if FORM.HANDED:
            of_token = stream * incoming.handed_stride_n + token * incoming.handed_stride_t
            total += tl.load(incoming.handed + of_token[:, None] + c[None, :], mask=inside, other=0.0).to(FORM.WIDE)
        to = (token * FORM.STREAMS + stream) * FORM.DIM
        tl.store(grads.streams + to[:, None] + c[None, :], total.to(grads.streams.dtype.element_ty), mask=inside)
