"""DyT and Derf: a bounded function of each element instead of a statistic over the width.

These aren't scale-invariant, and a read that averages k sources is k times smaller than the residual stream. So
both divide x by the site's `scale` first [ours]: at the zero-query start, every connection then equals the
PreNorm network with the same norm, as it does with RMSNorm through its eps rule.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn

from leadline.config import check_choices, kind
from leadline.errors import UsageError
from leadline.norms.base import Norm, NormConfig, Place, stands_aside
from leadline.norms.standard import RMSNorm
from leadline.ops.precision import wide

ALPHA_BY_WIDTH: dict[int, tuple[float, float]] = {
    1024: (1.0, 1.0),
    2048: (1.0, 0.5),
    4096: (0.8, 0.2),
    8192: (0.2, 0.05),
}
"""DyT's starting alpha by width, for (attention, others) [paper]."""

ALPHA_OTHERWISE = 0.5


@kind("dyt")
@dataclasses.dataclass(frozen=True, kw_only=True)
class DyT(NormConfig):
    """Dynamic tanh (arXiv 2503.10622): `gain * tanh(alpha x / scale) + bias`.

    Starts: gain one, bias zero, alpha by width as in the paper (`ALPHA_BY_WIDTH`, 0.5 for other widths). The
    paper multiplies the embedding by a learned scalar as well, which is the model's part (`embedding_scale`).
    On queries and keys, and by default before the head, this builds RMSNorm [ours].

    Attributes:
        alpha: a start for alpha at every place, instead of the width's.
        bias: whether there is a bias; the paper has none in Llama-like models.
        final: the norm before the head: "rmsnorm" [ours], or "dyt", with which a small model whose head is tied to its
            embedding learns nothing but frequencies: the last tanh saturates alike for all tokens.
    """

    alpha: float | None = None
    bias: bool = False
    final: Literal["rmsnorm", "dyt"] = "rmsnorm"

    def __post_init__(self) -> None:
        check_choices(self)
        if self.alpha is not None and not self.alpha > 0:
            raise UsageError(f"alpha={self.alpha} must be more than 0, or None for the start by width")

    def make(self, place: Place) -> Norm:
        if stands_aside(self.final, place.role):
            return RMSNorm().make(place)
        attention, others = ALPHA_BY_WIDTH.get(place.dim, (ALPHA_OTHERWISE, ALPHA_OTHERWISE))
        return DynamicTanh(place, self.alpha or (attention if place.role == "attention" else others), self.bias)


@kind("derf")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Derf(NormConfig):
    """Dynamic erf (arXiv 2512.10938): `gain * erf(alpha x / scale + shift) + bias`.

    Starts: gain one, bias zero, alpha 0.5, shift zero [paper]. On queries and keys, and by default
    before the head, this builds RMSNorm [ours].

    Attributes:
        alpha: the start of alpha.
        bias: whether there is a bias per channel.
        final: the norm before the head: "rmsnorm" [ours], or "derf"; see `DyT`.
    """

    alpha: float = 0.5
    bias: bool = True
    final: Literal["rmsnorm", "derf"] = "rmsnorm"

    def __post_init__(self) -> None:
        check_choices(self)
        if not self.alpha > 0:
            raise UsageError(f"alpha={self.alpha} must be more than 0; the paper starts at 0.5")

    def make(self, place: Place) -> Norm:
        if stands_aside(self.final, place.role):
            return RMSNorm().make(place)
        return DynamicErf(place, self.alpha, self.bias, shift=0.0)


class DynamicTanh(Norm):
    """The module of `DyT`: parameters `gain` (dim,), `alpha` (1,) and, with bias, `bias` (dim,)."""

    gain: nn.Parameter
    alpha: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, place: Place, alpha: float, bias: bool, shift: float | None = None) -> None:
        super().__init__(place, gain=1.0, alpha=alpha, bias=0.0 if bias else None, shift=shift)
        self.alpha_start = alpha

    def forward(self, x: Tensor) -> Tensor:
        dtype = wide(x.dtype)
        bounded = self.bound(x.to(dtype) * (self.alpha.to(dtype) / self.scale))
        y = self.gain.to(dtype) * bounded
        return (y if self.bias is None else y + self.bias.to(dtype)).to(x.dtype)

    def bound(self, u: Tensor) -> Tensor:
        """The bounded function itself."""
        return torch.tanh(u)

    def extra_repr(self) -> str:
        return f"{self.gain.shape[0]}, alpha_start={self.alpha_start}, scale={self.scale}"


class DynamicErf(DynamicTanh):
    """The module of `Derf`: as `DynamicTanh`, with the parameter `shift` (1,) too."""

    shift: nn.Parameter

    def bound(self, u: Tensor) -> Tensor:
        return torch.erf(u + self.shift.to(u.dtype))
