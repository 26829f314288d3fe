"""The width step of Hyper-Connections as two kernels: read and mix coefficients forward, all gradients backward.

A program takes a few tokens. Forward loops over the width of their rows for the projections and the root mean square,
makes the coefficients, and loops over the same rows a second time, from the last columns to the first, for
`h = Σ_i pre_i H_i`: that second look finds them in the cache. Backward does likewise: first `dh·H_i`, then the streams'
gradient, to which it adds what the write handed back. The projections' weight takes its gradient in a kernel of its
own.

Elements moved, for T tokens, N streams, D width, k = N + 2, P programs, C steps of columns over the width, S splits of
the rows. "Again" is from the cache; "handed" is nothing where no gradient came in; g is dh:

| | read | written |
|---|---|---|
| forward | T N D, again T N D; P k (D + 1); T N (k + C) | T D; T N (2k + 1) |
| backward | T N D, handed T N D, g T D; again T N D, g T D (2N − 1); P k (D + 1); T N (2k + 2) | T N D; 2 T N k |
| weight | T N D; C T N k | S k D in parts |

Saved for backward: the streams by reference, and (k + 1) N numbers a token: the projections and the roots.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.kernels import device_of, padded, wide_type
from leadline.ops.precision import no_autocast, wide
from leadline.ops.stream_mixing.triton_rows import (
    Tile,
    columns_for,
    exact_product,
    padded_side,
    rounded_product,
    tanh,
    unit_stride,
    weight_gradient,
)

Read = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def hyper_read(streams_TND: Tensor, weight_kD: Tensor, static_kN: Tensor, scale_k: Tensor, eps: float) -> Read:
    """What a site reads, and the coefficients of its write (2409.19606).

    With `y_ki = tanh(weight_k · rms(H_i))`, `c_ki = static_ki + scale_k y_ki` and rows k = [pre, one for each column of
    the mixing, post]: `pre_i = c_0i`, `mixing_ji = c_(1+j)i`, `post_i = c_(N+1)i`, `h = Σ_i pre_i H_i`.

    Args:
        streams_TND: (T, N, D), any floating dtype, any strides.
        weight_kD, static_kN, scale_k: (N + 2, D), (N + 2, N), (N + 2).
        eps: in `rms(x) = x / sqrt(mean x² + eps)`.

    Returns:
        pre (T, N), h (T, D) in the streams' dtype, mixing (T, N, N), post (T, N), and the streams handed on.
        Coefficients are float32, or float64 for float64.
    """
    dtype = wide(streams_TND.dtype)
    weight_kD, static_kN, scale_k = weight_kD.to(dtype), static_kN.to(dtype), scale_k.to(dtype)
    if torch.is_grad_enabled():
        result: Read = _HyperRead.apply(streams_TND, weight_kD, static_kN, scale_k, eps)
        return result
    return (*forward(streams_TND, weight_kD, static_kN, scale_k, eps)[:4], streams_TND)


@torch.library.custom_op("leadline::hyper_read", mutates_args=())
def forward(
    streams_TND: Tensor, weight_kD: Tensor, static_kN: Tensor, scale_k: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """pre, h, mixing, post as `hyper_read`; projections before the tanh (T, N, k) and roots (T, N)."""
    results = _forward_results(streams_TND, weight_kD, static_kN, scale_k, eps)
    tokens, streams, dim = streams_TND.shape
    if tokens == 0:
        return results
    pre_TN, h_TD, mixing_TNN, post_TN, z_TNk, root_TN = results
    x_TND = unit_stride(streams_TND)
    tile = hyper_tile(streams, dim, x_TND.dtype, summed=True)
    each = tile.rows // streams
    with device_of(x_TND):
        _hyper_forward[(triton.cdiv(tokens, each),)](
            x_TND,
            weight_kD.contiguous(),
            static_kN.contiguous(),
            scale_k.contiguous(),
            pre_TN,
            h_TD,
            mixing_TNN,
            post_TN,
            z_TNk,
            root_TN,
            tokens,
            x_TND.stride(0),
            x_TND.stride(1),
            EPS=eps,
            STREAMS=streams,
            DIM=dim,
            TOKENS=each,
            ROWS=tile.rows,
            TOKEN_BLOCK=padded(each),
            COUNTS=padded_side(streams + 2),
            COLUMNS=tile.columns,
            WIDE=wide_type(x_TND.dtype),
            PRECISION=exact_product(x_TND.dtype),
            num_warps=tile.warps,
        )
    return results


@forward.register_fake
def _forward_results(
    streams_TND: Tensor, weight_kD: Tensor, static_kN: Tensor, scale_k: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    tokens, streams, dim = streams_TND.shape
    made = weight_kD.new_empty
    pre_TN, post_TN, root_TN = (made(tokens, streams) for _ in range(3))
    h_TD, mixing_TNN = streams_TND.new_empty(tokens, dim), made(tokens, streams, streams)
    return pre_TN, h_TD, mixing_TNN, post_TN, made(tokens, streams, streams + 2), root_TN


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
    """Gradients of the streams, with what is handed in added, and of weight, static and scale."""
    tokens, streams, dim = streams_TND.shape
    count = streams + 2
    x_TND, dh_TD = unit_stride(streams_TND), unit_stride(dh_TD)
    grad_TND = streams_TND.new_empty(tokens, streams, dim)
    dc_TNk, given_TNk = (z_TNk.new_empty(tokens, streams, count) for _ in range(2))
    if tokens > 0:
        handed = grad_TND if handed_TND is None else unit_stride(handed_TND)
        tile = hyper_tile(streams, dim, x_TND.dtype, summed=False)
        each = tile.rows // streams
        with device_of(x_TND):
            _hyper_backward[(triton.cdiv(tokens, each),)](
                dpre_TN.contiguous(),
                dh_TD,
                dmixing_TNN.contiguous(),
                dpost_TN.contiguous(),
                handed,
                x_TND,
                weight_kD.contiguous(),
                static_kN.contiguous(),
                scale_k.contiguous(),
                z_TNk,
                root_TN,
                grad_TND,
                dc_TNk,
                given_TNk,
                tokens,
                dh_TD.stride(0),
                handed.stride(0),
                handed.stride(1),
                x_TND.stride(0),
                x_TND.stride(1),
                STREAMS=streams,
                DIM=dim,
                TOKENS=each,
                ROWS=tile.rows,
                COUNTS=padded_side(count),
                COLUMNS=tile.columns,
                HANDED=handed_TND is not None,
                WIDE=wide_type(x_TND.dtype),
                PRECISION=rounded_product(x_TND.dtype),
                num_warps=tile.warps,
            )
    dweight_kD = weight_gradient(x_TND, given_TNk.view(-1, count), per_stream=True)
    dscale_k = (dc_TNk * torch.tanh(z_TNk)).sum((0, 1))
    return grad_TND, dweight_kD, dc_TNk.sum(0).t().contiguous(), dscale_k


@backward.register_fake
def _backward_results(
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
    dx, dweight, dstatic, dscale = (t.new_empty(t.shape) for t in (streams_TND, weight_kD, static_kN, scale_k))
    return dx, dweight, dstatic, dscale


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
    def backward(
        ctx: Any,
        dpre_TN: Tensor | None,
        dh_TD: Tensor | None,
        dmixing_TNN: Tensor | None,
        dpost_TN: Tensor | None,
        handed_TND: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        streams_TND, *parameters, z_TNk, root_TN = ctx.saved_tensors
        tokens, streams, dim = streams_TND.shape
        with no_autocast(streams_TND):
            grads = backward(
                root_TN.new_zeros(tokens, streams) if dpre_TN is None else dpre_TN,
                streams_TND.new_zeros(tokens, dim) if dh_TD is None else dh_TD,
                root_TN.new_zeros(tokens, streams, streams) if dmixing_TNN is None else dmixing_TNN,
                root_TN.new_zeros(tokens, streams) if dpost_TN is None else dpost_TN,
                handed_TND,
                streams_TND,
                *parameters,
                z_TNk,
                root_TN,
            )
        return *grads, None


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
def _hyper_forward(
    streams,
    weight,
    static,
    scale,
    pre,
    h,
    mixing,
    post,
    projected,
    roots,
    tokens,
    stride_t,
    stride_n,
    EPS: tl.constexpr,
    STREAMS: tl.constexpr,
    DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    TOKEN_BLOCK: tl.constexpr,
    COUNTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * TOKENS
    row = tl.arange(0, ROWS)
    token, stream = first + row // STREAMS, row % STREAMS
    live = (row < TOKENS * STREAMS) & (token < tokens)
    k = tl.arange(0, COUNTS)
    known = k < STREAMS + 2
    column = tl.arange(0, COLUMNS)
    start = token * stride_t + stream * stride_n
    z = tl.zeros([ROWS, COUNTS], WIDE)
    square = tl.zeros([ROWS], WIDE)
    for at in range(0, DIM, COLUMNS):
        c = at + column
        inside = c < DIM
        x = tl.load(streams + start[:, None] + c[None, :], mask=live[:, None] & inside[None, :], other=0.0).to(WIDE)
        w = tl.load(weight + k[None, :] * DIM + c[:, None], mask=known[None, :] & inside[:, None], other=0.0)
        z = tl.dot(x, w, z, input_precision=PRECISION, out_dtype=WIDE)
        square += tl.sum(x * x, axis=1)
    root = tl.rsqrt(square / DIM + EPS)
    z *= root[:, None]
    bound = tl.load(static + k[None, :] * STREAMS + stream[:, None], mask=known[None, :] & live[:, None], other=0.0)
    s = tl.load(scale + k, mask=known, other=0.0)
    value = bound + s[None, :] * tanh(z)

    entry = token * STREAMS + stream
    tl.store(roots + entry, root, mask=live)
    tl.store(projected + entry[:, None] * (STREAMS + 2) + k[None, :], z, mask=live[:, None] & known[None, :])
    many = tl.broadcast_to(entry[:, None], [ROWS, COUNTS])
    tl.store(pre + many, value, mask=live[:, None] & (k == 0)[None, :])
    tl.store(post + many, value, mask=live[:, None] & (k == STREAMS + 1)[None, :])
    written = (token * STREAMS)[:, None] + (k - 1)[None, :]
    mixed = (k > 0) & (k <= STREAMS)
    tl.store(mixing + written * STREAMS + stream[:, None], value, mask=live[:, None] & mixed[None, :])
    tl.debug_barrier()

    token = first + tl.arange(0, TOKEN_BLOCK)
    live = (tl.arange(0, TOKEN_BLOCK) < TOKENS) & (token < tokens)
    for step in range(tl.cdiv(DIM, COLUMNS)):
        c = (tl.cdiv(DIM, COLUMNS) - 1 - step) * COLUMNS + column
        inside = live[:, None] & (c < DIM)[None, :]
        total = tl.zeros([TOKEN_BLOCK, COLUMNS], WIDE)
        for i in range(STREAMS):
            p = tl.load(pre + token * STREAMS + i, mask=live, other=0.0)
            x = tl.load(streams + (token * stride_t + i * stride_n)[:, None] + c[None, :], mask=inside, other=0.0)
            total += p[:, None] * x.to(WIDE)
        tl.store(h + token[:, None] * DIM + c[None, :], total.to(h.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def _hyper_backward(
    dpre,
    dh,
    dmixing,
    dpost,
    handed,
    streams,
    weight,
    static,
    scale,
    projected,
    roots,
    grad,
    dvalues,
    given,
    tokens,
    dh_stride_t,
    handed_stride_t,
    handed_stride_n,
    stride_t,
    stride_n,
    STREAMS: tl.constexpr,
    DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COUNTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HANDED: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row = tl.arange(0, ROWS)
    token, stream = tl.program_id(0).to(tl.int64) * TOKENS + row // STREAMS, row % STREAMS
    live = (row < TOKENS * STREAMS) & (token < tokens)
    k = tl.arange(0, COUNTS)
    known = k < STREAMS + 2
    column = tl.arange(0, COLUMNS)
    start = token * stride_t + stream * stride_n
    along = tl.zeros([ROWS], WIDE)
    for at in range(0, DIM, COLUMNS):
        c = at + column
        inside = live[:, None] & (c < DIM)[None, :]
        x = tl.load(streams + start[:, None] + c[None, :], mask=inside, other=0.0).to(WIDE)
        g = tl.load(dh + (token * dh_stride_t)[:, None] + c[None, :], mask=inside, other=0.0).to(WIDE)
        along += tl.sum(x * g, axis=1)

    entry = token * STREAMS + stream
    many = tl.broadcast_to(entry[:, None], [ROWS, COUNTS])
    written = (token * STREAMS)[:, None] + (k - 1)[None, :]
    is_pre, is_post, mixed = k == 0, k == STREAMS + 1, (k > 0) & (k <= STREAMS)
    dvalue = tl.load(dpre + many, mask=live[:, None] & is_pre[None, :], other=0.0)
    dvalue += tl.load(dpost + many, mask=live[:, None] & is_post[None, :], other=0.0)
    dvalue += tl.load(dmixing + written * STREAMS + stream[:, None], mask=live[:, None] & mixed[None, :], other=0.0)
    dvalue += tl.where(is_pre[None, :], along[:, None], 0.0)
    cell = entry[:, None] * (STREAMS + 2) + k[None, :]
    made = live[:, None] & known[None, :]
    z = tl.load(projected + cell, mask=made, other=0.0)
    y = tanh(z)
    s = tl.load(scale + k, mask=known, other=0.0)
    root = tl.load(roots + entry, mask=live, other=0.0)
    dz = dvalue * s[None, :] * (1 - y * y)
    back = tl.sum(dz * z, axis=1) * root * root / DIM
    dz *= root[:, None]
    tl.store(dvalues + cell, dvalue, mask=made)
    tl.store(given + cell, dz, mask=made)
    bound = tl.load(static + stream, mask=live, other=0.0)
    p = bound + tl.sum(tl.where(is_pre[None, :], s[None, :] * y, 0.0), axis=1)

    for step in range(tl.cdiv(DIM, COLUMNS)):
        c = (tl.cdiv(DIM, COLUMNS) - 1 - step) * COLUMNS + column
        inside = live[:, None] & (c < DIM)[None, :]
        w = tl.load(weight + k[:, None] * DIM + c[None, :], mask=known[:, None] & (c < DIM)[None, :], other=0.0)
        total = tl.dot(dz, w, input_precision=PRECISION, out_dtype=WIDE)
        x = tl.load(streams + start[:, None] + c[None, :], mask=inside, other=0.0).to(WIDE)
        g = tl.load(dh + (token * dh_stride_t)[:, None] + c[None, :], mask=inside, other=0.0).to(WIDE)
        total += p[:, None] * g - back[:, None] * x
        if HANDED:
            from_write = (token * handed_stride_t + stream * handed_stride_n)[:, None] + c[None, :]
            total += tl.load(handed + from_write, mask=inside, other=0.0).to(WIDE)
        tl.store(grad + entry[:, None] * DIM + c[None, :], total.to(grad.dtype.element_ty), mask=inside)
