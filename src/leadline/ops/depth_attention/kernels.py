"""The kernels of a depth-attention read. A program walks over tokens and, for each, over the sources.

A kernel gets the addresses of the sources as arguments and keeps them in tables, in registers: entry i of a table is
found by a sum over the lanes of one warp. So the loop over sources is a loop at run time, whatever their number. The
rows that come next are asked for before the current one is used. The order of the statements in the loops is the one
that spills on no chip.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import triton
import triton.language as tl

NUMBERS = ["tokens", "count", "first", "total"]
"""No kernel is recompiled for other numbers of tokens or sources."""


class Form(NamedTuple):
    """What a kernel is compiled for.

    Attributes:
        DIM, BLOCK, WIDE: a row's width, padded, and the dtype of the arithmetic.
        SLOTS, TABLES: addresses in a table, and tables.
        ALIGNED: whether all rows start at multiples of 16 bytes.
        EPS, CONTINUED: the forward kernel's; the second says that other launches went before.
        HANDED, WHOLE: the backward kernel's: whether later reads left gradients, and whether it has all sources.
    """

    DIM: int
    BLOCK: int
    WIDE: Any
    SLOTS: int
    TABLES: int
    ALIGNED: bool
    EPS: float = 0.0
    CONTINUED: bool = False
    HANDED: bool = False
    WHOLE: bool = False


Inputs = namedtuple("Inputs", "sources direction")
"""Pointers to the sources of a launch, and to the direction."""
Results = namedtuple("Results", "state out root score lse")
"""What a forward launch goes on from, and what it writes."""
Kept = namedtuple("Kept", "mix root score lse")
"""What the forward pass left for the backward pass."""
Incoming = namedtuple("Incoming", "upstream handed")
"""Gradients of the mix and, for each source of a launch, of its later reads."""


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
def forward_kernel(given, made, tokens, count, first, total, FORM: tl.constexpr):
    SLOTS: tl.constexpr = FORM.SLOTS
    TABLES: tl.constexpr = FORM.TABLES
    lane = tl.arange(0, FORM.BLOCK)
    inside = lane < FORM.DIM
    slot = tl.arange(0, FORM.SLOTS)
    q = tl.load(given.direction + lane, mask=inside, other=0.0)
    for token in range(tl.program_id(0).to(tl.int64), tokens, tl.num_programs(0)):
        start = token * FORM.DIM
        if FORM.CONTINUED:
            largest = tl.load(made.lse + token)
            normaliser = tl.full([], 1.0, FORM.WIDE)
            mix = tl.load(made.state + start + lane, mask=inside, other=0.0)
        else:
            largest = tl.full([], float("-inf"), FORM.WIDE)
            normaliser = tl.full([], 0.0, FORM.WIDE)
            mix = tl.full([FORM.BLOCK], 0, FORM.WIDE)
        for t in tl.static_range(TABLES):
            here = tl.minimum(count - t * FORM.SLOTS, FORM.SLOTS)
            table = table_of(given.sources, slot, t * SLOTS, SLOTS)
            ahead = tl.load(
                row_of(address_of(table, slot, 0), start, lane, given.sources[0], FORM.ALIGNED), mask=inside, other=0.0
            )
            following = row_of(address_of(table, slot, 1), start, lane, given.sources[0], FORM.ALIGNED)
            after = tl.load(following, mask=inside & (here > 1), other=0.0)
            for i in range(here):
                v = ahead.to(FORM.WIDE)
                ahead = after
                following = row_of(address_of(table, slot, i + 2), start, lane, given.sources[0], FORM.ALIGNED)
                after = tl.load(following, mask=inside & (i + 2 < here), other=0.0)
                product = tl.sum(v * q, axis=0)
                r = tl.rsqrt(tl.sum(v * v, axis=0) / FORM.DIM + FORM.EPS)
                s = product * r
                at = token * total + first + t * FORM.SLOTS + i
                tl.store(made.root + at, r)
                tl.store(made.score + at, s)
                larger = tl.maximum(largest, s)
                kept, weight = tl.exp(largest - larger), tl.exp(s - larger)
                normaliser = normaliser * kept + weight
                mix = mix * kept + v * weight
                largest = larger
        tl.store(made.out + start + lane, (mix / normaliser).to(made.out.dtype.element_ty), mask=inside)
        tl.store(made.lse + token, largest + tl.log(normaliser))


@triton.jit(do_not_specialize=NUMBERS)
def backward_kernel(given, kept, incoming, grads, partial, tokens, count, first, total, FORM: tl.constexpr):
    """`incoming.handed` is a place in `grads` (total, tokens, DIM) where no gradient comes in: equal addresses are not
    read.

    `do·o` is off by the rounding of o. Once all sources are read, `Σ p_i do·v_i` tells by how much; where this launch
    has them all (WHOLE), the direction's gradient is put right by that much times `Σ p_i r_i v_i`.
    """
    SLOTS: tl.constexpr = FORM.SLOTS
    TABLES: tl.constexpr = FORM.TABLES
    lane = tl.arange(0, FORM.BLOCK)
    inside = lane < FORM.DIM
    slot = tl.arange(0, FORM.SLOTS)
    q = tl.load(given.direction + lane, mask=inside, other=0.0)
    dq = tl.full([FORM.BLOCK], 0, FORM.WIDE)
    for token in range(tl.program_id(0).to(tl.int64), tokens, tl.num_programs(0)):
        start = token * FORM.DIM
        do = tl.load(incoming.upstream + start + lane, mask=inside, other=0.0)
        o = tl.load(kept.mix + start + lane, mask=inside, other=0.0)
        pull = tl.sum(do.to(FORM.WIDE) * o.to(FORM.WIDE), axis=0)
        norm = tl.load(kept.lse + token)
        exact = tl.full([], 0.0, FORM.WIDE)
        spread = tl.full([FORM.BLOCK], 0, FORM.WIDE)
        for t in tl.static_range(TABLES):
            here = tl.minimum(count - t * FORM.SLOTS, FORM.SLOTS)
            table = table_of(given.sources, slot, t * SLOTS, SLOTS)
            if FORM.HANDED:
                in_table = table_of(incoming.handed, slot, t * SLOTS, SLOTS)
            ahead = tl.load(
                row_of(address_of(table, slot, 0), start, lane, given.sources[0], FORM.ALIGNED), mask=inside, other=0.0
            )
            for i in range(here):
                v = ahead.to(FORM.WIDE)
                following = row_of(address_of(table, slot, i + 1), start, lane, given.sources[0], FORM.ALIGNED)
                ahead = tl.load(following, mask=inside & (i + 1 < here), other=0.0)
                out = grads + (first + t * FORM.SLOTS + i).to(tl.int64) * tokens * FORM.DIM + start
                if FORM.HANDED:
                    into = address_of(in_table, slot, i)
                    handed = row_of(into, start, lane, given.sources[0], FORM.ALIGNED)
                    left = tl.load(handed, mask=inside & (into != (out - start).to(tl.int64)), other=0.0)
                at = token * total + first + t * FORM.SLOTS + i
                r = tl.load(kept.root + at)
                s = tl.load(kept.score + at)
                weight = tl.exp(s - norm)
                product = tl.sum(do.to(FORM.WIDE) * v, axis=0)
                along = weight * (product - pull) * r
                dq += v * along
                if FORM.WHOLE:
                    exact += weight * product
                    spread += v * (weight * r)
                grad = do.to(FORM.WIDE) * weight + (q - v * (r * s / FORM.DIM)) * along
                if FORM.HANDED:
                    grad += left.to(FORM.WIDE)
                tl.store(out + lane, grad.to(grads.dtype.element_ty), mask=inside)
        if FORM.WHOLE:
            dq += spread * (pull - exact)
    tl.store(partial + tl.program_id(0).to(tl.int64) * FORM.DIM + lane, dq, mask=inside)
