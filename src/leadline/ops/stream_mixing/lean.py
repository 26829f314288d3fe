"""Reading, writing and mixing residual streams with hand-written gradients: few passes over the streams, any device.

`project` and `read_streams` hand the streams on, so that one gradient passes back from the write through the read to
the projection and each adds its part to it: no pass goes into adding gradients up. What is saved is the streams, once,
in their own dtype, and numbers of the size of the coefficients. Second derivatives raise. Without gradients (decoding
one token at a time) no autograd function is made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.precision import wide
from leadline.ops.stream_mixing.reference import permutations

SMALL_PRODUCT = 400
"""PyTorch on a CPU takes a slow loop for batched products with fewer multiplications than this."""


def _projected(rows_TK: Tensor, weight_kK: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The projections, and one over the root mean square (T)."""
    x_TK = rows_TK.to(weight_kK.dtype)
    norm_T = torch.linalg.vector_norm(x_TK, dim=-1)
    root_T = norm_T.square_().div_(x_TK.shape[-1]).add_(eps).rsqrt_()
    return torch.mm(weight_kK, x_TK.t()).mul_(root_T), root_T


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_TK: Tensor, weight_kK: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        y_kT, root_T = _projected(rows_TK, weight_kK, eps)
        ctx.save_for_backward(rows_TK, weight_kK, root_T, y_kT)
        return y_kT, rows_TK.view_as(rows_TK)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_kT: Tensor, drows_TK: Tensor) -> tuple[Tensor, Tensor, None]:
        rows_TK, weight_kK, root_T, y_kT = ctx.saved_tensors
        x_TK = rows_TK.to(weight_kK.dtype)
        du_kT = dy_kT * root_T
        pull_T = (du_kT * y_kT).sum(0).mul_(root_T).div_(-x_TK.shape[-1])
        dx_TK = torch.addmm(drows_TK.to(weight_kK.dtype), du_kT.t(), weight_kK)
        dx_TK.addcmul_(x_TK, pull_T.unsqueeze(-1))
        return dx_TK.to(rows_TK.dtype), torch.mm(du_kT, x_TK), None


def _weighted_sum(x_TND: Tensor, weights_TN: Tensor) -> Tensor:
    """Sums the streams with one weight each: (T, D)."""
    streams, dim = x_TND.shape[1:]
    if streams * dim >= SMALL_PRODUCT or x_TND.is_cuda:
        return torch.bmm(weights_TN.unsqueeze(1), x_TND).squeeze(1)
    total_TD = x_TND[:, 0] * weights_TN[:, :1]
    for i in range(1, streams):
        total_TD.addcmul_(x_TND[:, i], weights_TN[:, i : i + 1])
    return total_TD


def _read(streams_TND: Tensor, pre_TN: Tensor) -> Tensor:
    return _weighted_sum(streams_TND.to(pre_TN.dtype), pre_TN).to(streams_TND.dtype)


class _ReadStreams(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams_TND: Tensor, pre_TN: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(streams_TND, pre_TN)
        return _read(streams_TND, pre_TN), streams_TND.view_as(streams_TND)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh_TD: Tensor, dstreams_TND: Tensor) -> tuple[Tensor, Tensor]:
        streams_TND, pre_TN = ctx.saved_tensors
        dh_TD = dh_TD.to(pre_TN.dtype)
        dpre_TN = torch.bmm(streams_TND.to(pre_TN.dtype), dh_TD.unsqueeze(-1)).squeeze(-1)
        dx_TND = torch.addcmul(dstreams_TND.to(pre_TN.dtype), pre_TN.unsqueeze(-1), dh_TD.unsqueeze(1))
        return dx_TND.to(streams_TND.dtype), dpre_TN


def _written(streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor) -> Tensor:
    added_TND = post_TN.unsqueeze(-1) * output_TD.unsqueeze(1)
    return torch.baddbmm(added_TND, mixing_TNN, streams_TND.to(post_TN.dtype)).to(streams_TND.dtype)


class _WriteStreams(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor) -> Tensor:
        ctx.save_for_backward(streams_TND, output_TD, mixing_TNN, post_TN)
        return _written(streams_TND, output_TD, mixing_TNN, post_TN)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dnew_TND: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        streams_TND, output_TD, mixing_TNN, post_TN = ctx.saved_tensors
        g_TND = dnew_TND.to(post_TN.dtype)
        dx_TND = torch.bmm(mixing_TNN.mT, g_TND).to(streams_TND.dtype)
        doutput_TD = _weighted_sum(g_TND, post_TN).to(output_TD.dtype)
        dmixing_TNN = torch.bmm(g_TND, streams_TND.to(post_TN.dtype).mT)
        dpost_TN = torch.bmm(g_TND, output_TD.to(post_TN.dtype).unsqueeze(-1)).squeeze(-1)
        return dx_TND, doutput_TD, dmixing_TNN, dpost_TN


class _Sinkhorn(torch.autograd.Function):
    """The first iteration is two softmaxes, safe for any logits; after it every sum lies in [1/N, N].

    From there a matrix is `a ⊙ K ⊙ b` with one factor a row and one a column, so the backward pass works on vectors and
    the gradient of K is one sum of outer products. The factors are computed again rather than saved.
    """

    @staticmethod
    def forward(ctx: Any, logits_NNT: Tensor, iterations: int) -> Tensor:
        columns_NNT = torch.log_softmax(logits_NNT, 0)
        kernel_NNT = torch.softmax(columns_NNT, 1)
        ctx.save_for_backward(columns_NNT, kernel_NNT)
        ctx.iterations = iterations
        mixing_NNT = kernel_NNT.clone()
        for _ in range(iterations - 1):
            mixing_NNT.div_(mixing_NNT.sum(0, keepdim=True))
            mixing_NNT.div_(mixing_NNT.sum(1, keepdim=True))
        return mixing_NNT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dmixing_NNT: Tensor) -> tuple[Tensor, None]:
        columns_NNT, kernel_NNT = ctx.saved_tensors
        rows = [torch.ones_like(kernel_NNT[:, 0])]
        cols = [torch.ones_like(kernel_NNT[0])]
        for _ in range(ctx.iterations - 1):
            cols.append(_column_sums(kernel_NNT, rows[-1]).reciprocal_())
            rows.append(_row_sums(kernel_NNT, cols[-1]).reciprocal_())
        drow_NT = _row_sums(dmixing_NNT * kernel_NNT, cols[-1])
        dcol_NT = _column_sums(dmixing_NNT * kernel_NNT, rows[-1])
        dkernel_NNT = dmixing_NNT * rows[-1].unsqueeze(1) * cols[-1].unsqueeze(0)
        for step in range(ctx.iterations - 1, 0, -1):
            drow_NT.mul_(rows[step].square()).neg_()
            dkernel_NNT.addcmul_(drow_NT.unsqueeze(1), cols[step].unsqueeze(0))
            dsum_NT = _column_sums(kernel_NNT, drow_NT)
            dcol_NT = dsum_NT.add_(dcol_NT) if step == ctx.iterations - 1 else dsum_NT
            dcol_NT.mul_(cols[step].square()).neg_()
            dkernel_NNT.addcmul_(rows[step - 1].unsqueeze(1), dcol_NT.unsqueeze(0))
            drow_NT = _row_sums(kernel_NNT, dcol_NT)
        dcolumns_NNT = kernel_NNT * (dkernel_NNT - (dkernel_NNT * kernel_NNT).sum(1, keepdim=True))
        return dcolumns_NNT - columns_NNT.exp() * dcolumns_NNT.sum(0, keepdim=True), None


def _row_sums(kernel_NNT: Tensor, cols_NT: Tensor) -> Tensor:
    """`Σ_j K_ij b_j`."""
    return (kernel_NNT * cols_NT.unsqueeze(0)).sum(1)


def _column_sums(kernel_NNT: Tensor, rows_NT: Tensor) -> Tensor:
    """`Σ_i a_i K_ij`."""
    return (kernel_NNT * rows_NT.unsqueeze(1)).sum(0)


def project(rows_TK: Tensor, weight_kK: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `leadline.ops.stream_mixing.project`."""
    weight_kK = weight_kK.to(wide(rows_TK.dtype))
    if not torch.is_grad_enabled():
        return _projected(rows_TK, weight_kK, eps)[0], rows_TK
    return _Project.apply(rows_TK, weight_kK, eps)


def read_streams(streams_TND: Tensor, pre_TN: Tensor) -> tuple[Tensor, Tensor]:
    """See `leadline.ops.stream_mixing.read_streams`."""
    pre_TN = pre_TN.contiguous()
    if not torch.is_grad_enabled():
        return _read(streams_TND, pre_TN), streams_TND
    return _ReadStreams.apply(streams_TND, pre_TN)


def write_streams(streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor) -> Tensor:
    """See `leadline.ops.stream_mixing.write_streams`."""
    run = _WriteStreams.apply if torch.is_grad_enabled() else _written
    return run(streams_TND, output_TD, mixing_TNN.contiguous(), post_TN.contiguous())


def sinkhorn(logits_NNT: Tensor, iterations: int) -> Tensor:
    """See `leadline.ops.stream_mixing.sinkhorn`."""
    return _Sinkhorn.apply(logits_NNT, iterations)


_tables: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}


def _table(streams: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The permutation matrices, kept for the next call. A constant, so no model holds it and no `to_empty` wipes it."""
    if torch.compiler.is_compiling() or device.type == "meta":
        return permutations(streams, device, dtype)
    key = (streams, device, dtype)
    if key not in _tables:
        with torch.inference_mode(False), torch.no_grad():
            _tables[key] = permutations(streams, device, dtype)
    return _tables[key]


def birkhoff(logits_PT: Tensor, streams: int) -> Tensor:
    """See `leadline.ops.stream_mixing.birkhoff`."""
    table = _table(streams, logits_PT.device, logits_PT.dtype)
    return torch.mm(table, torch.softmax(logits_PT, 0)).unflatten(0, (streams, streams))
