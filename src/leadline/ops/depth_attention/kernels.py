"""The kernels of a depth-attention read. A program walks over tokens and, for each, over the sources.

A kernel gets the addresses of the sources as arguments and keeps them in tables, in registers: entry i of a table is
found by a sum over the lanes of one warp. So the loop over sources is a loop at run time, whatever their number. The
rows that come next are asked for before the one at hand is used. The order of the statements in the loops is the one
that spills on no chip.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

NUMBERS = ["tokens", "count", "first", "total"]
"""No kernel is compiled anew for other numbers of tokens or sources."""


@triton.jit
def table_of(pointers, slot, FIRST: tl.constexpr, SLOTS: tl.constexpr):
    """The addresses of SLOTS tensors, one a slot."""
    table = tl.zeros([SLOTS], tl.int64)
    for i in tl.static_range(SLOTS):
        table = tl.where(slot == i, pointers[FIRST + i].to(tl.int64), table)
    return table


@triton.jit
def address_of(table, slot, i):
    return tl.sum(tl.where(slot == i, table, 0), axis=0)


@triton.jit
def row_of(address, start, lane, like, ALIGNED: tl.constexpr):
    """Pointers to the row that starts at element `start` of the tensor there, whose elements are as those of `like`."""
    pointer = address.to(like.dtype, bitcast=True) + start
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer + lane


@triton.jit(do_not_specialize=NUMBERS)
def forward_kernel(
    sources,
    direction,
    state,
    out,
    root,
    score,
    lse,
    tokens,
    count,
    first,
    total,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
    TABLES: tl.constexpr,
    EPS: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    CONTINUED: tl.constexpr,
):
    lane = tl.arange(0, BLOCK)
    inside = lane < DIM
    slot = tl.arange(0, SLOTS)
    q = tl.load(direction + lane, mask=inside, other=0.0)
    for token in range(tl.program_id(0).to(tl.int64), tokens, tl.num_programs(0)):
        start = token * DIM
        if CONTINUED:
            largest = tl.load(lse + token)
            normaliser = tl.full([], 1.0, WIDE)
            mix = tl.load(state + start + lane, mask=inside, other=0.0)
        else:
            largest = tl.full([], float("-inf"), WIDE)
            normaliser = tl.full([], 0.0, WIDE)
            mix = tl.zeros([BLOCK], WIDE)
        for t in tl.static_range(TABLES):
            here = tl.minimum(count - t * SLOTS, SLOTS)
            table = table_of(sources, slot, t * SLOTS, SLOTS)
            ahead = tl.load(
                row_of(address_of(table, slot, 0), start, lane, sources[0], ALIGNED), mask=inside, other=0.0
            )
            following = row_of(address_of(table, slot, 1), start, lane, sources[0], ALIGNED)
            after = tl.load(following, mask=inside & (here > 1), other=0.0)
            for i in range(here):
                v = ahead.to(WIDE)
                ahead = after
                following = row_of(address_of(table, slot, i + 2), start, lane, sources[0], ALIGNED)
                after = tl.load(following, mask=inside & (i + 2 < here), other=0.0)
                product = tl.sum(v * q, axis=0)
                r = tl.rsqrt(tl.sum(v * v, axis=0) / DIM + EPS)
                s = product * r
                at = token * total + first + t * SLOTS + i
                tl.store(root + at, r)
                tl.store(score + at, s)
                larger = tl.maximum(largest, s)
                kept, weight = tl.exp(largest - larger), tl.exp(s - larger)
                normaliser = normaliser * kept + weight
                mix = mix * kept + v * weight
                largest = larger
        tl.store(out + start + lane, (mix / normaliser).to(out.dtype.element_ty), mask=inside)
        tl.store(lse + token, largest + tl.log(normaliser))


@triton.jit(do_not_specialize=NUMBERS)
def backward_kernel(
    sources,
    incoming,
    grads,
    upstream,
    mix,
    root,
    score,
    lse,
    direction,
    partial,
    tokens,
    count,
    first,
    total,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
    TABLES: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    HANDED: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """`incoming` is a place in `grads` (total, tokens, DIM) where no gradient comes in: equal addresses are not read.

    `do·o` is off by the rounding of o. Once all sources are read, `Σ p_i do·v_i` tells by how much; where this launch
    has them all (WHOLE), the direction's gradient is put right by that much times `Σ p_i r_i v_i`.
    """
    lane = tl.arange(0, BLOCK)
    inside = lane < DIM
    slot = tl.arange(0, SLOTS)
    q = tl.load(direction + lane, mask=inside, other=0.0)
    dq = tl.zeros([BLOCK], WIDE)
    for token in range(tl.program_id(0).to(tl.int64), tokens, tl.num_programs(0)):
        start = token * DIM
        do = tl.load(upstream + start + lane, mask=inside, other=0.0)
        o = tl.load(mix + start + lane, mask=inside, other=0.0)
        pull = tl.sum(do.to(WIDE) * o.to(WIDE), axis=0)
        norm = tl.load(lse + token)
        exact = tl.full([], 0.0, WIDE)
        spread = tl.zeros([BLOCK], WIDE)
        for t in tl.static_range(TABLES):
            here = tl.minimum(count - t * SLOTS, SLOTS)
            table = table_of(sources, slot, t * SLOTS, SLOTS)
            if HANDED:
                in_table = table_of(incoming, slot, t * SLOTS, SLOTS)
            ahead = tl.load(
                row_of(address_of(table, slot, 0), start, lane, sources[0], ALIGNED), mask=inside, other=0.0
            )
            for i in range(here):
                v = ahead.to(WIDE)
                following = row_of(address_of(table, slot, i + 1), start, lane, sources[0], ALIGNED)
                ahead = tl.load(following, mask=inside & (i + 1 < here), other=0.0)
                out = grads + (first + t * SLOTS + i).to(tl.int64) * tokens * DIM + start
                if HANDED:
                    into = address_of(in_table, slot, i)
                    handed = row_of(into, start, lane, sources[0], ALIGNED)
                    given = tl.load(handed, mask=inside & (into != (out - start).to(tl.int64)), other=0.0)
                at = token * total + first + t * SLOTS + i
                r = tl.load(root + at)
                s = tl.load(score + at)
                weight = tl.exp(s - norm)
                product = tl.sum(do.to(WIDE) * v, axis=0)
                along = weight * (product - pull) * r
                dq += v * along
                if WHOLE:
                    exact += weight * product
                    spread += v * (weight * r)
                grad = do.to(WIDE) * weight + (q - v * (r * s / DIM)) * along
                if HANDED:
                    grad += given.to(WIDE)
                tl.store(out + lane, grad.to(grads.dtype.element_ty), mask=inside)
        if WHOLE:
            dq += spread * (pull - exact)
    tl.store(partial + tl.program_id(0).to(tl.int64) * DIM + lane, dq, mask=inside)
