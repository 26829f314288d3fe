"""The width step of Hyper-Connections as two kernels: read and mix coefficients forward, all gradients backward.

A program takes a few tokens. Forward loops over the width of their rows for the projections and the root mean square,
makes the coefficients, and loops over the same rows a second time, from the last columns to the first, for
`h = Σ_i pre_i H_i`: that second look finds them in the cache. Backward does likewise: first `dh·H_i`, then the streams'
gradient, to which it adds what came back from the write. The projections' weight takes its gradient in a kernel of its
own.

Elements moved, for T tokens, N streams, D width, k = N + 2, P programs, C steps of columns over the width, S splits of
the rows. "Again" is from the cache; "handed" is nothing where no gradient came in; g is dh:

| | read | written |
|---|---|---|
| forward | T N D, again T N D; P k (D + 1); T N (k + C) | T D; T N (2k + 1) |
| backward | T N D, handed T N D, g T D; again T N D, g T D (2N − 1); P k (D + 1); T N (2k + 2) | T N D; 2 T N k |
| weight | T N D; C T N k | S k D in parts |

Saved for backward: the streams by reference, and (k + 1) N scalars a token: the projections and the inverse RMS.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.kernels import Tile, device_of, padded, wide_type
from leadline.ops.precision import no_autocast, wide
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
    tanh,
    unit_stride,
    weight_gradient,
    zeros_for,
)

Read = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class _Form(NamedTuple):
    """What a kernel is compiled for: sizes, a program's tokens and tile, the arithmetic, and what is there."""

    STREAMS: int
    DIM: int
    TOKENS: int
    ROWS: int
    TOKEN_BLOCK: int
    COUNTS: int
    COLUMNS: int
    WIDE: Any
    PRECISION: str
    EPS: float = 0.0
    HANDED: bool = False


_Inputs = namedtuple("_Inputs", "streams weight static scale stride_t stride_n")


def hyper_read(streams_TND: Tensor, weight_kD: Tensor, static_kN: Tensor, scale_k: Tensor, eps: float) -> Read:
    """See `leadline.ops.stream_mixing.hyper_read`; any strides.

    Returns:
        pre (T, N), h (T, D) in the streams' dtype, mixing (T, N, N), post (T, N), and the streams, to be used from here
        on. Coefficients are float32, or float64 for float64.
    """
    dtype = wide(streams_TND.dtype)
    weight_kD, static_kN, scale_k = weight_kD.to(dtype), static_kN.to(dtype), scale_k.to(dtype)
    if torch.is_grad_enabled():
        result: Read = _HyperRead.apply(streams_TND, weight_kD, static_kN, scale_k, eps)
        return result
    return (*forward(streams_TND, weight_kD, static_kN, scale_k, eps)[:4], streams_TND)


def _form(streams_TND: Tensor, summed: bool, **more: Any) -> tuple[_Form, int]:
    """What a kernel is compiled for, and its warps."""
    _, streams, dim = streams_TND.shape
    tile = hyper_tile(streams, dim, streams_TND.dtype, summed)
    tokens = tile.rows // streams
    form = _Form(
        STREAMS=streams,
        DIM=dim,
        TOKENS=tokens,
        ROWS=tile.rows,
        TOKEN_BLOCK=padded(tokens),
        COUNTS=padded_side(streams + 2),
        COLUMNS=tile.columns,
        WIDE=wide_type(streams_TND.dtype),
        PRECISION=(exact_product if summed else rounded_product)(streams_TND.dtype),
        **more,
    )
    return form, tile.warps


@torch.library.custom_op("leadline::hyper_read", mutates_args=())
def forward(streams_TND: Tensor, weight_kD: Tensor, static_kN: Tensor, scale_k: Tensor, eps: float) -> Made:
    """pre, h, mixing, post as `hyper_read`; projections before the tanh (T, N, k) and inverse RMS (T, N)."""
    results = _forward_results(streams_TND, weight_kD)
    x_TND, tokens = unit_stride(streams_TND), streams_TND.shape[0]
    if tokens > 0:
        form, warps = _form(x_TND, summed=True, EPS=eps)
        parameters = (weight_kD.contiguous(), static_kN.contiguous(), scale_k.contiguous())
        with device_of(x_TND):
            _hyper_forward[(triton.cdiv(tokens, form.TOKENS),)](
                _Inputs(x_TND, *parameters, *x_TND.stride()[:2]), Results(*results), tokens, FORM=form, num_warps=warps
            )
    return results


@forward.register_fake
def _forward_results(streams_TND: Tensor, weight_kD: Tensor, *rest: Any) -> Made:
    tokens, streams, _ = streams_TND.shape
    return results_for(streams_TND, weight_kD, (tokens, streams, streams + 2), (tokens, streams))


@torch.library.custom_op("leadline::hyper_read_backward", mutates_args=())
def backward(
    dpre_TN: Tensor,
    dh_TD: Tensor,
    dmixing_TNN: Tensor,
    dpost_TN: Tensor,
    handed_TND: Tensor | None,
    streams_TND: Tensor,
    weight_kD: Tensor,
    static_kN: Tensor,
    scale_k: Tensor,
    z_TNk: Tensor,
    root_TN: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the streams, with that of their later uses added, and of weight, static and scale."""
    x_TND, dh_TD = unit_stride(streams_TND), unit_stride(dh_TD)
    grad_TND, dc_TNk, given_TNk = (
        streams_TND.new_empty(streams_TND.shape),
        z_TNk.new_empty(z_TNk.shape),
        z_TNk.new_empty(z_TNk.shape),
    )
    tokens = len(x_TND)
    if tokens > 0:
        handed = grad_TND if handed_TND is None else unit_stride(handed_TND)
        form, warps = _form(x_TND, summed=False, HANDED=handed_TND is not None)
        parameters = (weight_kD.contiguous(), static_kN.contiguous(), scale_k.contiguous())
        upstream = (dpre_TN.contiguous(), dh_TD, dmixing_TNN.contiguous(), dpost_TN.contiguous(), handed)
        with device_of(x_TND):
            _hyper_backward[(triton.cdiv(tokens, form.TOKENS),)](
                Incoming(*upstream, z_TNk, root_TN, dh_TD.stride(0), *handed.stride()[:2]),
                _Inputs(x_TND, *parameters, *x_TND.stride()[:2]),
                Grads(grad_TND, dc_TNk, given_TNk),
                tokens,
                FORM=form,
                num_warps=warps,
            )
    dweight_kD = weight_gradient(x_TND, given_TNk.flatten(0, 1), per_stream=True)
    dscale_k = (dc_TNk * torch.tanh(z_TNk)).sum((0, 1))
    return grad_TND, dweight_kD, dc_TNk.sum(0).t().contiguous(), dscale_k


@backward.register_fake
def _(dpre: Tensor, dh: Tensor, dmixing: Tensor, dpost: Tensor, handed: Tensor | None, *leaves: Tensor) -> Any:
    return tuple(leaf.new_empty(leaf.shape) for leaf in leaves[:4])


class _HyperRead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, streams_TND: Tensor, weight_kD: Tensor, static_kN: Tensor, scale_k: Tensor, eps: float
    ) -> tuple[Tensor, ...]:
        *coefficients, z_TNk, root_TN = forward(streams_TND, weight_kD, static_kN, scale_k, eps)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(streams_TND, weight_kD, static_kN, scale_k, z_TNk, root_TN)
        return *coefficients, streams_TND.view_as(streams_TND)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        streams_TND, *_, root_TN = saved = ctx.saved_tensors
        with no_autocast(streams_TND):
            return *backward(*zeros_for(given, streams_TND, root_TN), *saved), None


def hyper_tile(streams: int, dim: int, dtype: torch.dtype, summed: bool) -> Tile:
    """The launch shape of a kernel. A program's tokens are as many as have all their streams among its rows.

    Args:
        summed: whether products sum over the width, so that a tile's columns lie in registers, split or widened.
    """
    narrow = wide(dtype) != dtype
    rows, counts = padded_side(streams), padded_side(streams + 2)
    if narrow and counts == 16 and dim <= 2048:
        rows = 32
    most = 128 if narrow and not summed else 64
    columns = 32 if rows > 32 else most if 16 in (rows, counts) else most // 2
    return Tile(rows, columns_for(dim, columns), 8 if rows > 32 and not summed else 4)


@triton.jit(do_not_specialize=["tokens"])
def _hyper_forward(given, made, tokens, FORM: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * FORM.TOKENS
    row = tl.arange(0, FORM.ROWS)
    token, stream = first + row // FORM.STREAMS, row % FORM.STREAMS
    live = (row < FORM.TOKENS * FORM.STREAMS) & (token < tokens)
    k = tl.arange(0, FORM.COUNTS)
    known = k < FORM.STREAMS + 2
    column = tl.arange(0, FORM.COLUMNS)
    start = token * given.stride_t + stream * given.stride_n
    z = tl.full([FORM.ROWS, FORM.COUNTS], 0, FORM.WIDE)
    square = tl.full([FORM.ROWS], 0, FORM.WIDE)
    for at in range(0, FORM.DIM, FORM.COLUMNS):
        c = at + column
        inside = c < FORM.DIM
        x = tl.load(given.streams + start[:, None] + c[None, :], mask=live[:, None] & inside[None, :], other=0.0).to(
            FORM.WIDE
        )
        w = tl.load(given.weight + k[None, :] * FORM.DIM + c[:, None], mask=known[None, :] & inside[:, None], other=0.0)
        z = tl.dot(x, w, z, input_precision=FORM.PRECISION, out_dtype=FORM.WIDE)
        square += tl.sum(x * x, axis=1)
    root = tl.rsqrt(square / FORM.DIM + FORM.EPS)
    z *= root[:, None]
    bound = tl.load(
        given.static + k[None, :] * FORM.STREAMS + stream[:, None], mask=known[None, :] & live[:, None], other=0.0
    )
    s = tl.load(given.scale + k, mask=known, other=0.0)
    value = bound + s[None, :] * tanh(z)

    entry = token * FORM.STREAMS + stream
    tl.store(made.roots + entry, root, mask=live)
    tl.store(made.projected + entry[:, None] * (FORM.STREAMS + 2) + k[None, :], z, mask=live[:, None] & known[None, :])
    many = tl.broadcast_to(entry[:, None], [FORM.ROWS, FORM.COUNTS])
    tl.store(made.pre + many, value, mask=live[:, None] & (k == 0)[None, :])
    tl.store(made.post + many, value, mask=live[:, None] & (k == FORM.STREAMS + 1)[None, :])
    written = (token * FORM.STREAMS)[:, None] + (k - 1)[None, :]
    mixed = (k > 0) & (k <= FORM.STREAMS)
    tl.store(made.mixing + written * FORM.STREAMS + stream[:, None], value, mask=live[:, None] & mixed[None, :])
    tl.debug_barrier()

    token = first + tl.arange(0, FORM.TOKEN_BLOCK)
    live = (tl.arange(0, FORM.TOKEN_BLOCK) < FORM.TOKENS) & (token < tokens)
    for step in range(tl.cdiv(FORM.DIM, FORM.COLUMNS)):
        c = (tl.cdiv(FORM.DIM, FORM.COLUMNS) - 1 - step) * FORM.COLUMNS + column
        inside = live[:, None] & (c < FORM.DIM)[None, :]
        total = tl.full([FORM.TOKEN_BLOCK, FORM.COLUMNS], 0, FORM.WIDE)
        for i in range(FORM.STREAMS):
            p = tl.load(made.pre + token * FORM.STREAMS + i, mask=live, other=0.0)
            x = tl.load(
                given.streams + (token * given.stride_t + i * given.stride_n)[:, None] + c[None, :],
                mask=inside,
                other=0.0,
            )
            total += p[:, None] * x.to(FORM.WIDE)
        tl.store(made.h + token[:, None] * FORM.DIM + c[None, :], total.to(made.h.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def _hyper_backward(incoming, given, grads, tokens, FORM: tl.constexpr):
    row = tl.arange(0, FORM.ROWS)
    token, stream = tl.program_id(0).to(tl.int64) * FORM.TOKENS + row // FORM.STREAMS, row % FORM.STREAMS
    live = (row < FORM.TOKENS * FORM.STREAMS) & (token < tokens)
    k = tl.arange(0, FORM.COUNTS)
    known = k < FORM.STREAMS + 2
    column = tl.arange(0, FORM.COLUMNS)
    start = token * given.stride_t + stream * given.stride_n
    along = tl.full([FORM.ROWS], 0, FORM.WIDE)
    for at in range(0, FORM.DIM, FORM.COLUMNS):
        c = at + column
        inside = live[:, None] & (c < FORM.DIM)[None, :]
        x = tl.load(given.streams + start[:, None] + c[None, :], mask=inside, other=0.0).to(FORM.WIDE)
        g = tl.load(incoming.dh + (token * incoming.dh_stride_t)[:, None] + c[None, :], mask=inside, other=0.0).to(
            FORM.WIDE
        )
        along += tl.sum(x * g, axis=1)

    entry = token * FORM.STREAMS + stream
    many = tl.broadcast_to(entry[:, None], [FORM.ROWS, FORM.COUNTS])
    written = (token * FORM.STREAMS)[:, None] + (k - 1)[None, :]
    is_pre, is_post, mixed = k == 0, k == FORM.STREAMS + 1, (k > 0) & (k <= FORM.STREAMS)
    dvalue = tl.load(incoming.dpre + many, mask=live[:, None] & is_pre[None, :], other=0.0)
    dvalue += tl.load(incoming.dpost + many, mask=live[:, None] & is_post[None, :], other=0.0)
    dvalue += tl.load(
        incoming.dmixing + written * FORM.STREAMS + stream[:, None], mask=live[:, None] & mixed[None, :], other=0.0
    )
    dvalue += tl.where(is_pre[None, :], along[:, None], 0.0)
    cell = entry[:, None] * (FORM.STREAMS + 2) + k[None, :]
    listed = live[:, None] & known[None, :]
    z = tl.load(incoming.projected + cell, mask=listed, other=0.0)
    y = tanh(z)
    s = tl.load(given.scale + k, mask=known, other=0.0)
    root = tl.load(incoming.roots + entry, mask=live, other=0.0)
    dz = dvalue * s[None, :] * (1 - y * y)
    back = tl.sum(dz * z, axis=1) * root * root / FORM.DIM
    dz *= root[:, None]
    tl.store(grads.made + cell, dvalue, mask=listed)
    tl.store(grads.slopes + cell, dz, mask=listed)
    bound = tl.load(given.static + stream, mask=live, other=0.0)
    p = bound + tl.sum(tl.where(is_pre[None, :], s[None, :] * y, 0.0), axis=1)

    for step in range(tl.cdiv(FORM.DIM, FORM.COLUMNS)):
        c = (tl.cdiv(FORM.DIM, FORM.COLUMNS) - 1 - step) * FORM.COLUMNS + column
        inside = live[:, None] & (c < FORM.DIM)[None, :]
        w = tl.load(
            given.weight + k[:, None] * FORM.DIM + c[None, :], mask=known[:, None] & (c < FORM.DIM)[None, :], other=0.0
        )
        total = tl.dot(dz, w, input_precision=FORM.PRECISION, out_dtype=FORM.WIDE)
        x = tl.load(given.streams + start[:, None] + c[None, :], mask=inside, other=0.0).to(FORM.WIDE)
        g = tl.load(incoming.dh + (token * incoming.dh_stride_t)[:, None] + c[None, :], mask=inside, other=0.0).to(
            FORM.WIDE
        )
        total += p[:, None] * g - back[:, None] * x
        if FORM.HANDED:
            from_write = (token * incoming.handed_stride_t + stream * incoming.handed_stride_n)[:, None] + c[None, :]
            total += tl.load(incoming.handed + from_write, mask=inside, other=0.0).to(FORM.WIDE)
        tl.store(
            grads.streams + entry[:, None] * FORM.DIM + c[None, :],
            total.to(grads.streams.dtype.element_ty),
            mask=inside,
        )
