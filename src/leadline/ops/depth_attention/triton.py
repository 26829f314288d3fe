"""Depth attention as fused kernels: each source is read once forward and once backward, and never stacked.

Sources are separate tensors. A kernel gets their addresses as arguments, keeps them in registers as a small table, and
loops over the sources with their number as data: a kernel is compiled for a table size, not for a number of sources.
Forward keeps a running maximum, sum and mix (softmax on the fly); backward needs no second look at a source, because
`Σ_j p_j do·v_j = do·o`. Up to MOST_SOURCES go into one launch; forward hands its running state to the next launch.

Elements moved, for N tokens, k sources of which h have a gradient handed in, width D, P programs, c launches:

| | read | written |
|---|---|---|
| forward | N k D; direction D a program; between launches N (D + 1) (c − 1) | N (D + 2k + 1) + N (D + 1) (c − 1) |
| backward | N (k + h + 2c) D + N (2k + c); direction D a program | N k D; c P partial rows of D |

Saved for backward: the root r and the score s of each source, and their log-sum-exp, 2k + 1 numbers a token; the
sources and the mix by reference. Gradients are those of `lean`, but for one thing: in a narrow dtype `do·o` carries the
rounding of o. Query and gain are put right in the same pass (in one launch). In a source's gradient it stays: about |q|
times the gradient's own rounding, where lean has it too.

Rows are contiguous: a source with other strides, or one that starts between multiples of 16 bytes, is copied once.
Beyond a width of 16,384 rows no longer fit in registers: results stay right, speed does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.depth_attention.kernels import backward_kernel, forward_kernel
from leadline.ops.depth_attention.lean import read_lean
from leadline.ops.kernels import as_rows, device_of, even_rows, padded, partial_rows, warps_for, wide_type
from leadline.ops.precision import no_autocast, wide

MOST_SLOTS = 32
"""Addresses in one table: one for each lane of a warp."""
MOST_SOURCES = 4 * MOST_SLOTS
"""In one launch: backward has two addresses for each, 2 of the 4 KiB of arguments that every chip takes."""
FORWARD_BYTES_A_LANE, BACKWARD_BYTES_A_LANE = 128, 64
"""Of a row, in the dtype computed in. The width decides the warps, the warps the registers: four to six times this."""
TOKENS_A_PROGRAM = 4


def read_triton(
    sources: Sequence[Tensor], query: Tensor, key_gain: Tensor, eps: float
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The mix (..., D) and the sources handed on; see `leadline.ops.depth_attention.read_sources`."""
    if len(sources) == 1:
        return read_lean(sources, (), query, key_gain)
    with torch.no_grad():
        mix, *saved = read_forward(sources, _direction(query, key_gain, sources[0]), eps)
    if not torch.is_grad_enabled():
        return mix, tuple(sources)
    mix, *handed = _Read.apply(query, key_gain, mix, *saved, *sources)
    return mix, tuple(handed)


@torch.library.custom_op("leadline::depth_attention_forward", mutates_args=())
def read_forward(sources: Sequence[Tensor], direction: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mix (..., D) in the sources' dtype; roots and scores (N, k) and log-sum-exp (N,), in `direction`'s dtype."""
    rows = [as_rows(source) for source in sources]
    tokens, dim = rows[0].shape
    mix, root, score, lse = _forward_results(sources, direction)
    if tokens == 0:
        return mix, root, score, lse
    state = direction.new_empty(tokens, dim) if len(rows) > MOST_SOURCES else mix
    block = padded(dim)
    with device_of(mix):
        for first in range(0, len(rows), MOST_SOURCES):
            group = rows[first : first + MOST_SOURCES]
            slots, tables = _tables(len(group))
            forward_kernel[(triton.cdiv(tokens, TOKENS_A_PROGRAM),)](
                _filled(group, slots * tables),
                direction.contiguous(),
                state,
                mix if first + len(group) == len(rows) else state,
                root,
                score,
                lse,
                tokens,
                len(group),
                first,
                len(rows),
                DIM=dim,
                BLOCK=block,
                SLOTS=slots,
                TABLES=tables,
                EPS=eps,
                WIDE=wide_type(mix.dtype),
                ALIGNED=even_rows(dim, mix.dtype),
                CONTINUED=first > 0,
                num_warps=warps_for(block, FORWARD_BYTES_A_LANE // direction.element_size()),
            )
    return mix, root, score, lse


@read_forward.register_fake
def _forward_results(
    sources: Sequence[Tensor], direction: Tensor, eps: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    source, count = sources[0], len(sources)
    tokens = source.shape[:-1].numel()
    each = direction.new_empty(tokens, count)
    return source.new_empty(source.shape), each, torch.empty_like(each), direction.new_empty(tokens)


@torch.library.custom_op("leadline::depth_attention_backward", mutates_args=())
def read_backward(
    upstream: Tensor,
    mix: Tensor,
    root: Tensor,
    score: Tensor,
    lse: Tensor,
    sources: Sequence[Tensor],
    handed: Sequence[Tensor | None],
    direction: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of the sources, (k, ..., D), each with what is handed in for it added, and of the direction, (D,)."""
    rows = [as_rows(source) for source in sources]
    given = [None if grad is None else as_rows(grad) for grad in handed]
    (tokens, dim), block = rows[0].shape, padded(rows[0].shape[1])
    grads, _ = _backward_results(upstream, mix, root, score, lse, sources, handed, direction)
    programs, launches = partial_rows(tokens), triton.cdiv(len(rows), MOST_SOURCES)
    partial = direction.new_empty(launches, programs, dim)
    if tokens == 0:
        return grads, partial.sum(dim=(0, 1))
    with device_of(mix):
        for launch in range(launches):
            group = slice(launch * MOST_SOURCES, (launch + 1) * MOST_SOURCES)
            incoming = [own if grad is None else grad for own, grad in zip(grads[group], given[group], strict=True)]
            slots, tables = _tables(len(incoming))
            backward_kernel[(programs,)](
                _filled(rows[group], slots * tables),
                _filled(incoming, slots * tables),
                grads,
                as_rows(upstream),
                as_rows(mix),
                root,
                score,
                lse,
                direction.contiguous(),
                partial[launch],
                tokens,
                len(incoming),
                group.start,
                len(rows),
                DIM=dim,
                BLOCK=block,
                SLOTS=slots,
                TABLES=tables,
                WIDE=wide_type(mix.dtype),
                ALIGNED=even_rows(dim, mix.dtype),
                HANDED=any(g is not None for g in given[group]),
                WHOLE=launches == 1,
                num_warps=warps_for(block, BACKWARD_BYTES_A_LANE // direction.element_size()),
            )
    return grads, partial.view(-1, dim).sum(dim=0)


@read_backward.register_fake
def _backward_results(
    upstream: Tensor,
    mix: Tensor,
    root: Tensor,
    score: Tensor,
    lse: Tensor,
    sources: Sequence[Tensor],
    handed: Sequence[Tensor | None],
    direction: Tensor,
) -> tuple[Tensor, Tensor]:
    return mix.new_empty(len(sources), *mix.shape), torch.empty_like(direction)


class _Read(torch.autograd.Function):
    """Ties the results of `read_forward` to its inputs.

    The kernel runs before: a compiler that traces numbers as data can't take one, `eps`, into an autograd function.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key_gain: Tensor,
        mix: Tensor,
        root: Tensor,
        score: Tensor,
        lse: Tensor,
        *sources: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(query, key_gain, mix, root, score, lse, *sources)
        return mix.view_as(mix), *(source.view_as(source) for source in sources)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor | None, *handed: Tensor | None) -> tuple[Tensor | None, ...]:
        nothing = (None,) * 4
        if upstream is None:
            return None, None, *nothing, *handed
        query, key_gain, mix, root, score, lse, *sources = ctx.saved_tensors
        with no_autocast(upstream):
            direction = _direction(query, key_gain, mix)
            grads, ddirection = read_backward(upstream, mix, root, score, lse, sources, handed, direction)
            dquery = (ddirection * key_gain.to(ddirection.dtype)).to(query.dtype)
            dgain = (ddirection * query.to(ddirection.dtype)).to(key_gain.dtype)
        return dquery, dgain, *nothing, *grads


def _direction(query: Tensor, key_gain: Tensor, like: Tensor) -> Tensor:
    dtype = wide(like.dtype)
    return query.to(dtype) * key_gain.to(dtype)


def _tables(count: int) -> tuple[int, int]:
    """How many addresses a table has, and how many tables, for so many sources."""
    slots = min(MOST_SLOTS, max(8, padded(count)))
    return slots, triton.cdiv(count, slots)


def _filled(tensors: Sequence[Tensor], length: int) -> tuple[Tensor, ...]:
    """As many as the tables hold: the last one repeated, which no kernel reads."""
    return (*tensors, *(tensors[-1],) * (length - len(tensors)))
