"""Bodies of stream mixing for Inductor: one loop over tokens each, stream by stream.

Shapes: T tokens, N streams, D width, k projections.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leadline.ops.next_norm import norm_rows, norm_rows_back


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def write(streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor) -> Tensor:
    """`H'_i = Σ_j M_ij H_j + post_i F`."""
    count, dtype = streams_TND.shape[1], post_TN.dtype
    rows, output = [streams_TND[:, i].to(dtype) for i in range(count)], output_TD.to(dtype)
    new = [
        _sum([post_TN[:, i : i + 1] * output, *(mixing_TNN[:, i, j : j + 1] * rows[j] for j in range(count))])
        for i in range(count)
    ]
    return torch.stack(new, dim=1).to(streams_TND.dtype)


def write_back(
    streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor, dnew_TND: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of streams, output, mixing and post."""
    count, dtype = streams_TND.shape[1], post_TN.dtype
    rows, output = [streams_TND[:, i].to(dtype) for i in range(count)], output_TD.to(dtype)
    grads = [dnew_TND[:, i].to(dtype) for i in range(count)]
    dstreams = [_sum([mixing_TNN[:, i, j : j + 1] * grads[i] for i in range(count)]) for j in range(count)]
    doutput = _sum([post_TN[:, i : i + 1] * grads[i] for i in range(count)])
    dmixing = torch.stack([(grads[i] * rows[j]).sum(-1) for i in range(count) for j in range(count)], dim=-1)
    dpost = torch.stack([(grad * output).sum(-1) for grad in grads], dim=-1)
    return (
        torch.stack(dstreams, dim=1).to(streams_TND.dtype),
        doutput.to(output_TD.dtype),
        dmixing.unflatten(-1, (count, count)),
        dpost,
    )


def hyper(
    streams_TND: Tensor,
    weight_kD: Tensor,
    static_kN: Tensor,
    scale_k: Tensor,
    eps: float,
    gain_D: Tensor | None,
    norm_eps: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Pre (T, N), h (T, D), mixing (T, N, N), post (T, N), projections (k, T, N), roots (T, N), the norm's root (T).

    Rows of all streams are projected alike, and coefficients made as whole tensors: token by token they would make
    hundreds of buffers.
    """
    tokens, count, dim = streams_TND.shape
    rows_MD = streams_TND.to(weight_kD.dtype).reshape(-1, dim)
    root_M = (rows_MD.square().sum(-1) / dim + eps).rsqrt()
    y_kM = torch.stack([(rows_MD * weight_D).sum(-1) * root_M for weight_D in weight_kD.unbind(0)])
    y_kTN = y_kM.view(-1, tokens, count)
    made_kTN = static_kN.unsqueeze(1) + scale_k.view(-1, 1, 1) * torch.tanh(y_kTN)
    h_TD, norm_root_T = read(streams_TND, made_kTN[0], gain_D, norm_eps)
    mixing_TNN = made_kTN[1:-1].transpose(0, 1).contiguous()
    return made_kTN[0], h_TD, mixing_TNN, made_kTN[-1], y_kTN, root_M.view(tokens, count), norm_root_T


def read(
    streams_TND: Tensor, pre_TN: Tensor, gain_D: Tensor | None, norm_eps: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """h (T, D) in the streams' dtype, normed where there is a norm; and then the reciprocal root (T)."""
    h_TD = _read(streams_TND, pre_TN)
    if gain_D is None or norm_eps is None:
        return h_TD.to(streams_TND.dtype), None
    h_TD, norm_root_T = norm_rows(h_TD, gain_D, norm_eps)
    return h_TD.to(streams_TND.dtype), norm_root_T


def _read(streams_TND: Tensor, pre_TN: Tensor) -> Tensor:
    """h (T, D), rounded to the streams' dtype, as wide as the coefficients."""
    count, dtype = streams_TND.shape[1], pre_TN.dtype
    h_TD = _sum([pre_TN[:, i : i + 1] * streams_TND[:, i].to(dtype) for i in range(count)])
    return h_TD.to(streams_TND.dtype).to(dtype)


def through_norm(
    streams_TND: Tensor,
    pre_TN: Tensor,
    dh_TD: Tensor | None,
    gain_D: Tensor | None,
    norm_eps: Tensor | None,
    norm_root_T: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """h's gradient (T, D), and what the gain's gradient sums over tokens (T, D); h is summed up again, not kept."""
    if dh_TD is None or gain_D is None or norm_eps is None or norm_root_T is None:
        return (None if dh_TD is None else dh_TD.to(pre_TN.dtype)), None
    h_TD = _read(streams_TND, pre_TN)
    dh_TD, part_TD, _ = norm_rows_back(dh_TD.to(pre_TN.dtype), h_TD, gain_D, norm_eps, norm_root_T)
    return dh_TD, part_TD


def _along(streams_TND: Tensor, dh_TD: Tensor | None, given_TN: Tensor | None, root_TN: Tensor) -> Tensor:
    """The gradient of `pre` (T, N)."""
    if dh_TD is None:
        return torch.zeros_like(root_TN) if given_TN is None else given_TN
    rows = [streams_TND[:, i].to(dh_TD.dtype) for i in range(streams_TND.shape[1])]
    found_TN = torch.stack([(row_TD * dh_TD).sum(-1) for row_TD in rows], dim=1)
    return found_TN if given_TN is None else given_TN + found_TN


def hyper_slopes(
    streams_TND: Tensor,
    scale_k: Tensor,
    y_kTN: Tensor,
    root_TN: Tensor,
    pre_TN: Tensor,
    dpre_TN: Tensor | None,
    dh_TD: Tensor | None,
    dmixing_TNN: Tensor | None,
    dpost_TN: Tensor | None,
    gain_D: Tensor | None,
    norm_eps: Tensor | None,
    norm_root_T: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """What multiplies weights (k, T, N) and streams (T, N) in the streams' gradient; gradients of static and scale; and
    of h (T, D), with the gain's part (T, D)."""
    count = streams_TND.shape[1]
    dh_TD, part_TD = through_norm(streams_TND, pre_TN, dh_TD, gain_D, norm_eps, norm_root_T)
    dpre_TN = _along(streams_TND, dh_TD, dpre_TN, root_TN)
    if dmixing_TNN is None:
        dmixing_TNN = torch.zeros_like(root_TN).unsqueeze(1).expand(-1, count, -1)
    dpost_TN = torch.zeros_like(root_TN) if dpost_TN is None else dpost_TN
    dmade_kTN = torch.cat((dpre_TN.unsqueeze(0), dmixing_TNN.transpose(0, 1), dpost_TN.unsqueeze(0)))
    tanh_kTN = torch.tanh(y_kTN)
    slope_kTN = dmade_kTN * scale_k.view(-1, 1, 1) * (1 - tanh_kTN * tanh_kTN) * root_TN
    pull_TN = -(slope_kTN * y_kTN).sum(0) * root_TN / streams_TND.shape[2]
    return slope_kTN, pull_TN, dmade_kTN.sum(1), (dmade_kTN * tanh_kTN).sum((1, 2)), dh_TD, part_TD


def hyper_grads(
    streams_TND: Tensor,
    weight_kD: Tensor,
    slope_kTN: Tensor,
    pull_TN: Tensor,
    pre_TN: Tensor,
    dh_TD: Tensor | None,
    given_TND: Tensor | None,
) -> Tensor:
    """`Σ_k slope_k W_k + pull H_i + pre_i dh + what is handed in`, in the streams' dtype."""
    grads = []
    for i in range(streams_TND.shape[1]):
        along = _sum([slope_kTN[k, :, i : i + 1] * weight_kD[k] for k in range(weight_kD.shape[0])])
        grads.append(along + _pulled(i, streams_TND, pull_TN[:, i : i + 1], pre_TN, dh_TD, given_TND))
    return torch.stack(grads, dim=1).to(streams_TND.dtype)


def _pulled(
    i: int, streams_TND: Tensor, pull_T1: Tensor, pre_TN: Tensor, dh_TD: Tensor | None, given_TND: Tensor | None
) -> Tensor:
    grad_TD = pull_T1 * streams_TND[:, i].to(pull_T1.dtype)
    if dh_TD is not None:
        grad_TD = grad_TD + pre_TN[:, i : i + 1] * dh_TD
    return grad_TD if given_TND is None else grad_TD + given_TND[:, i].to(pull_T1.dtype)


def manifold(
    streams_TND: Tensor,
    weight_kK: Tensor,
    bias_k: Tensor,
    scale_k: Tensor,
    eps: float,
    gain_D: Tensor | None,
    norm_eps: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Pre (T, N), h (T, D), the mixing's logits (R, T), post (T, N), projections (k, T), root (T), the norm's root."""
    count = streams_TND.shape[1]
    x_TK = streams_TND.flatten(1).to(weight_kK.dtype)
    root_T = (x_TK.square().sum(-1) / x_TK.shape[1] + eps).rsqrt()
    y_kT = torch.mm(x_TK, weight_kK.t()).t() * root_T
    made_kT = bias_k.unsqueeze(1) + scale_k.unsqueeze(1) * y_kT
    gates_TN = torch.sigmoid(made_kT[: 2 * count]).t()
    pre_TN = gates_TN[:, :count].contiguous()
    h_TD, norm_root_T = read(streams_TND, pre_TN, gain_D, norm_eps)
    return pre_TN, h_TD, made_kT[2 * count :], 2 * gates_TN[:, count:], y_kT, root_T, norm_root_T


def manifold_slopes(
    streams_TND: Tensor,
    y_kT: Tensor,
    root_T: Tensor,
    scale_k: Tensor,
    pre_TN: Tensor,
    post_TN: Tensor,
    dpre_TN: Tensor | None,
    dh_TD: Tensor | None,
    dlogits_RT: Tensor,
    dpost_TN: Tensor | None,
    gain_D: Tensor | None,
    norm_eps: Tensor | None,
    norm_root_T: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """What multiplies weights (k, T) and streams (T) in the streams' gradient; gradients of bias and scale; and of h
    (T, D), with the gain's part (T, D)."""
    dim = streams_TND.shape[1] * streams_TND.shape[2]
    dh_TD, part_TD = through_norm(streams_TND, pre_TN, dh_TD, gain_D, norm_eps, norm_root_T)
    dpre_TN = _along(streams_TND, dh_TD, dpre_TN, pre_TN) * pre_TN * (1 - pre_TN)
    dpost_TN = torch.zeros_like(post_TN) if dpost_TN is None else dpost_TN * post_TN * (1 - 0.5 * post_TN)
    dmade_kT = torch.cat((dpre_TN.t(), dpost_TN.t(), dlogits_RT))
    slope_kT = dmade_kT * scale_k.unsqueeze(1) * root_T
    pull_T = -(slope_kT * y_kT).sum(0) * root_T / dim
    return slope_kT, pull_T, dmade_kT.sum(1), (dmade_kT * y_kT).sum(1), dh_TD, part_TD


def manifold_grads(
    along_TND: Tensor,
    streams_TND: Tensor,
    pre_TN: Tensor,
    pull_T: Tensor,
    dh_TD: Tensor | None,
    given_TND: Tensor | None,
) -> Tensor:
    """`along + pull H_i + pre_i dh + what is handed in`, in the streams' dtype."""
    pull_T1 = pull_T.unsqueeze(-1)
    grads = [
        along_TND[:, i] + _pulled(i, streams_TND, pull_T1, pre_TN, dh_TD, given_TND)
        for i in range(streams_TND.shape[1])
    ]
    return torch.stack(grads, dim=1).to(streams_TND.dtype)
