"""The width step of residual streams with hand-written gradients: coefficients and read in one autograd function.

The streams are handed on, so that one gradient passes back from the write through the read, which adds its own part to
it. Names: `r` a reciprocal root mean square, `y = r W x` the projections, `c` what is made of them. Backward, with
`dy` the projections' gradient and K the width of x:

    dx = r (Wᵀ dy − (r dy·y / K) x) + pre dh + what is handed in        dW = Σ_tokens r dy xᵀ
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.next_norm import NextNorm, normed
from leadline.ops.precision import no_autocast, wide
from leadline.ops.stream_mixing import compiled_reads
from leadline.ops.stream_mixing.lean import birkhoff, sinkhorn, weighted_sum
from leadline.ops.stream_mixing.reference import StreamRead


def projected(rows_MK: Tensor, weight_kK: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`W rms(x)` of rows x, (k, M), and the reciprocal roots (M)."""
    x_MK = rows_MK.to(weight_kK.dtype)
    norm_M = torch.linalg.vector_norm(x_MK, dim=-1)
    root_M = norm_M.square_().div_(x_MK.shape[-1]).add_(eps).rsqrt_()
    return torch.mm(weight_kK, x_MK.t()).mul_(root_M), root_M


def _projected_back(
    x_MK: Tensor, weight_kK: Tensor, y_kM: Tensor, root_M: Tensor, dy_kM: Tensor, dx_MK: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradients of rows (what is handed in included) and weight."""
    slope_kM = dy_kM * root_M
    pull_M = (slope_kM * y_kM).sum(0).mul_(root_M).div_(-x_MK.shape[-1])
    if dx_MK is None:
        grad_MK = torch.mm(slope_kM.t(), weight_kK)
    else:
        grad_MK = torch.addmm(dx_MK.to(weight_kK.dtype), slope_kM.t(), weight_kK)
    grad_MK.addcmul_(x_MK, pull_M.unsqueeze(-1))
    return grad_MK, torch.mm(slope_kM, x_MK)


def _hyper_made(projected_kTN: Tensor, static_kN: Tensor, scale_k: Tensor) -> Tensor:
    return torch.addcmul(static_kN.unsqueeze(1), scale_k.view(-1, 1, 1), torch.tanh(projected_kTN))


class _HyperRead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        streams_TND: Tensor,
        weight_kD: Tensor,
        static_kN: Tensor,
        scale_k: Tensor,
        eps: float,
    ) -> tuple[Tensor, ...]:
        made_kTN, h_TD, projected_kTN, root_TN = _hyper_forward(streams_TND, weight_kD, static_kN, scale_k, eps)
        ctx.set_materialize_grads(False)
        pre, mixing, post = _hyper_parts(made_kTN)
        ctx.save_for_backward(streams_TND, weight_kD, scale_k, projected_kTN, root_TN, pre)
        return pre, h_TD, mixing, post, streams_TND.view_as(streams_TND)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        dpre_TN: Tensor | None,
        dh_TD: Tensor | None,
        dmixing_TNN: Tensor | None,
        dpost_TN: Tensor | None,
        dstreams_TND: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        streams_TND, weight_kD, scale_k, projected_kTN, root_TN, pre_TN = ctx.saved_tensors
        dmade_kTN = torch.zeros_like(projected_kTN)
        if dpre_TN is not None:
            dmade_kTN[0] = dpre_TN
        if dmixing_TNN is not None:
            dmade_kTN[1:-1] = dmixing_TNN.transpose(0, 1)
        if dpost_TN is not None:
            dmade_kTN[-1] = dpost_TN
        arguments = (streams_TND, weight_kD, scale_k, projected_kTN, root_TN, pre_TN, dmade_kTN, dh_TD, dstreams_TND)
        with no_autocast(streams_TND):
            return *_hyper_back(*arguments), None


def _hyper_parts(made_kTN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pre (T, N), mixing (T, N, N) and post (T, N), each with memory of its own."""
    return made_kTN[0].clone(), made_kTN[1:-1].transpose(0, 1).contiguous(), made_kTN[-1].clone()


def _hyper_forward(
    streams_TND: Tensor, weight_kD: Tensor, static_kN: Tensor, scale_k: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tokens, count, dim = streams_TND.shape
    projected_kM, root_M = projected(streams_TND.reshape(-1, dim), weight_kD, eps)
    projected_kTN = projected_kM.view(weight_kD.shape[0], tokens, count)
    made_kTN = _hyper_made(projected_kTN, static_kN, scale_k)
    h_TD = weighted_sum(streams_TND.to(weight_kD.dtype), made_kTN[0]).to(streams_TND.dtype)
    return made_kTN, h_TD, projected_kTN, root_M.view(tokens, count)


def _hyper_back(
    streams_TND: Tensor,
    weight_kD: Tensor,
    scale_k: Tensor,
    projected_kTN: Tensor,
    root_TN: Tensor,
    pre_TN: Tensor,
    dmade_kTN: Tensor,
    dh_TD: Tensor | None,
    dstreams_TND: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape, dim, dtype = streams_TND.shape, streams_TND.shape[-1], weight_kD.dtype
    x_TND = streams_TND.to(dtype)
    if dh_TD is not None:
        dmade_kTN[0] += torch.bmm(x_TND, dh_TD.to(dtype).unsqueeze(-1)).squeeze(-1)
    tanh_kTN = torch.tanh(projected_kTN)
    dstatic_kN, dscale_k = dmade_kTN.sum(1), (dmade_kTN * tanh_kTN).sum((1, 2))
    dy_kTN = dmade_kTN * scale_k.view(-1, 1, 1) * (1 - tanh_kTN.square())
    grad_MD, dweight_kD = _projected_back(
        x_TND.reshape(-1, dim),
        weight_kD,
        projected_kTN.flatten(1),
        root_TN.flatten(),
        dy_kTN.flatten(1),
        None if dstreams_TND is None else dstreams_TND.reshape(-1, dim),
    )
    grad_TND = grad_MD.view(shape)
    if dh_TD is not None:
        grad_TND = torch.addcmul(grad_TND, pre_TN.unsqueeze(-1), dh_TD.to(dtype).unsqueeze(1))
    return grad_TND.to(streams_TND.dtype), dweight_kD, dstatic_kN, dscale_k


def hyper_read(
    streams_TND: Tensor,
    weight_kD: Tensor,
    static_kN: Tensor,
    scale_k: Tensor,
    eps: float,
    norm: NextNorm | None = None,
    compile_bodies: bool = False,
) -> StreamRead:
    """See `leadline.ops.stream_mixing.hyper_read`."""
    dtype = wide(streams_TND.dtype)
    weights = (weight_kD.to(dtype), static_kN.to(dtype), scale_k.to(dtype))
    if compile_bodies and not torch.compiler.is_compiling():
        return StreamRead(*compiled_reads.hyper_read(streams_TND, *weights, eps, norm))
    if torch.is_grad_enabled():
        found = StreamRead(*_HyperRead.apply(streams_TND, *weights, eps))
    else:
        made_kTN, h_TD, _, _ = _hyper_forward(streams_TND, *weights, eps)
        found = StreamRead(made_kTN[0], h_TD, made_kTN[1:-1].transpose(0, 1), made_kTN[-1], streams_TND)
    return with_norm(found, norm)


def with_norm(found: StreamRead, norm: NextNorm | None) -> StreamRead:
    """The read with the norm of h in place of h, as an operator of its own."""
    return found if norm is None else found._replace(h=normed(found.h, norm))


class _ManifoldRead(torch.autograd.Function):
    """Everything but the mixing, which `sinkhorn` and `birkhoff` make of the logits (R, T)."""

    @staticmethod
    def forward(
        ctx: Any,
        streams_TND: Tensor,
        weight_kK: Tensor,
        bias_k: Tensor,
        scale_k: Tensor,
        eps: float,
    ) -> tuple[Tensor, ...]:
        y_kT, root_T = projected(streams_TND.flatten(1), weight_kK, eps)
        pre_TN, h_TD, res_RT, post_TN = _manifold_made(streams_TND, y_kT, bias_k, scale_k)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(streams_TND, weight_kK, scale_k, y_kT, root_T, pre_TN, post_TN)
        return pre_TN, h_TD, res_RT, post_TN, streams_TND.view_as(streams_TND)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        dpre_TN: Tensor | None,
        dh_TD: Tensor | None,
        dres_RT: Tensor | None,
        dpost_TN: Tensor | None,
        dstreams_TND: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        streams_TND, weight_kK, scale_k, y_kT, root_T, pre_TN, post_TN = ctx.saved_tensors
        n, dtype = streams_TND.shape[1], weight_kK.dtype
        if dres_RT is None:
            dres_RT = torch.zeros_like(y_kT[2 * n :])
        with no_autocast(streams_TND):
            slope_kT, pull_T, dbias_k, dscale_k = _manifold_slopes(
                streams_TND, y_kT, root_T, scale_k, pre_TN, post_TN, dpre_TN, dh_TD, dres_RT, dpost_TN
            )
            x_TK = streams_TND.flatten(1).to(dtype)
            if dstreams_TND is None:
                grad_TK = torch.mm(slope_kT.t(), weight_kK)
            else:
                grad_TK = torch.addmm(dstreams_TND.flatten(1).to(dtype), slope_kT.t(), weight_kK)
            dweight_kK = torch.mm(slope_kT, x_TK)
            grad_TND = grad_TK.view(streams_TND.shape)
            grad_TK.addcmul_(x_TK, pull_T.unsqueeze(-1))
            if dh_TD is not None:
                grad_TND = torch.addcmul(grad_TND, pre_TN.unsqueeze(-1), dh_TD.to(dtype).unsqueeze(1))
            grad_TND = grad_TND.to(streams_TND.dtype)
        return grad_TND, dweight_kK, dbias_k, dscale_k, None


def _manifold_slopes(
    streams_TND: Tensor,
    y_kT: Tensor,
    root_T: Tensor,
    scale_k: Tensor,
    pre_TN: Tensor,
    post_TN: Tensor,
    dpre_TN: Tensor | None,
    dh_TD: Tensor | None,
    dres_RT: Tensor,
    dpost_TN: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What multiplies weights (k, T) and streams (T) in the streams' gradient; gradients of bias and scale."""
    n, dtype = streams_TND.shape[1], y_kT.dtype
    dpre_TN = torch.zeros_like(pre_TN) if dpre_TN is None else dpre_TN
    dpost_TN = torch.zeros_like(post_TN) if dpost_TN is None else dpost_TN
    if dh_TD is not None:
        dpre_TN = dpre_TN + torch.bmm(streams_TND.to(dtype), dh_TD.to(dtype).unsqueeze(-1)).squeeze(-1)
    dpre_TN = dpre_TN * pre_TN * (1 - pre_TN)
    dmade_kT = torch.cat((dpre_TN.t(), (dpost_TN * post_TN * (1 - 0.5 * post_TN)).t(), dres_RT))
    slope_kT = dmade_kT * scale_k.unsqueeze(1) * root_T
    pull_T = (slope_kT * y_kT).sum(0).mul_(root_T).div_(-n * streams_TND.shape[2])
    return slope_kT, pull_T, dmade_kT.sum(1), (dmade_kT * y_kT).sum(1)


def _manifold_made(
    streams_TND: Tensor, y_kT: Tensor, bias_k: Tensor, scale_k: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pre (T, N), h (T, D), the mixing's logits (R, T), post (T, N)."""
    n = streams_TND.shape[1]
    made_kT = torch.addcmul(bias_k.unsqueeze(1), scale_k.unsqueeze(1), y_kT)
    gates_TN = torch.sigmoid(made_kT[: 2 * n]).t()
    pre_TN, post_TN = gates_TN[:, :n].contiguous(), gates_TN[:, n:] * 2
    h_TD = weighted_sum(streams_TND.to(y_kT.dtype), pre_TN).to(streams_TND.dtype)
    return pre_TN, h_TD, made_kT[2 * n :].clone(), post_TN.contiguous()


def manifold_read(
    streams_TND: Tensor,
    weight_kK: Tensor,
    bias_k: Tensor,
    scale_k: Tensor,
    kind: str,
    iterations: int,
    eps: float,
    norm: NextNorm | None = None,
    compile_bodies: bool = False,
) -> StreamRead:
    """See `leadline.ops.stream_mixing.manifold_read`."""
    n, dtype = streams_TND.shape[1], wide(streams_TND.dtype)
    weights = (weight_kK.to(dtype), bias_k.to(dtype), scale_k.to(dtype))
    compile_bodies = compile_bodies and not torch.compiler.is_compiling()
    if compile_bodies:
        pre_TN, h_TD, res_RT, post_TN, handed_TND = compiled_reads.manifold_read(streams_TND, *weights, eps, norm)
        norm = None
    elif torch.is_grad_enabled():
        pre_TN, h_TD, res_RT, post_TN, handed_TND = _ManifoldRead.apply(streams_TND, *weights, eps)
    else:
        y_kT, _ = projected(streams_TND.flatten(1), weights[0], eps)
        pre_TN, h_TD, res_RT, post_TN = _manifold_made(streams_TND, y_kT, *weights[1:])
        handed_TND = streams_TND
    if kind == "sinkhorn":
        mixing_NNT = sinkhorn(res_RT.unflatten(0, (n, n)), iterations, compile_bodies)
    else:
        mixing_NNT = birkhoff(res_RT, n)
    return with_norm(StreamRead(pre_TN, h_TD, mixing_NNT.permute(2, 0, 1), post_TN, handed_TND), norm)
