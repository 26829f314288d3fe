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

from leadline.config import kind
from leadline.errors import UsageError
from leadline.norms.base import Device, Norm, NormConfig, Role
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
        _check_final(self.final, "dyt")
        if self.alpha is not None and not self.alpha > 0:
            raise UsageError(f"alpha={self.alpha} must be more than 0, or None for the start by width")

    def make(self, dim: int, scale: float, role: Role, device: Device, dtype: torch.dtype | None) -> Norm:
        if role == "query_key" or (role == "final" and self.final == "rmsnorm"):
            return RMSNorm().make(dim, scale, role, device, dtype)
        attention, others = ALPHA_BY_WIDTH.get(dim, (ALPHA_OTHERWISE, ALPHA_OTHERWISE))
        alpha = self.alpha or (attention if role == "attention" else others)
        return DynamicTanh(dim, alpha, bias=self.bias, scale=scale, device=device, dtype=dtype)


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
        _check_final(self.final, "derf")
        if not self.alpha > 0:
            raise UsageError(f"alpha={self.alpha} must be more than 0; the paper starts at 0.5")

    def make(self, dim: int, scale: float, role: Role, device: Device, dtype: torch.dtype | None) -> Norm:
        if role == "query_key" or (role == "final" and self.final == "rmsnorm"):
            return RMSNorm().make(dim, scale, role, device, dtype)
        return DynamicErf(dim, self.alpha, bias=self.bias, scale=scale, device=device, dtype=dtype)


class DynamicTanh(Norm):
    """The module of `DyT`: parameters `gain` (dim,), `alpha` (1,) and, with bias, `bias` (dim,)."""

    def __init__(
        self,
        dim: int,
        alpha: float,
        *,
        bias: bool = False,
        scale: float = 1.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(scale)
        self.alpha_start = alpha
        self.gain = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.alpha = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(dim, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.gain)
        nn.init.constant_(self.alpha, self.alpha_start)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

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

    def __init__(
        self,
        dim: int,
        alpha: float,
        *,
        bias: bool = True,
        scale: float = 1.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, alpha, bias=bias, scale=scale, device=device, dtype=dtype)
        self.shift = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "shift"):
            nn.init.zeros_(self.shift)

    def bound(self, u: Tensor) -> Tensor:
        return torch.erf(u + self.shift.to(u.dtype))


def _check_final(final: str, own: str) -> None:
    if final not in ("rmsnorm", own):
        raise UsageError(f"final={final!r} is not known; rmsnorm and {own} work")
