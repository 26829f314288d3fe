"""Depth attention as fused kernels: each source is read once forward and once backward, and never stacked.

Sources are separate tensors. A kernel gets their addresses as arguments, keeps them in registers as a small table, and
loops over the sources with their number as data: a kernel is compiled for a table size, not for a number of sources.
Forward keeps a running maximum, sum and mix (softmax on the fly); backward needs no second look at a source, because
`Σ_j p_j do·v_j = do·o`. Up to MOST_SOURCES go into one launch; forward hands its running state to the next launch.

Elements moved, for N tokens, k sources of which h have a gradient from later reads, width D, P programs, c launches:

| | read | written |
|---|---|---|
| forward | N k D; direction D a program; between launches N (D + 1) (c − 1) | N (D + 2k + 1) + N (D + 1) (c − 1) |
| backward | N (k + h + 2c) D + N (2k + c); direction D a program | N k D; c P partial rows of D |

Saved for backward: the inverse RMS r and the score s of each source, and their log-sum-exp, 2k + 1 scalars a token;
the sources and the mix by reference. Gradients are those of `lean`, but for one thing: in a narrow dtype `do·o` carries
the rounding of o. Query and gain are put right in the same pass (in one launch). In a source's gradient it stays: about
|q| times the gradient's own rounding, where lean has it too.

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

from leadline.ops.depth_attention import kernels
from leadline.ops.depth_attention.lean import direction_of, read_lean, through_direction
from leadline.ops.kernels import as_rows, device_of, even_rows, padded, partial_rows, warps_for, wide_type
from leadline.ops.precision import no_autocast

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
    """The mix (..., D) and the sources, to be used from here on; see `leadline.ops.depth_attention.read_sources`."""
    if len(sources) == 1:
        return read_lean(sources, (), query, key_gain)
    with torch.no_grad():
        mix, *saved = read_forward(sources, direction_of(query, key_gain, sources[0]), eps)
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
    state = direction.new_empty(tokens, dim) if len(rows) > MOST_SOURCES else mix
    with device_of(mix):
        for first in range(0, len(rows) if tokens else 0, MOST_SOURCES):
            group = rows[first : first + MOST_SOURCES]
            form = _form(mix, len(group))._replace(EPS=eps, CONTINUED=first > 0)
            out = mix if first + len(group) == len(rows) else state
            kernels.forward_kernel[(triton.cdiv(tokens, TOKENS_A_PROGRAM),)](
                kernels.Inputs(_filled(group, form), direction.contiguous()),
                kernels.Results(state, out, root, score, lse),
                tokens,
                len(group),
                first,
                len(rows),
                FORM=form,
                num_warps=warps_for(form.BLOCK, FORWARD_BYTES_A_LANE // direction.element_size()),
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
    """Gradients of the sources, (k, ..., D), each with that of its later reads added, and of the direction, (D,)."""
    rows = [as_rows(source) for source in sources]
    given = [None if grad is None else as_rows(grad) for grad in handed]
    tokens, dim = rows[0].shape
    grads = mix.new_empty(len(sources), *mix.shape)
    programs, launches = partial_rows(tokens), triton.cdiv(len(rows), MOST_SOURCES)
    partial = direction.new_empty(launches, programs, dim)
    with device_of(mix):
        for launch in range(launches if tokens else 0):
            group = slice(launch * MOST_SOURCES, (launch + 1) * MOST_SOURCES)
            incoming = [own if grad is None else grad for own, grad in zip(grads[group], given[group], strict=True)]
            left = any(grad is not None for grad in given[group])
            form = _form(mix, len(incoming))._replace(HANDED=left, WHOLE=launches == 1)
            kernels.backward_kernel[(programs,)](
                kernels.Inputs(_filled(rows[group], form), direction.contiguous()),
                kernels.Kept(as_rows(mix), root, score, lse),
                kernels.Incoming(as_rows(upstream), _filled(incoming, form)),
                grads,
                partial[launch],
                tokens,
                len(incoming),
                group.start,
                len(rows),
                FORM=form,
                num_warps=warps_for(form.BLOCK, BACKWARD_BYTES_A_LANE // direction.element_size()),
            )
    return grads, partial.flatten(0, 1).sum(dim=0)


@read_backward.register_fake
def _(upstream: Tensor, mix: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return mix.new_empty(len(rest[3]), *mix.shape), torch.empty_like(rest[-1])


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
            direction = direction_of(query, key_gain, mix)
            grads, ddirection = read_backward(upstream, mix, root, score, lse, sources, handed, direction)
            dparameters = through_direction(ddirection, query, key_gain)
        return *dparameters, *nothing, *grads


def _form(mix: Tensor, count: int) -> kernels.Form:
    """What a kernel for so many sources of mix's dtype and width is compiled for."""
    dim, slots = mix.shape[-1], min(MOST_SLOTS, max(8, padded(count)))
    aligned = even_rows(dim, mix.dtype)
    return kernels.Form(dim, padded(dim), wide_type(mix.dtype), slots, triton.cdiv(count, slots), aligned)


def _filled(tensors: Sequence[Tensor], form: kernels.Form) -> tuple[Tensor, ...]:
    """As many as the tables hold: the last one repeated, which no kernel reads."""
    return (*tensors, *(tensors[-1],) * (form.SLOTS * form.TABLES - len(tensors)))
