"""A step of Multi-Gate Residuals in plain PyTorch: the truth."""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.ops.precision import wide


def multi_gate_step_reference(
    streams: Tensor,
    pending: tuple[Tensor, Tensor] | None,
    pool_query: Tensor | None,
    gate: tuple[Tensor, Tensor] | None,
    kind: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Streams, read and gates; see `leadline.ops.multi_gate_step`."""
    dtype = streams.dtype
    if pending is not None:
        output, beta = pending
        old = streams.to(wide(dtype))
        streams = (old + beta.unsqueeze(-1) * (output.to(old.dtype) - old)).to(dtype)
    x = streams.to(wide(dtype))
    unit = x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    read = streams[0]
    if pool_query is not None:
        read = (pool_weights(unit, pool_query).unsqueeze(-1) * x).sum(dim=0).to(dtype)
    return streams, read, None if gate is None else gate_values(unit, *gate, kind)


def pool_weights(unit: Tensor, query: Tensor) -> Tensor:
    """AttnPool's weights (N, ...) for `rms(s)` (N, ..., D)."""
    return torch.softmax((unit * query.to(unit.dtype)).sum(dim=-1) / unit.shape[-1] ** 0.5, dim=0)


def gate_values(unit: Tensor, query: Tensor, bias: Tensor, kind: str) -> Tensor:
    """β (N, ...) for `rms(s)` (N, ..., D)."""
    scores = (unit * query.to(unit.dtype)).sum(dim=-1) / unit.shape[-1] ** 0.5
    return gates_from(scores, bias, kind)


def gates_from(scores: Tensor, bias: Tensor, kind: str) -> Tensor:
    """β (N, ...) for scores z (N, ...) and the bias b (1,)."""
    bias = bias.to(scores.dtype)
    if kind == "independent":
        return torch.sigmoid(scores + bias)
    carry = bias.reshape((1,) * scores.dim()).expand(1, *scores.shape[1:])
    return torch.softmax(torch.cat((carry, scores)), dim=0)[1:]
