"""The RMSNorm that reads what depth returns, folded into the operator that returns it: `y = g h / sqrt(mean h² + eps)`.

What lies between depth and a sublayer is then one operator: h is not read a second time, forward or backward. Backward,
with ρ the inverse RMS (rstd): `dh = ρ (g dy) − ρ³/D (g dy · h) h`, `dg = Σ_tokens ρ dy h`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.ops.precision import wide


class NextNorm(NamedTuple):
    """The norm's parameters.

    Attributes:
        gain: (D,).
        eps: added to the mean square.
    """

    gain: Tensor
    eps: float


class BodyNorm(NamedTuple):
    """The same for a body, with eps as a tensor (1,): one compiled body serves all values."""

    gain: Tensor
    eps: Tensor


def for_body(norm: NextNorm | None, dtype: torch.dtype) -> BodyNorm | None:
    """The norm of something that flows in `dtype`."""
    return None if norm is None else BodyNorm(norm.gain, _number(norm.eps, wide(dtype)))


def next_norm(gain: Tensor | None, eps: float) -> NextNorm | None:
    """The norm as an autograd function takes it, apart; None without a gain."""
    return None if gain is None else NextNorm(gain, eps)


def normed(h: Tensor, norm: NextNorm | None) -> Tensor:
    """The norm of h (..., D), in h's dtype, as an operator of its own; h itself without a norm."""
    if norm is None:
        return h
    dtype = wide(h.dtype)
    return F.rms_norm(h.to(dtype), norm.gain.shape, norm.gain.to(dtype), norm.eps).to(h.dtype)


@functools.cache
def _number(value: float, dtype: torch.dtype) -> Tensor:
    """A number as a tensor (1,) on the CPU."""
    with torch.inference_mode(False):
        return torch.tensor([value], dtype=dtype)


def norm_rows(h_ND: Tensor, norm: BodyNorm) -> tuple[Tensor, Tensor]:
    """In a body: y (N, D) and ρ (N)."""
    rstd_N = (h_ND.square().sum(-1) / h_ND.shape[-1] + norm.eps).rsqrt()
    return h_ND * rstd_N.unsqueeze(-1) * norm.gain.to(h_ND.dtype), rstd_N


def norm_rows_back(dy_ND: Tensor, h_ND: Tensor, norm: BodyNorm, rstd_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In a body: dh (N, D); what the gain's gradient sums over tokens (N, D); and dh · h = eps ρ³ (g dy · h), (N)."""
    scaled_ND = dy_ND * norm.gain.to(h_ND.dtype)
    square_N = rstd_N.square()
    along_N = (scaled_ND * h_ND).sum(-1)
    unit = rstd_N.unsqueeze(-1)
    dh_ND = unit * (scaled_ND - (along_N * square_N / h_ND.shape[-1]).unsqueeze(-1) * h_ND)
    return dh_ND, unit * dy_ND * h_ND, norm.eps * rstd_N * square_N * along_N


def over_tokens(parts_ND: Tensor) -> Tensor:
    """Σ over tokens, (D): as a matrix product, which is faster than a sum on a CPU."""
    return torch.mv(parts_ND.t(), parts_ND.new_ones(parts_ND.shape[0]))
