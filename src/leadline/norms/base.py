"""What every norm is made of: a frozen configuration that builds a module for one place in the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from leadline.errors import UsageError
from leadline.ops.next_norm import NextNorm

Device = torch.device | str | None

Role = Literal["attention", "mlp", "final", "output", "embedding", "query_key"]
"""Where it stands: before attention, the MLP or the head; after a sublayer or the embedding; on queries and keys."""


class Place(NamedTuple):
    """Where a norm stands and how it is made; see `NormConfig.build`."""

    dim: int
    scale: float
    role: Role
    device: Device
    dtype: torch.dtype | None


class Norm(nn.Module):
    """A norm module: `forward(x)` takes (..., dim) to (..., dim) in x's dtype.

    Args:
        place: where it stands.
        fixed: which of the starts are buffers.
        starts: by name what a parameter starts at, or None for one that isn't there. `gain` and `bias` have a number
            for each channel, the others have one.

    Attributes:
        scale: what the read before it is worth in residual streams at the zero-query start.
    """

    scale: float

    def __init__(self, place: Place, *, fixed: Collection[str] = (), **starts: float | None) -> None:
        super().__init__()
        self.scale = place.scale
        self._starts = {name: start for name, start in starts.items() if start is not None}
        for name, start in starts.items():
            size = place.dim if name in ("gain", "bias") else 1
            value = None if start is None else torch.full((size,), start, device=place.device, dtype=place.dtype)
            if name in fixed:
                self.register_buffer(name, value)
            else:
                self.register_parameter(name, None if value is None else nn.Parameter(value))

    def forward(self, x: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not define forward")

    def folded(self) -> NextNorm | None:
        """What a read needs to take this norm over; None where it has to be called as a module."""
        return None

    def reset_parameters(self) -> None:
        """Sets the starting values, after meta-device construction too."""
        for name, start in self._starts.items():
            nn.init.constant_(getattr(self, name), start)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormConfig:
    """The whole configuration of a norm; `build` makes the module for one place."""

    kind: ClassVar[str]

    def build(
        self,
        dim: int,
        *,
        scale: float = 1.0,
        role: Role = "attention",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> Norm:
        """The norm of width `dim` for one place.

        Args:
            dim: the width that statistics run over.
            scale: the site's `scale`; the module uses `eps * scale**2`, so that a mean of k sources
                (scale 1/k) is normalised exactly as their sum would be.
            role: where it stands; starting values depend on it in some norms.
            device: where parameters are made; "meta" makes none until `to_empty` and `reset_parameters`.
            dtype: of the parameters; PyTorch's default unless given.

        Raises:
            UsageError: `dim` is not positive or `scale` is not a positive number.
        """
        if dim < 1:
            raise UsageError(f"dim={dim} must be at least 1")
        if not scale > 0:
            raise UsageError(f"scale={scale} must be more than 0")
        return self.make(Place(dim, scale, role, device, dtype))

    def make(self, place: Place) -> Norm:
        """Makes the module; called by `build` with checked arguments."""
        raise TypeError(f"{type(self).__name__} does not define make")


def stands_aside(final: str, role: Role) -> bool:
    """Whether RMSNorm takes the place of a bounded function: on queries and keys, and before the head unless `final`
    says otherwise."""
    return role == "query_key" or (role == "final" and final == "rmsnorm")


def check_eps(eps: float) -> None:
    """Raises UsageError where `eps` can't stand under a root."""
    if not eps >= 0:
        raise UsageError(f"eps={eps} must be 0 or more, such as 1e-6")
