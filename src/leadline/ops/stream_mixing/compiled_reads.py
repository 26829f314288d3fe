"""The width step of residual streams in compiled bodies, with the norm that reads it folded in.

As `reads`, whose formulas it shares. The large matrix products stay PyTorch's; what is handed in is added where the
gradient is written, not in a product. Shapes: T tokens, N streams, D width, k projections, K = N·D.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.bodies import run
from leadline.ops.next_norm import NextNorm, number, over_tokens
from leadline.ops.stream_mixing import compiled

Read = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Pre (T, N), h (T, D), the mixing (T, N, N) or its logits (R, T), post (T, N), and the streams handed on."""


def hyper_read(
    streams_TND: Tensor, weight_kD: Tensor, static_kN: Tensor, scale_k: Tensor, eps: float, norm: NextNorm | None
) -> Read:
    """Parameters in float32 or wider; with a norm, h is the norm of it."""
    parameters = (weight_kD, static_kN, scale_k, eps, *_parts(norm, weight_kD.dtype))
    found: Read
    if torch.is_grad_enabled():
        found = _HyperRead.apply(streams_TND, *parameters)
    else:
        found = (*run(compiled.hyper, streams_TND, *parameters)[:4], streams_TND)
    return found


def manifold_read(
    streams_TND: Tensor, weight_kK: Tensor, bias_k: Tensor, scale_k: Tensor, eps: float, norm: NextNorm | None
) -> Read:
    """As `hyper_read`."""
    parameters = (weight_kK, bias_k, scale_k, eps, *_parts(norm, weight_kK.dtype))
    found: Read
    if torch.is_grad_enabled():
        found = _ManifoldRead.apply(streams_TND, *parameters)
    else:
        found = (*run(compiled.manifold, streams_TND, *parameters)[:4], streams_TND)
    return found


def _parts(norm: NextNorm | None, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if norm is None else (norm.gain, number(norm.eps, dtype))


def _as_gain(part_TD: Tensor | None, gain_D: Tensor | None) -> Tensor | None:
    if gain_D is None:
        return None
    return torch.zeros_like(gain_D) if part_TD is None else over_tokens(part_TD).to(gain_D.dtype)


class _HyperRead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        streams_TND: Tensor,
        weight_kD: Tensor,
        static_kN: Tensor,
        scale_k: Tensor,
        eps: float,
        gain_D: Tensor | None,
        norm_eps: Tensor | None,
    ) -> Read:
        arguments = (streams_TND, weight_kD, static_kN, scale_k, eps, gain_D, norm_eps)
        pre_TN, h_TD, mixing_TNN, post_TN, y_kTN, root_TN, norm_root_T = run(compiled.hyper, *arguments)
        ctx.set_materialize_grads(False)
        norm = (gain_D, norm_eps, norm_root_T)
        ctx.save_for_backward(streams_TND, weight_kD, scale_k, y_kTN, root_TN, pre_TN, *norm)
        return pre_TN, h_TD, mixing_TNN, post_TN, streams_TND.view_as(streams_TND)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        dpre_TN: Tensor | None,
        dh_TD: Tensor | None,
        dmixing_TNN: Tensor | None,
        dpost_TN: Tensor | None,
        given_TND: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        streams_TND, weight_kD, scale_k, y_kTN, root_TN, pre_TN, *norm = ctx.saved_tensors
        upstream = (dpre_TN, dh_TD, dmixing_TNN, dpost_TN)
        slope_kTN, pull_TN, dstatic_kN, dscale_k, dh_TD, part_TD = run(
            compiled.hyper_slopes, streams_TND, scale_k, y_kTN, root_TN, pre_TN, *upstream, *norm
        )
        grad_TND = run(compiled.hyper_grads, streams_TND, weight_kD, slope_kTN, pull_TN, pre_TN, dh_TD, given_TND)
        rows_MD = streams_TND.reshape(-1, streams_TND.shape[-1]).to(weight_kD.dtype)
        dweight_kD = torch.mm(slope_kTN.flatten(1), rows_MD)
        return grad_TND, dweight_kD, dstatic_kN, dscale_k, None, _as_gain(part_TD, norm[0]), None


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
        gain_D: Tensor | None,
        norm_eps: Tensor | None,
    ) -> Read:
        arguments = (streams_TND, weight_kK, bias_k, scale_k, eps, gain_D, norm_eps)
        pre_TN, h_TD, res_RT, post_TN, y_kT, root_T, norm_root_T = run(compiled.manifold, *arguments)
        ctx.set_materialize_grads(False)
        norm = (gain_D, norm_eps, norm_root_T)
        ctx.save_for_backward(streams_TND, weight_kK, scale_k, y_kT, root_T, pre_TN, post_TN, *norm)
        return pre_TN, h_TD, res_RT, post_TN, streams_TND.view_as(streams_TND)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        dpre_TN: Tensor | None,
        dh_TD: Tensor | None,
        dres_RT: Tensor | None,
        dpost_TN: Tensor | None,
        given_TND: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        streams_TND, weight_kK, scale_k, y_kT, root_T, pre_TN, post_TN, *norm = ctx.saved_tensors
        if dres_RT is None:
            dres_RT = torch.zeros_like(y_kT[2 * streams_TND.shape[1] :])
        upstream = (dpre_TN, dh_TD, dres_RT, dpost_TN)
        slope_kT, pull_T, dbias_k, dscale_k, dh_TD, part_TD = run(
            compiled.manifold_slopes, streams_TND, y_kT, root_T, scale_k, pre_TN, post_TN, *upstream, *norm
        )
        along_TND = torch.mm(slope_kT.t(), weight_kK).view(streams_TND.shape)
        grad_TND = run(compiled.manifold_grads, along_TND, streams_TND, pre_TN, pull_T, dh_TD, given_TND)
        dweight_kK = torch.mm(slope_kT, streams_TND.flatten(1).to(weight_kK.dtype))
        return grad_TND, dweight_kK, dbias_k, dscale_k, None, _as_gain(part_TD, norm[0]), None
