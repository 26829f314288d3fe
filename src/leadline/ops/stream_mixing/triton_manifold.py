"""The width step of mHC and mHC-lite as two kernels: read and mix coefficients forward, all gradients backward.

A program takes a block of tokens. Forward loops over their rows, N·D wide, for the projections and the root mean
square; stores the projections; makes the coefficients from them; and loops over the rows a second time, from the last
columns to the first, for `h = Σ_i pre_i H_i`. Backward does likewise: first `dh·H_i`, then the coefficients' gradients,
then the streams' gradient, to which it adds what came back from the write. A program reads what it has stored itself, a
few numbers a token, after a barrier. The second look finds the rows in the cache while those of all programs at work
fit there; programs take fewer tokens where a row is wide. The projections' weight takes its gradient in a kernel of its
own.

Elements moved, for T tokens, N streams, D width, k = 2N + R projections (R is N² or N!), P programs, C steps of columns
over D, S splits of the tokens; k is taken in F blocks of MOST_COUNTS forward, in B of MOST_COUNTS_BACK backward.
"Again" is from the cache; "handed" is nothing where no gradient came in; g is dh. What each program reads of biases,
scales and permutations is left out:

| | read | written |
|---|---|---|
| forward | T N D, again F T N D; P k N D; T (k + C N) | T (D + N² + 2N + k + 1) |
| backward | T N D, handed T N D, g T D; again T N D, g T N D; P k N D; T (3k + 2N + N² + C N + 1) | T N D; 2 T k |
| weight | T N D, again (B − 1) T N D; C N T k | S k N D in parts |

Where B > 1, backward reads C N T k more: the projections' gradients, a block at a time.
Saved for backward: the streams by reference, and k + 1 scalars a token: the projections and the inverse RMS.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.errors import UsageError
from leadline.ops.kernels import Tile, device_of, padded, wide_type
from leadline.ops.precision import no_autocast, wide
from leadline.ops.stream_mixing.lean import permutation_table
from leadline.ops.stream_mixing.triton_hyper import Read
from leadline.ops.stream_mixing.triton_manifold_kernels import (
    Form,
    Inputs,
    manifold_backward,
    manifold_forward,
)
from leadline.ops.stream_mixing.triton_rows import (
    Grads,
    Incoming,
    Made,
    Results,
    columns_for,
    exact_product,
    padded_side,
    results_for,
    rounded_product,
    unit_stride,
    weight_gradient,
    zeros_for,
)

MOST_PERMUTED = 5
"""The most streams whose permutations are all listed."""
MOST_COUNTS, MOST_COUNTS_BACK = 128, 64
"""Projections that are summed at a time, and whose gradients are."""
MOST_HELD = 1024
"""Numbers of Sinkhorn's history, or of its matrices, that a program works on at a time."""


def manifold_read(
    streams_TND: Tensor,
    weight_kK: Tensor,
    bias_k: Tensor,
    scale_k: Tensor,
    kind: Literal["sinkhorn", "birkhoff"],
    iterations: int,
    eps: float,
) -> Read:
    """See `leadline.ops.stream_mixing.manifold_read`.

    Returns:
        pre (T, N), h (T, D) in the streams' dtype, mixing (T, N, N), post (T, N), and the streams, to be used from
        here on.

    Raises:
        UsageError: a kind, a number of streams or of iterations that does not work.
    """
    streams = streams_TND.shape[1]
    if kind not in ("sinkhorn", "birkhoff"):
        raise UsageError(f"mixing={kind!r} is unknown; sinkhorn and birkhoff work")
    if kind == "birkhoff" and streams > MOST_PERMUTED:
        raise UsageError(f"streams={streams}: mixing='birkhoff' takes at most {MOST_PERMUTED}, 'sinkhorn' any number")
    if iterations < 1:
        raise UsageError(f"iterations={iterations} must be at least 1")
    dtype = wide(streams_TND.dtype)
    weight_kK, bias_k, scale_k = weight_kK.to(dtype), bias_k.to(dtype), scale_k.to(dtype)
    if torch.is_grad_enabled():
        result: Read = _ManifoldRead.apply(streams_TND, weight_kK, bias_k, scale_k, kind, iterations, eps)
        return result
    return (*forward(streams_TND, weight_kK, bias_k, scale_k, kind, iterations, eps)[:4], streams_TND)


@torch.library.custom_op("leadline::manifold_read", mutates_args=())
def forward(
    streams_TND: Tensor, weight_kK: Tensor, bias_k: Tensor, scale_k: Tensor, kind: str, iterations: int, eps: float
) -> Made:
    """pre, h, mixing, post as `manifold_read`; projections (T, k) and inverse RMS (T)."""
    results = _forward_results(streams_TND, weight_kK)
    x_TND, tokens = unit_stride(streams_TND), len(streams_TND)
    if tokens > 0:
        form, warps = _form(x_TND, kind, iterations, summed=True, EPS=eps)
        with device_of(x_TND):
            manifold_forward[(triton.cdiv(tokens, form.TOKENS),)](
                _inputs(x_TND, weight_kK, bias_k, scale_k, kind),
                Results(*results),
                tokens,
                iterations,
                FORM=form,
                num_warps=warps,
            )
    return results


@forward.register_fake
def _forward_results(streams_TND: Tensor, weight_kK: Tensor, *_: Any) -> Made:
    tokens = streams_TND.shape[0]
    return results_for(streams_TND, weight_kK, (tokens, weight_kK.shape[0]), (tokens,))


@torch.library.custom_op("leadline::manifold_read_backward", mutates_args=())
def backward(
    dpre_TN: Tensor,
    dh_TD: Tensor,
    dmixing_TNN: Tensor,
    dpost_TN: Tensor,
    handed_TND: Tensor | None,
    streams_TND: Tensor,
    weight_kK: Tensor,
    bias_k: Tensor,
    scale_k: Tensor,
    kind: str,
    iterations: int,
    y_Tk: Tensor,
    root_T: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the streams, with that of their later uses added, and of weight, bias and scale."""
    x_TND, dh_TD = unit_stride(streams_TND), unit_stride(dh_TD)
    grad_TND, du_Tk, given_Tk = streams_TND.new_empty(streams_TND.shape), torch.empty_like(y_Tk), torch.empty_like(y_Tk)
    tokens = len(x_TND)
    if tokens > 0:
        handed = grad_TND if handed_TND is None else unit_stride(handed_TND)
        form, warps = _form(x_TND, kind, iterations, summed=False, HANDED=handed_TND is not None)
        upstream = (dpre_TN.contiguous(), dh_TD, dmixing_TNN.contiguous(), dpost_TN.contiguous(), handed)
        with device_of(x_TND):
            manifold_backward[(triton.cdiv(tokens, form.TOKENS),)](
                Incoming(*upstream, y_Tk, root_T, dh_TD.stride(0), *handed.stride()[:2]),
                _inputs(x_TND, weight_kK, bias_k, scale_k, kind),
                Grads(grad_TND, du_Tk, given_Tk),
                tokens,
                iterations,
                FORM=form,
                num_warps=warps,
            )
    dweight_kK = weight_gradient(x_TND, given_Tk, per_stream=False)
    return grad_TND, dweight_kK, du_Tk.sum(0), (du_Tk * y_Tk).sum(0)


@backward.register_fake
def _(dpre: Tensor, dh: Tensor, dmixing: Tensor, dpost: Tensor, handed: Tensor | None, *leaves: Any) -> Any:
    return tuple(leaf.new_empty(leaf.shape) for leaf in leaves[:4])


class _ManifoldRead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        streams_TND: Tensor,
        weight_kK: Tensor,
        bias_k: Tensor,
        scale_k: Tensor,
        kind: str,
        iterations: int,
        eps: float,
    ) -> tuple[Tensor, ...]:
        *read, y_Tk, root_T = forward(streams_TND, weight_kK, bias_k, scale_k, kind, iterations, eps)
        ctx.set_materialize_grads(False)
        ctx.mixing = (kind, iterations)
        ctx.save_for_backward(streams_TND, weight_kK, bias_k, scale_k, y_Tk, root_T)
        return *read, streams_TND.view_as(streams_TND)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        streams_TND, *parameters, y_Tk, root_T = ctx.saved_tensors
        with no_autocast(streams_TND):
            upstream = zeros_for(given, streams_TND, y_Tk)
            return *backward(*upstream, streams_TND, *parameters, *ctx.mixing, y_Tk, root_T), None, None, None


def manifold_tile(streams: int, dim: int, dtype: torch.dtype, summed: bool) -> Tile:
    """The launch shape of a kernel: tokens, columns of a step, warps.

    Args:
        summed: whether products sum over the width, so that a tile's columns lie in registers, split or widened.
    """
    narrow = wide(dtype) != dtype
    few = streams <= 4
    tokens = 32 if narrow and few and streams * dim <= 4096 else 16
    warps = 4 if streams <= 16 else 8
    if summed:
        return Tile(tokens, columns_for(dim, 64 if few and tokens == 16 and narrow else 32), warps)
    return Tile(tokens, columns_for(dim, 64 if few else 32), warps)


def _form(streams_TND: Tensor, kind: str, iterations: int, summed: bool, **more: Any) -> tuple[Form, int]:
    """What a kernel is compiled for, and its warps."""
    _, streams, dim = streams_TND.shape
    tile = manifold_tile(streams, dim, streams_TND.dtype, summed)
    numbers, side = streams**2 if kind == "sinkhorn" else math.factorial(streams), padded(streams)
    form = Form(
        STREAMS=streams,
        DIM=dim,
        NUMBERS=numbers,
        COUNT=2 * streams + numbers,
        SINKHORN=kind == "sinkhorn",
        TOKENS=tile.rows,
        AT_ONCE=max(1, min(tile.rows, MOST_HELD // (side * max(side, padded(iterations))))),
        SIDE=side,
        ORDERS=padded(numbers),
        COUNTS=min(MOST_COUNTS if summed else MOST_COUNTS_BACK, padded_side(2 * streams + numbers)),
        COLUMNS=tile.columns,
        STEPS=padded(iterations),
        WIDE=wide_type(streams_TND.dtype),
        PRECISION=(exact_product if summed else rounded_product)(streams_TND.dtype),
        **more,
    )
    return form, tile.warps


def _inputs(streams_TND: Tensor, weight_kK: Tensor, bias_k: Tensor, scale_k: Tensor, kind: str) -> Inputs:
    streams = streams_TND.shape[1]
    table = permutation_table(streams, bias_k.device, bias_k.dtype) if kind == "birkhoff" else bias_k
    strides = (*streams_TND.stride()[:2], *weight_kK.stride())
    return Inputs(streams_TND, weight_kK, bias_k.contiguous(), scale_k.contiguous(), table, *strides)
