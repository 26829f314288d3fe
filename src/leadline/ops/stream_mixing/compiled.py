"""Bodies of stream mixing for Inductor: one loop over tokens each, stream by stream.

Shapes: T tokens, N streams, D width, k projections.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
    streams_TND: Tensor, weight_kD: Tensor, static_kN: Tensor, scale_k: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Coefficients (k, T, N), h (T, D), projections (k, T, N) and roots (T, N)."""
    count, dim, dtype = streams_TND.shape[1], streams_TND.shape[2], weight_kD.dtype
    rows = [streams_TND[:, i].to(dtype) for i in range(count)]
    roots = [(row.square().sum(-1) / dim + eps).rsqrt() for row in rows]
    projected = [
        [(row * weight_kD[k]).sum(-1) * root for row, root in zip(rows, roots, strict=True)] for k in range(count + 2)
    ]
    made = [[static_kN[k, i] + scale_k[k] * torch.tanh(y) for i, y in enumerate(ys)] for k, ys in enumerate(projected)]
    h = _sum([pre.unsqueeze(-1) * row for pre, row in zip(made[0], rows, strict=True)])
    return (
        torch.stack([torch.stack(cs, dim=-1) for cs in made]),
        h.to(streams_TND.dtype),
        torch.stack([torch.stack(ys, dim=-1) for ys in projected]),
        torch.stack(roots, dim=-1),
    )


def hyper_back(
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
    """Gradients of the streams, of weight, static and scale."""
    count, dim, dtype = streams_TND.shape[1], streams_TND.shape[2], weight_kD.dtype
    rows = [streams_TND[:, i].to(dtype) for i in range(count)]
    dh = None if dh_TD is None else dh_TD.to(dtype)
    dmade = [[dmade_kTN[k, :, i] for i in range(count)] for k in range(count + 2)]
    if dh is not None:
        dmade[0] = [d + (row * dh).sum(-1) for d, row in zip(dmade[0], rows, strict=True)]
    tanhs = [[torch.tanh(projected_kTN[k, :, i]) for i in range(count)] for k in range(count + 2)]
    dstatic = torch.stack([torch.stack([d.sum() for d in ds]) for ds in dmade])
    dscale = torch.stack(
        [_sum([d * t for d, t in zip(dmade[k], tanhs[k], strict=True)]).sum() for k in range(count + 2)]
    )
    slopes = [
        [d * scale_k[k] * (1 - t * t) * root_TN[:, i] for i, (d, t) in enumerate(zip(dmade[k], tanhs[k], strict=True))]
        for k in range(count + 2)
    ]
    grads = []
    for i, row in enumerate(rows):
        pull = _sum([slopes[k][i] * projected_kTN[k, :, i] for k in range(count + 2)]) * root_TN[:, i] / dim
        grad = _sum([slopes[k][i].unsqueeze(-1) * weight_kD[k] for k in range(count + 2)]) - pull.unsqueeze(-1) * row
        if dh is not None:
            grad = grad + pre_TN[:, i : i + 1] * dh
        if dstreams_TND is not None:
            grad = grad + dstreams_TND[:, i].to(dtype)
        grads.append(grad.to(streams_TND.dtype))
    slope_kT = [torch.stack([slopes[k][i] for k in range(count + 2)]) for i in range(count)]
    dweight = _sum([torch.mm(slope_kT[i], rows[i]) for i in range(count)])
    return torch.stack(grads, dim=1), dweight, dstatic, dscale


def manifold(
    streams_TND: Tensor, projected_kT: Tensor, bias_k: Tensor, scale_k: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pre (T, N), h (T, D), the mixing's logits (R, T), post (T, N)."""
    count, dtype = streams_TND.shape[1], projected_kT.dtype
    rows = [streams_TND[:, i].to(dtype) for i in range(count)]
    made = [bias_k[k] + scale_k[k] * projected_kT[k] for k in range(2 * count)]
    gates = [torch.sigmoid(u) for u in made]
    h = _sum([gates[i].unsqueeze(-1) * row for i, row in enumerate(rows)])
    logits = bias_k[2 * count :].unsqueeze(1) + scale_k[2 * count :].unsqueeze(1) * projected_kT[2 * count :]
    return (
        torch.stack(gates[:count], dim=-1),
        h.to(streams_TND.dtype),
        logits,
        2 * torch.stack(gates[count:], dim=-1),
    )


def manifold_slopes(
    streams_TND: Tensor,
    projected_kT: Tensor,
    root_T: Tensor,
    scale_k: Tensor,
    pre_TN: Tensor,
    post_TN: Tensor,
    dpre_TN: Tensor | None,
    dh_TD: Tensor | None,
    dlogits_RT: Tensor,
    dpost_TN: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What multiplies weights (k, T) and streams (T) in the streams' gradient; gradients of bias and scale."""
    count, dim, dtype = streams_TND.shape[1], streams_TND.shape[1] * streams_TND.shape[2], projected_kT.dtype
    dmade = []
    for i in range(count):
        slope = torch.zeros_like(root_T) if dpre_TN is None else dpre_TN[:, i]
        if dh_TD is not None:
            slope = slope + (streams_TND[:, i].to(dtype) * dh_TD.to(dtype)).sum(-1)
        dmade.append(slope * pre_TN[:, i] * (1 - pre_TN[:, i]))
    for i in range(count):
        slope = torch.zeros_like(root_T) if dpost_TN is None else dpost_TN[:, i]
        dmade.append(slope * post_TN[:, i] * (1 - 0.5 * post_TN[:, i]))
    dmade_kT = torch.cat((torch.stack(dmade), dlogits_RT))
    slope_kT = dmade_kT * scale_k.unsqueeze(1) * root_T
    pull_T = -(slope_kT * projected_kT).sum(0) * root_T / dim
    return slope_kT, pull_T, dmade_kT.sum(1), (dmade_kT * projected_kT).sum(1)


def pulled(grad_TND: Tensor, streams_TND: Tensor, pre_TN: Tensor, pull_T: Tensor, dh_TD: Tensor | None) -> Tensor:
    """`grad + pull H_i + pre_i dh`, in the streams' dtype."""
    dtype = pull_T.dtype
    parts = []
    for i in range(streams_TND.shape[1]):
        part = grad_TND[:, i].to(dtype) + pull_T.unsqueeze(-1) * streams_TND[:, i].to(dtype)
        if dh_TD is not None:
            part = part + pre_TN[:, i : i + 1] * dh_TD.to(dtype)
        parts.append(part.to(streams_TND.dtype))
    return torch.stack(parts, dim=1)
