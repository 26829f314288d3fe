"""The kernels of the multi-gate step. A program walks over tiles of whole tokens and, in each, over the streams.

Streams are counted at run time, with one stream's row in registers; but where the backward pass holds them all, their
loop is unrolled. The forward pass asks for the next stream's row before it writes the current one, so that memory is
never idle behind a store.

Pointers come in NamedTuples, and what a kernel is compiled for in a `Form`. Strides are arguments of their own: in a
tuple Triton would recompile a kernel for strides of 1 and for multiples of 16.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="assignment, var-annotated"

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import triton
import triton.language as tl

from leadline.ops.kernels import row_start


class Form(NamedTuple):
    """What a kernel is compiled for.

    Attributes:
        COUNT, DIM, WIDE: streams, width, and the dtype of the arithmetic.
        FLUSH, POOL, GATE, INDEPENDENT: which parts a step has.
        TOKENS, WIDTH, STREAMS, PARTS: a tile's tokens and columns, the streams padded, tiles in a row.
        KINDS, SCALE: per-token scalars of a stream that are kept; of the scores.
        EVEN: whether all rows start at multiples of 16.
        KEEP: whether a backward pass follows. The others are the backward pass's: which gradients come in, pass through
            the pool and through the gates, and whether a token's streams are held.
    """

    COUNT: int
    DIM: int
    WIDE: Any
    FLUSH: bool
    POOL: bool
    GATE: bool
    INDEPENDENT: bool
    TOKENS: int
    WIDTH: int
    STREAMS: int
    PARTS: int
    KINDS: int
    SCALE: float
    EVEN: bool
    KEEP: bool = True
    DNEW: bool = False
    DREAD: bool = False
    POOLED: bool = False
    GATED: bool = False
    HELD: bool = False


Inputs = namedtuple("Inputs", "s f beta pool gate bias")
"""Pointers to streams, the pending output and its β, and the parameters; None where there is none."""
Results = namedtuple("Results", "new read gates stats")
"""What the forward pass writes: streams, read, gates, and the per-token scalars for the backward pass."""
Incoming = namedtuple("Incoming", "dnew dread dgates gates stats")
"""What the backward pass reads beside the inputs: the gradients of streams, read and gates; gates and scalars."""
Grads = namedtuple("Grads", "ds df dbeta dqueries dbias")
"""What the backward pass writes: gradients of streams, output and β; a row of the parameters' for each program."""


@triton.jit
def _part(stream, stride, EVEN: tl.constexpr):
    """Where a stream starts."""
    start = stream * tl.cast(stride, tl.int64)
    if EVEN:
        start = tl.multiple_of(start, 16)
    return start


@triton.jit
def _flushed(s, f, beta, NARROW: tl.constexpr, WIDE: tl.constexpr):
    """A stream after the pending write, rounded once to the streams' dtype."""
    return (s + beta[:, None] * (f - s)).to(NARROW).to(WIDE)


@triton.jit
def _of(tile, stream, i):
    """Column i of a tile (tokens, streams)."""
    return tl.sum(tl.where(stream[None, :] == i, tile, 0.0), axis=1)


@triton.jit
def _with(tile, stream, i, column):
    """The tile with column i replaced."""
    return tl.where(stream[None, :] == i, column[:, None], tile)


@triton.jit(do_not_specialize=range(2, 12))
def step_forward(
    given,
    made,
    tokens,
    s_stream,
    s_inner,
    s_outer,
    s_row,
    f_inner,
    f_outer,
    f_row,
    b_stream,
    b_row,
    eps,
    FORM: tl.constexpr,
):
    column = tl.arange(0, FORM.WIDTH)
    inside = column < FORM.DIM
    stream = tl.arange(0, FORM.STREAMS)
    narrow: tl.constexpr = given.s.dtype.element_ty
    if FORM.POOL:
        pool = tl.load(given.pool + column, mask=inside, other=0.0).to(FORM.WIDE)
    if FORM.GATE:
        gate = tl.load(given.gate + column, mask=inside, other=0.0).to(FORM.WIDE)
        bias = tl.load(given.bias).to(FORM.WIDE)
    for block in range(tl.program_id(0), tl.cdiv(tokens, FORM.TOKENS), tl.num_programs(0)):
        row = block * FORM.TOKENS + tl.arange(0, FORM.TOKENS)
        here = row < tokens
        live = here[:, None] & inside[None, :]
        to = row.to(tl.int64)[:, None] * FORM.DIM + column[None, :]
        each = here[:, None] & (stream < FORM.COUNT)[None, :]
        s_at = given.s + row_start(row, s_inner, s_outer, s_row, FORM.EVEN)[:, None] + column[None, :]
        stats_at = made.stats + row.to(tl.int64) * (FORM.KINDS * FORM.COUNT)
        if FORM.FLUSH:
            f_at = given.f + row_start(row, f_inner, f_outer, f_row, FORM.EVEN)[:, None] + column[None, :]
            f = tl.load(f_at, mask=live, other=0.0).to(FORM.WIDE)
        gates = tl.full((FORM.TOKENS, FORM.STREAMS), float("-inf"), FORM.WIDE)
        read = tl.full((FORM.TOKENS, FORM.WIDTH), 0, FORM.WIDE)
        most = tl.full((FORM.TOKENS,), float("-inf"), FORM.WIDE)
        total = tl.full((FORM.TOKENS,), 0, FORM.WIDE)
        following = tl.load(s_at, mask=live, other=0.0)
        for i in range(FORM.COUNT):
            x = following.to(FORM.WIDE)
            following = tl.load(s_at + _part(i + 1, s_stream, FORM.EVEN), mask=live & (i + 1 < FORM.COUNT), other=0.0)
            if FORM.FLUSH:
                beta = tl.load(given.beta + i * b_stream + row.to(tl.int64) * b_row, mask=here, other=0.0).to(FORM.WIDE)
                x = _flushed(x, f, beta, narrow, FORM.WIDE)
                new_at = made.new + _part(i, tokens, False) * FORM.DIM + to
                tl.store(new_at, x.to(narrow), mask=live)
            root = tl.rsqrt(tl.sum(x * x, axis=1) / FORM.DIM + eps)
            if FORM.KEEP:
                tl.store(stats_at + i, root, mask=here)
            if FORM.POOL:
                score = tl.sum(x * pool[None, :], axis=1) * (root * FORM.SCALE)
                if FORM.KEEP:
                    tl.store(stats_at + FORM.COUNT + i, score, mask=here)
                before = most
                most = tl.maximum(before, score)
                shrink = tl.exp(before - most)
                share = tl.exp(score - most)
                total = total * shrink + share
                read = read * shrink[:, None] + x * share[:, None]
            elif i == 0:
                read = x
            if FORM.GATE:
                gates = _with(gates, stream, i, tl.sum(x * gate[None, :], axis=1) * (root * FORM.SCALE))
        if FORM.POOL:
            read = read / total[:, None]
        tl.store(made.read + to, read.to(narrow), mask=live)
        if FORM.GATE:
            if FORM.KEEP:
                tl.store(stats_at[:, None] + (FORM.KINDS - 1) * FORM.COUNT + stream[None, :], gates, mask=each)
            if FORM.INDEPENDENT:
                beta = 1 / (1 + tl.exp(-(gates + bias)))
            else:
                most = tl.maximum(tl.max(gates, axis=1), bias)
                share = tl.exp(gates - most[:, None])
                beta = share / (tl.sum(share, axis=1) + tl.exp(bias - most))[:, None]
            tl.store(made.gates + row.to(tl.int64)[:, None] * FORM.COUNT + stream[None, :], beta, mask=each)


@triton.jit
def _query(at, column, WANTED: tl.constexpr, FORM: tl.constexpr):
    """Part of a query, or anything where it is not wanted."""
    return tl.load(at + column, mask=column < FORM.DIM, other=0.0).to(FORM.WIDE) if WANTED else column


@triton.jit
def _row(at, live, WANTED: tl.constexpr, FORM: tl.constexpr):
    """Part of a row, or anything where it is not wanted."""
    return tl.load(at, mask=live, other=0.0).to(FORM.WIDE) if WANTED else live


@triton.jit
def _dot(s, f, dread, b_at, here, NARROW: tl.constexpr, FORM: tl.constexpr):
    """dh·S'_i of one stream."""
    x = s.to(FORM.WIDE)
    if FORM.FLUSH:
        x = _flushed(x, f, tl.load(b_at, mask=here, other=0.0).to(FORM.WIDE), NARROW, FORM.WIDE)
    return tl.sum(x * dread, axis=1)


@triton.jit
def _factors(i, dot, of_token, at, here, FORM: tl.constexpr):
    """Of stream i: β, and what dh, w_α, w_β and S'_i are multiplied by in its gradient."""
    log_total, common, pull = of_token
    stats_at, gates_at, dgates_at, b_at = at
    beta = dot
    if FORM.FLUSH:
        beta = tl.load(b_at, mask=here, other=0.0).to(FORM.WIDE)
    weight = tl.where(i == 0, tl.zeros_like(dot) + 1, 0.0)
    back = tl.zeros_like(dot)
    along_pool = back
    along_gate = back
    root = back
    if FORM.POOLED or FORM.GATED:
        root = tl.load(stats_at + i, mask=here, other=0.0)
    if FORM.POOLED:
        score = tl.load(stats_at + FORM.COUNT + i, mask=here, other=0.0)
        weight = tl.exp(score - log_total)
        along_pool = weight * (dot - common)
        back += along_pool * score
    if FORM.GATED:
        score = tl.load(stats_at + (FORM.KINDS - 1) * FORM.COUNT + i, mask=here, other=0.0)
        made = tl.load(gates_at + i, mask=here, other=0.0)
        dmade = tl.load(dgates_at, mask=here, other=0.0).to(FORM.WIDE)
        along_gate = made * (dmade * (1 - made) if FORM.INDEPENDENT else dmade - pull)
        back += along_gate * score
    scaled = root * FORM.SCALE
    return beta, weight, along_pool * scaled, along_gate * scaled, back * root * root / FORM.DIM


@triton.jit
def _row_gradient(s, rows, dnew_at, factors, sums, ds_at, live, NARROW: tl.constexpr, FORM: tl.constexpr):
    """Writes dS_i of one stream and adds its part to dF and to the queries' gradients; dβ_i comes back too."""
    f, dread, pool, gate = rows
    beta, weight, along_pool, along_gate, back = factors
    df, dpool, dgate = sums
    s = s.to(FORM.WIDE)
    x = s
    dbeta = beta
    if FORM.FLUSH:
        x = _flushed(s, f, beta, NARROW, FORM.WIDE)
    g = tl.zeros_like(x)
    if FORM.DNEW:
        g += tl.load(dnew_at, mask=live, other=0.0).to(FORM.WIDE)
    if FORM.DREAD:
        g += weight[:, None] * dread
    if FORM.POOLED:
        g += along_pool[:, None] * pool[None, :]
        dpool += along_pool[:, None] * x
    if FORM.GATED:
        g += along_gate[:, None] * gate[None, :]
        dgate += along_gate[:, None] * x
    if FORM.POOLED or FORM.GATED:
        g -= back[:, None] * x
    if FORM.FLUSH:
        df += beta[:, None] * g
        dbeta = tl.sum(g * (f - s), axis=1)
        g -= beta[:, None] * g
    tl.store(ds_at, g.to(NARROW), mask=live)
    return (df, dpool, dgate), dbeta


@triton.jit(do_not_specialize=range(3, 22))
def step_backward(
    given,
    incoming,
    grads,
    tokens,
    s_stream,
    s_inner,
    s_outer,
    s_row,
    f_inner,
    f_outer,
    f_row,
    b_stream,
    b_row,
    dnew_stream,
    dnew_inner,
    dnew_outer,
    dnew_row,
    dread_inner,
    dread_outer,
    dread_row,
    dgates_stream,
    dgates_row,
    FORM: tl.constexpr,
):
    COUNT: tl.constexpr = FORM.COUNT
    PARTS: tl.constexpr = FORM.PARTS
    NARROW: tl.constexpr = given.s.dtype.element_ty
    column = tl.arange(0, FORM.WIDTH)
    stream = tl.arange(0, FORM.STREAMS)
    program = tl.program_id(0).to(tl.int64)
    nothing = tl.full((FORM.TOKENS, FORM.WIDTH), 0, FORM.WIDE)
    dpools = ()
    dgates = ()
    for _ in tl.static_range(PARTS):
        dpools = dpools + (nothing,)
        dgates = dgates + (nothing,)
    dbias = tl.full((FORM.TOKENS,), 0, FORM.WIDE)
    pool = _query(given.pool, column, FORM.POOLED and PARTS == 1, FORM)
    gate = _query(given.gate, column, FORM.GATED and PARTS == 1, FORM)
    for block in range(tl.program_id(0), tl.cdiv(tokens, FORM.TOKENS), tl.num_programs(0)):
        row = block * FORM.TOKENS + tl.arange(0, FORM.TOKENS)
        here = row < tokens
        wide_row = row.to(tl.int64)
        each = here[:, None] & (stream < FORM.COUNT)[None, :]
        s_row_at = given.s + row_start(row, s_inner, s_outer, s_row, FORM.EVEN)[:, None]
        f_row_at = given.f + row_start(row, f_inner, f_outer, f_row, FORM.EVEN)[:, None] if FORM.FLUSH else s_row_at
        dnew_row_at = s_row_at
        dread_row_at = s_row_at
        if FORM.DNEW:
            dnew_row_at = incoming.dnew + row_start(row, dnew_inner, dnew_outer, dnew_row, FORM.EVEN)[:, None]
        if FORM.DREAD:
            dread_row_at = incoming.dread + row_start(row, dread_inner, dread_outer, dread_row, FORM.EVEN)[:, None]
        stats_at = incoming.stats + wide_row * (FORM.KINDS * FORM.COUNT)
        gates_at = incoming.gates + wide_row * FORM.COUNT if FORM.GATED else wide_row
        dgates_at = incoming.dgates + wide_row * dgates_row if FORM.GATED else wide_row
        b_at = given.beta + wide_row * b_row if FORM.FLUSH else wide_row
        f = column
        dread = column
        held = ()
        dots = tl.full((FORM.TOKENS, FORM.STREAMS), 0, FORM.WIDE)
        if FORM.POOLED or PARTS == 1:
            for part in tl.static_range(PARTS):
                at = part * FORM.WIDTH + column[None, :]
                live = here[:, None] & (at < FORM.DIM)
                f = _row(f_row_at + at, live, FORM.FLUSH, FORM)
                dread = _row(dread_row_at + at, live, FORM.DREAD, FORM)
                if FORM.HELD:
                    for i in tl.static_range(COUNT):
                        s = tl.load(s_row_at + at + _part(i, s_stream, FORM.EVEN), mask=live, other=0.0)
                        dot = _dot(s, f, dread, b_at + i * b_stream, here, NARROW, FORM)
                        dots += tl.where(stream[None, :] == i, dot[:, None], 0.0)
                        held = held + (s,)
                elif FORM.POOLED:
                    for i in range(FORM.COUNT):
                        s = tl.load(s_row_at + at + _part(i, s_stream, FORM.EVEN), mask=live, other=0.0)
                        dot = _dot(s, f, dread, b_at + i * b_stream, here, NARROW, FORM)
                        dots += tl.where(stream[None, :] == i, dot[:, None], 0.0)
        log_total = dbias
        common = dbias
        if FORM.POOLED:
            score = tl.load(stats_at[:, None] + FORM.COUNT + stream[None, :], mask=each, other=0.0)
            score = tl.where((stream < FORM.COUNT)[None, :], score, float("-inf"))
            most = tl.max(score, axis=1)
            log_total = most + tl.log(tl.sum(tl.exp(score - most[:, None]), axis=1))
            common = tl.sum(tl.exp(score - log_total[:, None]) * dots, axis=1)
        pull = dbias
        if FORM.GATED:
            made = tl.load(gates_at[:, None] + stream[None, :], mask=each, other=0.0)
            dmade_at = dgates_at[:, None] + stream[None, :] * tl.cast(dgates_stream, tl.int64)
            dmade = tl.load(dmade_at, mask=each, other=0.0).to(FORM.WIDE)
            pull = tl.sum(made * dmade, axis=1)
            if FORM.INDEPENDENT:
                dbias += tl.sum(dmade * made * (1 - made), axis=1)
            else:
                dbias -= (1 - tl.sum(made, axis=1)) * pull
        dbetas = tl.full((FORM.TOKENS, FORM.STREAMS), 0, FORM.WIDE)
        for part in tl.static_range(PARTS):
            at = part * FORM.WIDTH + column[None, :]
            live = here[:, None] & (at < FORM.DIM)
            to = wide_row[:, None] * FORM.DIM + at
            if PARTS > 1:
                f = _row(f_row_at + at, live, FORM.FLUSH, FORM)
                dread = _row(dread_row_at + at, live, FORM.DREAD, FORM)
                w_pool = _query(given.pool, part * FORM.WIDTH + column, FORM.POOLED, FORM)
                w_gate = _query(given.gate, part * FORM.WIDTH + column, FORM.GATED, FORM)
            else:
                w_pool, w_gate = pool, gate
            rows = (f, dread, w_pool, w_gate)
            of_token = (log_total, common, pull)
            sums = (nothing, dpools[part], dgates[part])
            if FORM.HELD:
                for i in tl.static_range(COUNT):
                    at_i = (stats_at, gates_at, dgates_at + i * dgates_stream, b_at + i * b_stream)
                    factors = _factors(i, _of(dots, stream, i), of_token, at_i, here, FORM)
                    dnew_at = dnew_row_at + at + (_part(i, dnew_stream, FORM.EVEN) if FORM.DNEW else 0)
                    ds_at = grads.ds + _part(i, tokens, False) * FORM.DIM + to
                    sums, dbeta = _row_gradient(held[i], rows, dnew_at, factors, sums, ds_at, live, NARROW, FORM)
                    dbetas += tl.where(stream[None, :] == i, dbeta[:, None], 0.0)
            else:
                for i in range(COUNT):
                    at_i = (stats_at, gates_at, dgates_at + i * dgates_stream, b_at + i * b_stream)
                    factors = _factors(i, _of(dots, stream, i), of_token, at_i, here, FORM)
                    s = tl.load(s_row_at + at + _part(i, s_stream, FORM.EVEN), mask=live, other=0.0)
                    dnew_at = dnew_row_at + at + (_part(i, dnew_stream, FORM.EVEN) if FORM.DNEW else 0)
                    ds_at = grads.ds + _part(i, tokens, False) * FORM.DIM + to
                    sums, dbeta = _row_gradient(s, rows, dnew_at, factors, sums, ds_at, live, NARROW, FORM)
                    dbetas += tl.where(stream[None, :] == i, dbeta[:, None], 0.0)
            df, dpool, dgate = sums
            dpools = dpools[:part] + (dpool,) + dpools[part + 1 :]
            dgates = dgates[:part] + (dgate,) + dgates[part + 1 :]
            if FORM.FLUSH:
                tl.store(grads.df + to, df.to(grads.df.dtype.element_ty), mask=live)
        if FORM.FLUSH:
            tl.store(grads.dbeta + wide_row[:, None] * FORM.COUNT + stream[None, :], dbetas, mask=each)
    for part in tl.static_range(PARTS):
        at = part * FORM.WIDTH + column
        if FORM.POOL:
            first = grads.dqueries + program * (FORM.KINDS - 1) * FORM.DIM
            tl.store(first + at, tl.sum(dpools[part], axis=0), mask=at < FORM.DIM)
        if FORM.GATE:
            last = grads.dqueries + (program * (FORM.KINDS - 1) + FORM.KINDS - 2) * FORM.DIM
            tl.store(last + at, tl.sum(dgates[part], axis=0), mask=at < FORM.DIM)
    if FORM.GATE:
        tl.store(grads.dbias + program, tl.sum(dbias, axis=0))
