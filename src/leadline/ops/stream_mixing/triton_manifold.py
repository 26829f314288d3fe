"""The width step of mHC and mHC-lite as two kernels: read and mix coefficients forward, all gradients backward.

A program takes a block of tokens. Forward loops over their rows, N·D wide, for the projections and the root mean
square; stores the projections; makes the coefficients from them; and loops over the rows a second time, from the last
columns to the first, for `h = Σ_i pre_i H_i`. Backward does likewise: first `dh·H_i`, then the coefficients' gradients,
then the streams' gradient, to which it adds what the write handed back. A program reads what it has stored itself, a
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
Saved for backward: the streams by reference, and k + 1 numbers a token: the projections and the root.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.errors import UsageError
from leadline.ops.kernels import device_of, padded, wide_type
from leadline.ops.precision import no_autocast, wide
from leadline.ops.stream_mixing.reference import permutations
from leadline.ops.stream_mixing.triton_hyper import Read
from leadline.ops.stream_mixing.triton_manifold_kernels import manifold_backward, manifold_forward
from leadline.ops.stream_mixing.triton_rows import (
    Tile,
    columns_for,
    exact_product,
    padded_side,
    rounded_product,
    unit_stride,
    weight_gradient,
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
        pre (T, N), h (T, D) in the streams' dtype, mixing (T, N, N), post (T, N), and the streams handed on.

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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """pre, h, mixing, post as `manifold_read`; projections (T, k) and roots (T)."""
    results = _forward_results(streams_TND, weight_kK, bias_k, scale_k, kind, iterations, eps)
    tokens, streams, dim = streams_TND.shape
    if tokens == 0:
        return results
    x_TND = unit_stride(streams_TND)
    tile = manifold_tile(streams, dim, x_TND.dtype, summed=True)
    with device_of(x_TND):
        manifold_forward[(triton.cdiv(tokens, tile.rows),)](
            x_TND,
            weight_kK,
            bias_k.contiguous(),
            scale_k.contiguous(),
            _table(streams, bias_k) if kind == "birkhoff" else bias_k,
            *results,
            tokens,
            iterations,
            x_TND.stride(0),
            x_TND.stride(1),
            *weight_kK.stride(),
            EPS=eps,
            **_sizes(streams, dim, kind, iterations, tile, MOST_COUNTS),
            WIDE=wide_type(x_TND.dtype),
            PRECISION=exact_product(x_TND.dtype),
            num_warps=tile.warps,
        )
    return results


@forward.register_fake
def _forward_results(
    streams_TND: Tensor, weight_kK: Tensor, bias_k: Tensor, scale_k: Tensor, kind: str, iterations: int, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    tokens, streams, dim = streams_TND.shape
    made = weight_kK.new_empty
    pre_TN, post_TN = (made(tokens, streams) for _ in range(2))
    h_TD, mixing_TNN = streams_TND.new_empty(tokens, dim), made(tokens, streams, streams)
    return pre_TN, h_TD, mixing_TNN, post_TN, made(tokens, weight_kK.shape[0]), made(tokens)


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
    """Gradients of the streams, with what is handed in added, and of weight, bias and scale."""
    tokens, streams, dim = streams_TND.shape
    x_TND, dh_TD = unit_stride(streams_TND), unit_stride(dh_TD)
    grad_TND = streams_TND.new_empty(tokens, streams, dim)
    du_Tk, given_Tk = (torch.empty_like(y_Tk) for _ in range(2))
    if tokens > 0:
        handed = grad_TND if handed_TND is None else unit_stride(handed_TND)
        tile = manifold_tile(streams, dim, x_TND.dtype, summed=False)
        with device_of(x_TND):
            manifold_backward[(triton.cdiv(tokens, tile.rows),)](
                dpre_TN.contiguous(),
                dh_TD,
                dmixing_TNN.contiguous(),
                dpost_TN.contiguous(),
                handed,
                x_TND,
                weight_kK,
                bias_k.contiguous(),
                scale_k.contiguous(),
                _table(streams, bias_k) if kind == "birkhoff" else bias_k,
                y_Tk,
                root_T,
                grad_TND,
                du_Tk,
                given_Tk,
                tokens,
                iterations,
                dh_TD.stride(0),
                handed.stride(0),
                handed.stride(1),
                x_TND.stride(0),
                x_TND.stride(1),
                *weight_kK.stride(),
                **_sizes(streams, dim, kind, iterations, tile, MOST_COUNTS_BACK),
                STEPS=padded(iterations),
                HANDED=handed_TND is not None,
                WIDE=wide_type(x_TND.dtype),
                PRECISION=rounded_product(x_TND.dtype),
                num_warps=tile.warps,
            )
    dweight_kK = weight_gradient(x_TND, given_Tk, per_stream=False)
    return grad_TND, dweight_kK, du_Tk.sum(0), (du_Tk * y_Tk).sum(0)


@backward.register_fake
def _backward_results(
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
    dx, dweight, dbias, dscale = (t.new_empty(t.shape) for t in (streams_TND, weight_kK, bias_k, scale_k))
    return dx, dweight, dbias, dscale


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
    def backward(
        ctx: Any,
        dpre_TN: Tensor | None,
        dh_TD: Tensor | None,
        dmixing_TNN: Tensor | None,
        dpost_TN: Tensor | None,
        handed_TND: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        streams_TND, *parameters, y_Tk, root_T = ctx.saved_tensors
        tokens, streams, dim = streams_TND.shape
        with no_autocast(streams_TND):
            grads = backward(
                y_Tk.new_zeros(tokens, streams) if dpre_TN is None else dpre_TN,
                streams_TND.new_zeros(tokens, dim) if dh_TD is None else dh_TD,
                y_Tk.new_zeros(tokens, streams, streams) if dmixing_TNN is None else dmixing_TNN,
                y_Tk.new_zeros(tokens, streams) if dpost_TN is None else dpost_TN,
                handed_TND,
                streams_TND,
                *parameters,
                *ctx.mixing,
                y_Tk,
                root_T,
            )
        return *grads, None, None, None


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


def _sizes(streams: int, dim: int, kind: str, iterations: int, tile: Tile, most_counts: int) -> dict[str, Any]:
    """What both kernels are compiled for."""
    numbers = streams**2 if kind == "sinkhorn" else math.factorial(streams)
    side = padded(streams)
    tokens_at_once = max(1, min(tile.rows, MOST_HELD // (side * max(side, padded(iterations)))))
    return {
        "STREAMS": streams,
        "DIM": dim,
        "NUMBERS": numbers,
        "SINKHORN": kind == "sinkhorn",
        "TOKENS": tile.rows,
        "AT_ONCE": tokens_at_once,
        "SIDE": side,
        "ORDERS": padded(numbers),
        "COUNTS": min(most_counts, padded_side(2 * streams + numbers)),
        "COLUMNS": tile.columns,
    }


_tables: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}


def _table(streams: int, like: Tensor) -> Tensor:
    """The permutation matrices, (N², N!), made once for a device and dtype."""
    key = (streams, like.device, like.dtype)
    if key not in _tables:
        _tables[key] = permutations(streams, like.device, like.dtype).contiguous()
    return _tables[key]
