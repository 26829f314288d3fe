"""RMSNorm, LayerNorm, and none: the norms that everyone knows."""

from __future__ import annotations

import dataclasses

import torch.nn.functional as F
from torch import Tensor, nn

from leadline.config import kind
from leadline.norms.base import Norm, NormConfig, Place, check_eps
from leadline.ops.next_norm import NextNorm
from leadline.ops.precision import wide


@kind("rmsnorm")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RMSNorm(NormConfig):
    """`gain * x / sqrt(mean x² + eps)`, gain starting at one.

    Attributes:
        eps: added to the mean square; the module uses `eps * scale**2`.
        gain: whether there is a learned gain per channel.
    """

    eps: float = 1e-6
    gain: bool = True

    def __post_init__(self) -> None:
        check_eps(self.eps)

    def make(self, place: Place) -> RootMeanSquareNorm:
        return RootMeanSquareNorm(self, place)


class RootMeanSquareNorm(Norm):
    """The module of `RMSNorm`: parameter `gain` (dim,), or none."""

    gain: nn.Parameter | None

    def __init__(self, config: RMSNorm, place: Place) -> None:
        super().__init__(place, gain=1.0 if config.gain else None)
        self.dim = place.dim
        self.eps = config.eps * place.scale**2

    def forward(self, x: Tensor) -> Tensor:
        dtype = wide(x.dtype)
        gain = None if self.gain is None else self.gain.to(dtype)
        return F.rms_norm(x.to(dtype), (self.dim,), gain, self.eps).to(x.dtype)

    def folded(self) -> NextNorm | None:
        """Its gain and eps, unless it has no gain, or something waits for the module to be called."""
        gain = self.gain
        if gain is None or self._forward_hooks or self._forward_pre_hooks or self._backward_hooks:
            return None
        return None if self._backward_pre_hooks else NextNorm(gain, self.eps)

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}, gain={self.gain is not None}"


@kind("layernorm")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerNorm(NormConfig):
    """`gain * (x - mean) / sqrt(var + eps) + bias`, gain starting at one, bias (if any) at zero.

    Attributes:
        eps: added to the variance; the module uses `eps * scale**2`.
        bias: whether there is a learned bias per channel.
    """

    eps: float = 1e-6
    bias: bool = False

    def __post_init__(self) -> None:
        check_eps(self.eps)

    def make(self, place: Place) -> MeanVarianceNorm:
        return MeanVarianceNorm(self, place)


class MeanVarianceNorm(Norm):
    """The module of `LayerNorm`: parameters `gain` (dim,) and, with bias, `bias` (dim,)."""

    gain: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, config: LayerNorm, place: Place) -> None:
        super().__init__(place, gain=1.0, bias=0.0 if config.bias else None)
        self.dim = place.dim
        self.eps = config.eps * place.scale**2

    def forward(self, x: Tensor) -> Tensor:
        dtype = wide(x.dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        return F.layer_norm(x.to(dtype), (self.dim,), self.gain.to(dtype), bias, self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}, bias={self.bias is not None}"


@kind("none")
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoNorm(NormConfig):
    """No norm here: the input passes unchanged. For Post-LN and DeepNorm, whose connection normalises."""

    def make(self, place: Place) -> Identity:
        return Identity(place)


class Identity(Norm):
    """The module of `NoNorm`."""

    def forward(self, x: Tensor) -> Tensor:
        return x
