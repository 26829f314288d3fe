"""The kernels of the multi-gate step. A program walks over tiles of whole tokens and, in each, over the streams.

Streams are counted at run time, with one stream's row in registers; but where the backward pass holds them all, their
loop is unrolled. The forward pass asks for the next stream's row before it writes the current one, so that memory is
never idle behind a store.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="assignment, var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

SIZES = [
    "tokens",
    "s_stream",
    "s_inner",
    "s_outer",
    "s_row",
    "f_inner",
    "f_outer",
    "f_row",
    "b_stream",
    "b_row",
    "dnew_stream",
    "dnew_inner",
    "dnew_outer",
    "dnew_row",
    "dread_inner",
    "dread_outer",
    "dread_row",
    "dgates_stream",
    "dgates_row",
]
"""No kernel is compiled anew for other numbers of tokens; EVEN says where rows start at multiples of 16."""


@triton.jit
def _start(row, inner, outer_stride, inner_stride, EVEN: tl.constexpr):
    """Where rows start: `leadline.ops.rows.Rows`."""
    start = (row // inner).to(tl.int64) * outer_stride + (row % inner).to(tl.int64) * inner_stride
    if EVEN:
        start = tl.multiple_of(start, 16)
    return start


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


@triton.jit(do_not_specialize=SIZES)
def step_forward(
    s_ptr,
    f_ptr,
    b_ptr,
    pool_ptr,
    gate_ptr,
    bias_ptr,
    new_ptr,
    read_ptr,
    gates_ptr,
    stats_ptr,
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
    COUNT: tl.constexpr,
    DIM: tl.constexpr,
    FLUSH: tl.constexpr,
    POOL: tl.constexpr,
    GATE: tl.constexpr,
    INDEPENDENT: tl.constexpr,
    KEEP: tl.constexpr,
    EVEN: tl.constexpr,
    WIDE: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    STREAMS: tl.constexpr,
):
    column = tl.arange(0, WIDTH)
    inside = column < DIM
    stream = tl.arange(0, STREAMS)
    scale: tl.constexpr = DIM**-0.5
    kinds: tl.constexpr = 1 + POOL + GATE
    narrow: tl.constexpr = s_ptr.dtype.element_ty
    if POOL:
        pool = tl.load(pool_ptr + column, mask=inside, other=0.0).to(WIDE)
    if GATE:
        gate = tl.load(gate_ptr + column, mask=inside, other=0.0).to(WIDE)
        bias = tl.load(bias_ptr).to(WIDE)
    for block in range(tl.program_id(0), tl.cdiv(tokens, TOKENS), tl.num_programs(0)):
        row = block * TOKENS + tl.arange(0, TOKENS)
        here = row < tokens
        live = here[:, None] & inside[None, :]
        to = row.to(tl.int64)[:, None] * DIM + column[None, :]
        each = here[:, None] & (stream < COUNT)[None, :]
        s_at = s_ptr + _start(row, s_inner, s_outer, s_row, EVEN)[:, None] + column[None, :]
        stats_at = stats_ptr + row.to(tl.int64) * (kinds * COUNT)
        if FLUSH:
            f_at = f_ptr + _start(row, f_inner, f_outer, f_row, EVEN)[:, None] + column[None, :]
            f = tl.load(f_at, mask=live, other=0.0).to(WIDE)
        gates = tl.full((TOKENS, STREAMS), float("-inf"), WIDE)
        read = tl.zeros((TOKENS, WIDTH), WIDE)
        most = tl.full((TOKENS,), float("-inf"), WIDE)
        total = tl.zeros((TOKENS,), WIDE)
        following = tl.load(s_at, mask=live, other=0.0)
        for i in range(COUNT):
            x = following.to(WIDE)
            following = tl.load(s_at + _part(i + 1, s_stream, EVEN), mask=live & (i + 1 < COUNT), other=0.0)
            if FLUSH:
                beta = tl.load(b_ptr + i * b_stream + row.to(tl.int64) * b_row, mask=here, other=0.0).to(WIDE)
                x = _flushed(x, f, beta, narrow, WIDE)
                new_at = new_ptr + _part(i, tokens, False) * DIM + to
                tl.store(new_at, x.to(narrow), mask=live)
            root = tl.rsqrt(tl.sum(x * x, axis=1) / DIM + eps)
            if KEEP:
                tl.store(stats_at + i, root, mask=here)
            if POOL:
                score = tl.sum(x * pool[None, :], axis=1) * (root * scale)
                if KEEP:
                    tl.store(stats_at + COUNT + i, score, mask=here)
                before = most
                most = tl.maximum(before, score)
                shrink = tl.exp(before - most)
                share = tl.exp(score - most)
                total = total * shrink + share
                read = read * shrink[:, None] + x * share[:, None]
            elif i == 0:
                read = x
            if GATE:
                gates = _with(gates, stream, i, tl.sum(x * gate[None, :], axis=1) * (root * scale))
        if POOL:
            read = read / total[:, None]
        tl.store(read_ptr + to, read.to(narrow), mask=live)
        if GATE:
            if KEEP:
                tl.store(stats_at[:, None] + (kinds - 1) * COUNT + stream[None, :], gates, mask=each)
            if INDEPENDENT:
                made = 1 / (1 + tl.exp(-(gates + bias)))
            else:
                most = tl.maximum(tl.max(gates, axis=1), bias)
                share = tl.exp(gates - most[:, None])
                made = share / (tl.sum(share, axis=1) + tl.exp(bias - most))[:, None]
            tl.store(gates_ptr + row.to(tl.int64)[:, None] * COUNT + stream[None, :], made, mask=each)


@triton.jit
def _query(at, column, DIM: tl.constexpr, WANTED: tl.constexpr, WIDE: tl.constexpr):
    """Part of a query, or anything where it is not wanted."""
    return tl.load(at + column, mask=column < DIM, other=0.0).to(WIDE) if WANTED else column


@triton.jit
def _row(at, live, WANTED: tl.constexpr, WIDE: tl.constexpr):
    """Part of a row, or anything where it is not wanted."""
    return tl.load(at, mask=live, other=0.0).to(WIDE) if WANTED else live


@triton.jit
def _dot(s, f, dread, b_at, here, FLUSH: tl.constexpr, NARROW: tl.constexpr, WIDE: tl.constexpr):
    """dh·S'_i of one stream."""
    x = s.to(WIDE)
    if FLUSH:
        x = _flushed(x, f, tl.load(b_at, mask=here, other=0.0).to(WIDE), NARROW, WIDE)
    return tl.sum(x * dread, axis=1)


@triton.jit
def _factors(
    i,
    dot,
    log_total,
    common,
    pull,
    stats_at,
    gates_at,
    dgates_at,
    b_at,
    here,
    COUNT: tl.constexpr,
    DIM: tl.constexpr,
    FLUSH: tl.constexpr,
    POOL: tl.constexpr,
    POOLED: tl.constexpr,
    GATED: tl.constexpr,
    INDEPENDENT: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Of stream i: β, and what dh, w_α, w_β and S'_i are multiplied by in its gradient."""
    beta = dot
    if FLUSH:
        beta = tl.load(b_at, mask=here, other=0.0).to(WIDE)
    weight = tl.where(i == 0, tl.zeros_like(dot) + 1, 0.0)
    back = tl.zeros_like(dot)
    along_pool = back
    along_gate = back
    root = back
    if POOLED or GATED:
        root = tl.load(stats_at + i, mask=here, other=0.0)
    if POOLED:
        score = tl.load(stats_at + COUNT + i, mask=here, other=0.0)
        weight = tl.exp(score - log_total)
        along_pool = weight * (dot - common)
        back += along_pool * score
    if GATED:
        score = tl.load(stats_at + (1 + POOL) * COUNT + i, mask=here, other=0.0)
        made = tl.load(gates_at + i, mask=here, other=0.0)
        dmade = tl.load(dgates_at, mask=here, other=0.0).to(WIDE)
        along_gate = made * (dmade * (1 - made) if INDEPENDENT else dmade - pull)
        back += along_gate * score
    scaled = root * DIM**-0.5
    return beta, weight, along_pool * scaled, along_gate * scaled, back * root * root / DIM


@triton.jit
def _row_gradient(
    s,
    f,
    dnew_at,
    dread,
    pool,
    gate,
    factors,
    sums,
    ds_at,
    live,
    FLUSH: tl.constexpr,
    DNEW: tl.constexpr,
    DREAD: tl.constexpr,
    POOLED: tl.constexpr,
    GATED: tl.constexpr,
    NARROW: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Writes dS_i of one stream and adds its part to dF and to the queries' gradients; dβ_i comes back too."""
    beta, weight, along_pool, along_gate, back = factors
    df, dpool, dgate = sums
    s = s.to(WIDE)
    x = s
    dbeta = beta
    if FLUSH:
        x = _flushed(s, f, beta, NARROW, WIDE)
    g = tl.zeros_like(x)
    if DNEW:
        g += tl.load(dnew_at, mask=live, other=0.0).to(WIDE)
    if DREAD:
        g += weight[:, None] * dread
    if POOLED:
        g += along_pool[:, None] * pool[None, :]
        dpool += along_pool[:, None] * x
    if GATED:
        g += along_gate[:, None] * gate[None, :]
        dgate += along_gate[:, None] * x
    if POOLED or GATED:
        g -= back[:, None] * x
    if FLUSH:
        df += beta[:, None] * g
        dbeta = tl.sum(g * (f - s), axis=1)
        g -= beta[:, None] * g
    tl.store(ds_at, g.to(NARROW), mask=live)
    return (df, dpool, dgate), dbeta


@triton.jit(do_not_specialize=SIZES)
def step_backward(
    s_ptr,
    f_ptr,
    b_ptr,
    pool_ptr,
    gate_ptr,
    gates_ptr,
    stats_ptr,
    dnew_ptr,
    dread_ptr,
    dgates_ptr,
    ds_ptr,
    df_ptr,
    db_ptr,
    dqueries_ptr,
    dbias_ptr,
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
    COUNT: tl.constexpr,
    DIM: tl.constexpr,
    FLUSH: tl.constexpr,
    POOL: tl.constexpr,
    GATE: tl.constexpr,
    INDEPENDENT: tl.constexpr,
    DNEW: tl.constexpr,
    DREAD: tl.constexpr,
    DGATES: tl.constexpr,
    HELD: tl.constexpr,
    EVEN: tl.constexpr,
    WIDE: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    STREAMS: tl.constexpr,
):
    POOLED: tl.constexpr = POOL and DREAD
    GATED: tl.constexpr = GATE and DGATES
    KINDS: tl.constexpr = 1 + POOL + GATE
    PARTS: tl.constexpr = (DIM + WIDTH - 1) // WIDTH
    NARROW: tl.constexpr = s_ptr.dtype.element_ty
    column = tl.arange(0, WIDTH)
    stream = tl.arange(0, STREAMS)
    program = tl.program_id(0).to(tl.int64)
    nothing = tl.zeros((TOKENS, WIDTH), WIDE)
    dpools = ()
    dgates = ()
    for _ in tl.static_range(PARTS):
        dpools = dpools + (nothing,)
        dgates = dgates + (nothing,)
    dbias = tl.zeros((TOKENS,), WIDE)
    pool = _query(pool_ptr, column, DIM, POOLED and PARTS == 1, WIDE)
    gate = _query(gate_ptr, column, DIM, GATED and PARTS == 1, WIDE)
    for block in range(tl.program_id(0), tl.cdiv(tokens, TOKENS), tl.num_programs(0)):
        row = block * TOKENS + tl.arange(0, TOKENS)
        here = row < tokens
        wide_row = row.to(tl.int64)
        each = here[:, None] & (stream < COUNT)[None, :]
        s_row_at = s_ptr + _start(row, s_inner, s_outer, s_row, EVEN)[:, None]
        f_row_at = f_ptr + _start(row, f_inner, f_outer, f_row, EVEN)[:, None] if FLUSH else s_row_at
        dnew_row_at = dnew_ptr + _start(row, dnew_inner, dnew_outer, dnew_row, EVEN)[:, None] if DNEW else s_row_at
        dread_row_at = (
            dread_ptr + _start(row, dread_inner, dread_outer, dread_row, EVEN)[:, None] if DREAD else s_row_at
        )
        stats_at = stats_ptr + wide_row * (KINDS * COUNT)
        gates_at = gates_ptr + wide_row * COUNT if GATED else wide_row
        dgates_at = dgates_ptr + wide_row * dgates_row if GATED else wide_row
        b_at = b_ptr + wide_row * b_row if FLUSH else wide_row
        f = column
        dread = column
        held = ()
        dots = tl.zeros((TOKENS, STREAMS), WIDE)
        if POOLED or PARTS == 1:
            for part in tl.static_range(PARTS):
                at = part * WIDTH + column[None, :]
                live = here[:, None] & (at < DIM)
                f = _row(f_row_at + at, live, FLUSH, WIDE)
                dread = _row(dread_row_at + at, live, DREAD, WIDE)
                if HELD:
                    for i in tl.static_range(COUNT):
                        s = tl.load(s_row_at + at + _part(i, s_stream, EVEN), mask=live, other=0.0)
                        dot = _dot(s, f, dread, b_at + i * b_stream, here, FLUSH, NARROW, WIDE)
                        dots += tl.where(stream[None, :] == i, dot[:, None], 0.0)
                        held = held + (s,)
                elif POOLED:
                    for i in range(COUNT):
                        s = tl.load(s_row_at + at + _part(i, s_stream, EVEN), mask=live, other=0.0)
                        dot = _dot(s, f, dread, b_at + i * b_stream, here, FLUSH, NARROW, WIDE)
                        dots += tl.where(stream[None, :] == i, dot[:, None], 0.0)
        log_total = dbias
        common = dbias
        if POOLED:
            score = tl.load(stats_at[:, None] + COUNT + stream[None, :], mask=each, other=0.0)
            score = tl.where((stream < COUNT)[None, :], score, float("-inf"))
            most = tl.max(score, axis=1)
            log_total = most + tl.log(tl.sum(tl.exp(score - most[:, None]), axis=1))
            common = tl.sum(tl.exp(score - log_total[:, None]) * dots, axis=1)
        pull = dbias
        if GATED:
            made = tl.load(gates_at[:, None] + stream[None, :], mask=each, other=0.0)
            dmade_at = dgates_at[:, None] + stream[None, :] * tl.cast(dgates_stream, tl.int64)
            dmade = tl.load(dmade_at, mask=each, other=0.0).to(WIDE)
            pull = tl.sum(made * dmade, axis=1)
            if INDEPENDENT:
                dbias += tl.sum(dmade * made * (1 - made), axis=1)
            else:
                dbias -= (1 - tl.sum(made, axis=1)) * pull
        dbetas = tl.zeros((TOKENS, STREAMS), WIDE)
        for part in tl.static_range(PARTS):
            at = part * WIDTH + column[None, :]
            live = here[:, None] & (at < DIM)
            to = wide_row[:, None] * DIM + at
            if PARTS > 1:
                f = _row(f_row_at + at, live, FLUSH, WIDE)
                dread = _row(dread_row_at + at, live, DREAD, WIDE)
                w_pool = _query(pool_ptr, part * WIDTH + column, DIM, POOLED, WIDE)
                w_gate = _query(gate_ptr, part * WIDTH + column, DIM, GATED, WIDE)
            else:
                w_pool, w_gate = pool, gate
            sums = (nothing, dpools[part], dgates[part])
            if HELD:
                for i in tl.static_range(COUNT):
                    factors = _factors(
                        i, _of(dots, stream, i), log_total, common, pull, stats_at, gates_at,
                        dgates_at + i * dgates_stream, b_at + i * b_stream, here,
                        COUNT, DIM, FLUSH, POOL, POOLED, GATED, INDEPENDENT, WIDE,
                    )  # fmt: skip
                    sums, dbeta = _row_gradient(
                        held[i], f, dnew_row_at + at + (_part(i, dnew_stream, EVEN) if DNEW else 0), dread,
                        w_pool, w_gate, factors, sums, ds_ptr + _part(i, tokens, False) * DIM + to, live,
                        FLUSH, DNEW, DREAD, POOLED, GATED, NARROW, WIDE,
                    )  # fmt: skip
                    dbetas += tl.where(stream[None, :] == i, dbeta[:, None], 0.0)
            else:
                for i in range(COUNT):
                    factors = _factors(
                        i, _of(dots, stream, i), log_total, common, pull, stats_at, gates_at,
                        dgates_at + i * dgates_stream, b_at + i * b_stream, here,
                        COUNT, DIM, FLUSH, POOL, POOLED, GATED, INDEPENDENT, WIDE,
                    )  # fmt: skip
                    s = tl.load(s_row_at + at + _part(i, s_stream, EVEN), mask=live, other=0.0)
                    sums, dbeta = _row_gradient(
                        s, f, dnew_row_at + at + (_part(i, dnew_stream, EVEN) if DNEW else 0), dread,
                        w_pool, w_gate, factors, sums, ds_ptr + _part(i, tokens, False) * DIM + to, live,
                        FLUSH, DNEW, DREAD, POOLED, GATED, NARROW, WIDE,
                    )  # fmt: skip
                    dbetas += tl.where(stream[None, :] == i, dbeta[:, None], 0.0)
            df, dpool, dgate = sums
            dpools = dpools[:part] + (dpool,) + dpools[part + 1 :]
            dgates = dgates[:part] + (dgate,) + dgates[part + 1 :]
            if FLUSH:
                tl.store(df_ptr + to, df.to(df_ptr.dtype.element_ty), mask=live)
        if FLUSH:
            tl.store(db_ptr + wide_row[:, None] * COUNT + stream[None, :], dbetas, mask=each)
    for part in tl.static_range(PARTS):
        at = part * WIDTH + column
        if POOL:
            tl.store(dqueries_ptr + program * (KINDS - 1) * DIM + at, tl.sum(dpools[part], axis=0), mask=at < DIM)
        if GATE:
            last = dqueries_ptr + (program * (KINDS - 1) + KINDS - 2) * DIM
            tl.store(last + at, tl.sum(dgates[part], axis=0), mask=at < DIM)
    if GATE:
        tl.store(dbias_ptr + program, tl.sum(dbias, axis=0))
