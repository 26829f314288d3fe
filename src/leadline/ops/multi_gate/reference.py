"""A step of Multi-Gate Residuals in plain PyTorch: the truth."""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.ops.multi_gate.parts import Parameters, Pending
from leadline.ops.precision import wide


def multi_gate_step_reference(
    streams: Tensor, pending: Pending | None, parameters: Parameters
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Streams, read and gates; see `leadline.ops.multi_gate_step`."""
    dtype = streams.dtype
    pool_query, gate_query, gate_bias, independent, eps = parameters
    if pending is not None:
        output, beta = pending
        old = streams.to(wide(dtype))
        streams = (old + beta.unsqueeze(-1) * (output.to(old.dtype) - old)).to(dtype)
    x = streams.to(wide(dtype))
    unit = x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    read = streams[0]
    if pool_query is not None:
        read = (scores_from(unit, pool_query).softmax(dim=0).unsqueeze(-1) * x).sum(dim=0).to(dtype)
    gates = None
    if gate_query is not None and gate_bias is not None:
        gates = gates_from(scores_from(unit, gate_query), gate_bias, independent)
    return streams, read, gates


def scores_from(unit: Tensor, query: Tensor) -> Tensor:
    """Scores (N, ...) of a query for `rms(s)` (N, ..., D)."""
    return (unit * query.to(unit.dtype)).sum(dim=-1) / unit.shape[-1] ** 0.5


def gates_from(scores: Tensor, bias: Tensor, independent: bool) -> Tensor:
    """β (N, ...) for scores z (N, ...) and the bias b (1,)."""
    bias = bias.to(scores.dtype)
    if independent:
        return torch.sigmoid(scores + bias)
    carry = bias.reshape((1,) * scores.dim()).expand(1, *scores.shape[1:])
    return torch.softmax(torch.cat((carry, scores)), dim=0)[1:]
