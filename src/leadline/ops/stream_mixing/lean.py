"""Writing and mixing residual streams with hand-written gradients: few passes over the streams, any device.

What is saved is the streams, once, in their own dtype, the output, and numbers of the size of the coefficients. Second
derivatives raise. Without gradients (decoding one token at a time) no autograd function is made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.compiled_body import applied
from leadline.ops.precision import no_autocast
from leadline.ops.stream_mixing import compiled
from leadline.ops.stream_mixing.reference import permutations

SMALL_PRODUCT = 400
"""PyTorch on a CPU takes a slow loop for batched products with fewer multiplications than this."""


def weighted_sum(x_TND: Tensor, weights_TN: Tensor) -> Tensor:
    """Sums the streams with one weight each: (T, D)."""
    streams, dim = x_TND.shape[1:]
    if streams * dim >= SMALL_PRODUCT or x_TND.is_cuda:
        return torch.bmm(weights_TN.unsqueeze(1), x_TND).squeeze(1)
    total_TD = x_TND[:, 0] * weights_TN[:, :1]
    for i in range(1, streams):
        total_TD.addcmul_(x_TND[:, i], weights_TN[:, i : i + 1])
    return total_TD


def _written(streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor) -> Tensor:
    added_TND = post_TN.unsqueeze(-1) * output_TD.unsqueeze(1)
    return torch.baddbmm(added_TND, mixing_TNN, streams_TND.to(post_TN.dtype)).to(streams_TND.dtype)


def _written_back(
    streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor, dnew_TND: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g_TND = dnew_TND.to(post_TN.dtype)
    dx_TND = torch.bmm(mixing_TNN.mT, g_TND).to(streams_TND.dtype)
    doutput_TD = weighted_sum(g_TND, post_TN).to(output_TD.dtype)
    dmixing_TNN = torch.bmm(g_TND, streams_TND.to(post_TN.dtype).mT)
    dpost_TN = torch.bmm(g_TND, output_TD.to(post_TN.dtype).unsqueeze(-1)).squeeze(-1)
    return dx_TND, doutput_TD, dmixing_TNN, dpost_TN


class _WriteStreams(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compile_bodies: bool, *tensors: Tensor) -> Tensor:
        ctx.compile_bodies = compile_bodies
        ctx.save_for_backward(*tensors)
        return _run_write(compile_bodies, *tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dnew_TND: Tensor) -> tuple[Tensor | None, ...]:
        body = compiled.write_back if ctx.compile_bodies else _written_back
        with no_autocast(dnew_TND):
            return None, *applied(ctx.compile_bodies, body, *ctx.saved_tensors, dnew_TND)


def _run_write(compile_bodies: bool, *tensors: Tensor) -> Tensor:
    result: Tensor = applied(compile_bodies, compiled.write if compile_bodies else _written, *tensors)
    return result


class _Sinkhorn(torch.autograd.Function):
    """The first iteration is two softmaxes, safe for any logits; after it every sum lies in [1/N, N].

    From there a matrix is `a ⊙ K ⊙ b` with one factor a row and one a column, so the backward pass works on vectors and
    the gradient of K is one sum of outer products. The factors are recomputed rather than saved.
    """

    @staticmethod
    def forward(ctx: Any, logits_NNT: Tensor, iterations: int, compile_bodies: bool) -> Tensor:
        mixing_NNT, columns_NNT, kernel_NNT = applied(compile_bodies, _balanced, logits_NNT, iterations)
        ctx.save_for_backward(columns_NNT, kernel_NNT)
        ctx.iterations, ctx.compile_bodies = iterations, compile_bodies
        result: Tensor = mixing_NNT
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dmixing_NNT: Tensor) -> tuple[Tensor, None, None]:
        arguments = (*ctx.saved_tensors, dmixing_NNT, ctx.iterations)
        return applied(ctx.compile_bodies, _balanced_back, *arguments), None, None


def _balanced(logits_NNT: Tensor, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    columns_NNT = torch.log_softmax(logits_NNT, 0)
    kernel_NNT = torch.softmax(columns_NNT, 1)
    mixing_NNT = kernel_NNT
    for _ in range(iterations - 1):
        mixing_NNT = mixing_NNT / mixing_NNT.sum(0, keepdim=True)
        mixing_NNT = mixing_NNT / mixing_NNT.sum(1, keepdim=True)
    return mixing_NNT.clone() if iterations == 1 else mixing_NNT, columns_NNT, kernel_NNT


def _balanced_back(columns_NNT: Tensor, kernel_NNT: Tensor, dmixing_NNT: Tensor, iterations: int) -> Tensor:
    rows = [torch.ones_like(kernel_NNT[:, 0])]
    cols = [torch.ones_like(kernel_NNT[0])]
    for _ in range(iterations - 1):
        cols.append(_column_sums(kernel_NNT, rows[-1]).reciprocal())
        rows.append(_row_sums(kernel_NNT, cols[-1]).reciprocal())
    drow_NT = _row_sums(dmixing_NNT * kernel_NNT, cols[-1])
    dcol_NT = _column_sums(dmixing_NNT * kernel_NNT, rows[-1])
    dkernel_NNT = dmixing_NNT * rows[-1].unsqueeze(1) * cols[-1].unsqueeze(0)
    for step in range(iterations - 1, 0, -1):
        drow_NT = -drow_NT * rows[step].square()
        dkernel_NNT = torch.addcmul(dkernel_NNT, drow_NT.unsqueeze(1), cols[step].unsqueeze(0))
        dsum_NT = _column_sums(kernel_NNT, drow_NT)
        dcol_NT = dsum_NT + dcol_NT if step == iterations - 1 else dsum_NT
        dcol_NT = -dcol_NT * cols[step].square()
        dkernel_NNT = torch.addcmul(dkernel_NNT, rows[step - 1].unsqueeze(1), dcol_NT.unsqueeze(0))
        drow_NT = _row_sums(kernel_NNT, dcol_NT)
    dcolumns_NNT = kernel_NNT * (dkernel_NNT - (dkernel_NNT * kernel_NNT).sum(1, keepdim=True))
    return dcolumns_NNT - columns_NNT.exp() * dcolumns_NNT.sum(0, keepdim=True)


def _row_sums(kernel_NNT: Tensor, cols_NT: Tensor) -> Tensor:
    """`Σ_j K_ij b_j`."""
    return (kernel_NNT * cols_NT.unsqueeze(0)).sum(1)


def _column_sums(kernel_NNT: Tensor, rows_NT: Tensor) -> Tensor:
    """`Σ_i a_i K_ij`."""
    return (kernel_NNT * rows_NT.unsqueeze(1)).sum(0)


def write_streams(
    streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor, compile_bodies: bool = False
) -> Tensor:
    """See `leadline.ops.stream_mixing.write_streams`."""
    if not compile_bodies:
        mixing_TNN, post_TN = mixing_TNN.contiguous(), post_TN.contiguous()
    write = _WriteStreams.apply if torch.is_grad_enabled() else _run_write
    new_TND: Tensor = write(compile_bodies, streams_TND, output_TD, mixing_TNN, post_TN)
    return new_TND


def sinkhorn(logits_NNT: Tensor, iterations: int, compile_bodies: bool = False) -> Tensor:
    """See `leadline.ops.stream_mixing.sinkhorn`."""
    return _Sinkhorn.apply(logits_NNT, iterations, compile_bodies)


_tables: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}


def permutation_table(streams: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The permutation matrices, kept for the next call. A constant, so no model holds it and no `to_empty` wipes it."""
    if torch.compiler.is_compiling() or device.type == "meta":
        return permutations(streams, device, dtype)
    key = (streams, device, dtype)
    found = _tables.get(key)
    if found is None:
        with torch.inference_mode(False), torch.no_grad():
            found = permutations(streams, device, dtype)
        if type(found) is Tensor:  # and not a fake one, which has no values
            _tables[key] = found
    return found


class _Birkhoff(torch.autograd.Function):
    """A product with the table of a softmax: its weights are all that is saved."""

    @staticmethod
    def forward(ctx: Any, logits_PT: Tensor, table: Tensor) -> Tensor:
        weights_PT = torch.softmax(logits_PT, 0)
        ctx.save_for_backward(weights_PT, table)
        return torch.mm(table, weights_PT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dmixing_MT: Tensor) -> tuple[Tensor, None]:
        weights_PT, table = ctx.saved_tensors
        with no_autocast(dmixing_MT):
            dweights_PT = torch.mm(table.t(), dmixing_MT)
        return weights_PT * (dweights_PT - (dweights_PT * weights_PT).sum(0)), None


def birkhoff(logits_PT: Tensor, streams: int) -> Tensor:
    """See `leadline.ops.stream_mixing.birkhoff`."""
    table = permutation_table(streams, logits_PT.device, logits_PT.dtype)
    if torch.is_grad_enabled():
        return _Birkhoff.apply(logits_PT, table).unflatten(0, (streams, streams))
    return torch.mm(table, torch.softmax(logits_PT, 0)).unflatten(0, (streams, streams))
