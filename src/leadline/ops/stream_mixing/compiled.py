"""Bodies of stream mixing for Inductor: one loop over tokens each, stream by stream.

They stand beside those of `reads` and `lean` because a measurement defends both: run eagerly they take 2.3 to 3.6 times
as long (4 streams, D = 512, 1,024 tokens, one thread). What is small beside the streams has one body for both: the
slopes of `reads`, and Sinkhorn's iterations in `lean`. Shapes: T tokens, N streams, D width, k projections, K = N·D.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.ops.body_math import added
from leadline.ops.next_norm import BodyNorm, norm_rows, norm_rows_back

Made = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""Pre (T, N), h (T, D), mixing (T, N, N) or its logits (R, T), post (T, N), projections (k, T, N) or (k, T), the
inverse RMS (T, N) or (T) of what is projected, and that of h (T) where it was normed."""


def _rows(streams_TND: Tensor, dtype: torch.dtype) -> list[Tensor]:
    return [streams_TND[:, i].to(dtype) for i in range(streams_TND.shape[1])]


def write(streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor) -> Tensor:
    """`H'_i = Σ_j M_ij H_j + post_i F`."""
    rows, output = _rows(streams_TND, post_TN.dtype), output_TD.to(post_TN.dtype)
    new = [
        added([post_TN[:, i : i + 1] * output, *(mixing_TNN[:, i, j : j + 1] * row for j, row in enumerate(rows))])
        for i in range(len(rows))
    ]
    return torch.stack(new, dim=1).to(streams_TND.dtype)


def write_back(
    streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor, dnew_TND: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of streams, output, mixing and post."""
    count, dtype = streams_TND.shape[1], post_TN.dtype
    rows, grads, output = _rows(streams_TND, dtype), _rows(dnew_TND, dtype), output_TD.to(dtype)
    dstreams = [added(mixing_TNN[:, i, j : j + 1] * grads[i] for i in range(count)) for j in range(count)]
    doutput = added(post_TN[:, i : i + 1] * grads[i] for i in range(count))
    dmixing = torch.stack([(grad * row).sum(-1) for grad in grads for row in rows], dim=-1)
    dpost = torch.stack([(grad * output).sum(-1) for grad in grads], dim=-1)
    return (
        torch.stack(dstreams, dim=1).to(streams_TND.dtype),
        doutput.to(output_TD.dtype),
        dmixing.unflatten(-1, (count, count)),
        dpost,
    )


def hyper(
    streams_TND: Tensor, weight_kD: Tensor, static_kN: Tensor, scale_k: Tensor, eps: float, norm: BodyNorm | None
) -> Made:
    """Rows of all streams are projected alike, and coefficients made as whole tensors: token by token they would make
    hundreds of buffers."""
    tokens, count, dim = streams_TND.shape
    rows_MD = streams_TND.to(weight_kD.dtype).reshape(-1, dim)
    rstd_M = (rows_MD.square().sum(-1) / dim + eps).rsqrt()
    y_kM = torch.stack([(rows_MD * weight_D).sum(-1) * rstd_M for weight_D in weight_kD.unbind(0)])
    y_kTN = y_kM.view(-1, tokens, count)
    made_kTN = static_kN.unsqueeze(1) + scale_k.view(-1, 1, 1) * torch.tanh(y_kTN)
    h_TD, norm_rstd_T = _read(streams_TND, made_kTN[0], norm)
    mixing_TNN = made_kTN[1:-1].transpose(0, 1).contiguous()
    return made_kTN[0], h_TD, mixing_TNN, made_kTN[-1], y_kTN, rstd_M.view(tokens, count), norm_rstd_T


def manifold(
    streams_TND: Tensor, weight_kK: Tensor, bias_k: Tensor, scale_k: Tensor, eps: float, norm: BodyNorm | None
) -> Made:
    """The projections are one matrix product, PyTorch's own."""
    count = streams_TND.shape[1]
    x_TK = streams_TND.flatten(1).to(weight_kK.dtype)
    rstd_T = (x_TK.square().sum(-1) / x_TK.shape[1] + eps).rsqrt()
    y_kT = torch.mm(x_TK, weight_kK.t()).t() * rstd_T
    made_kT = bias_k.unsqueeze(1) + scale_k.unsqueeze(1) * y_kT
    gates_TN = torch.sigmoid(made_kT[: 2 * count]).t()
    pre_TN = gates_TN[:, :count].contiguous()
    h_TD, norm_rstd_T = _read(streams_TND, pre_TN, norm)
    return pre_TN, h_TD, made_kT[2 * count :], 2 * gates_TN[:, count:], y_kT, rstd_T, norm_rstd_T


def _read(streams_TND: Tensor, pre_TN: Tensor, norm: BodyNorm | None) -> tuple[Tensor, Tensor | None]:
    """h (T, D) in the streams' dtype, normed where there is a norm; and then its inverse RMS (T)."""
    h_TD = _mixed(streams_TND, pre_TN)
    if norm is None:
        return h_TD.to(streams_TND.dtype), None
    h_TD, norm_rstd_T = norm_rows(h_TD, norm)
    return h_TD.to(streams_TND.dtype), norm_rstd_T


def _mixed(streams_TND: Tensor, pre_TN: Tensor) -> Tensor:
    """h (T, D), rounded to the streams' dtype, as wide as the coefficients."""
    h_TD = added(pre_TN[:, i : i + 1] * row for i, row in enumerate(_rows(streams_TND, pre_TN.dtype)))
    return h_TD.to(streams_TND.dtype).to(pre_TN.dtype)


def through_norm(
    streams_TND: Tensor, pre_TN: Tensor, dh_TD: Tensor, norm: BodyNorm, norm_rstd_T: Tensor
) -> tuple[Tensor, Tensor]:
    """h's gradient (T, D), and what the gain's gradient sums over tokens (T, D); h is summed up again, not kept."""
    h_TD = _mixed(streams_TND, pre_TN)
    return norm_rows_back(dh_TD.to(pre_TN.dtype), h_TD, norm, norm_rstd_T)[:2]


def along(streams_TND: Tensor, dh_TD: Tensor) -> Tensor:
    """`dh·H_i`, (T, N)."""
    return torch.stack([(row_TD * dh_TD).sum(-1) for row_TD in _rows(streams_TND, dh_TD.dtype)], dim=1)


def gradients(
    streams_TND: Tensor,
    product: Tensor | tuple[Tensor, Tensor],
    pull_TN: Tensor,
    pre_TN: Tensor,
    upstream: tuple[Tensor | None, Tensor | None],
) -> Tensor:
    """`Wᵀ slope + pull H_i + pre_i dh + what came through later uses of the streams`, in the streams' dtype.

    `Wᵀ slope` is there, (T, N, D), or W (k, D) and slope (k, T, N) are. `pull` is (T, N), or (T, 1) for all streams;
    upstream are dh (T, D) and the streams' own gradient (T, N, D).
    """
    dh_TD, given_TND = upstream
    grads = []
    for i, row_TD in enumerate(_rows(streams_TND, pull_TN.dtype)):
        if isinstance(product, Tensor):
            grad_TD = product[:, i]
        else:
            grad_TD = added(slope_TN[:, i : i + 1] * weight_D for weight_D, slope_TN in zip(*product, strict=True))
        grad_TD = grad_TD + (pull_TN if pull_TN.shape[1] == 1 else pull_TN[:, i : i + 1]) * row_TD
        if dh_TD is not None:
            grad_TD = grad_TD + pre_TN[:, i : i + 1] * dh_TD
        grads.append(grad_TD if given_TND is None else grad_TD + given_TND[:, i].to(pull_TN.dtype))
    return torch.stack(grads, dim=1).to(streams_TND.dtype)
