"""Norms: what bounds a sublayer's input. Each is a frozen configuration that builds a module."""

from leadline.norms.base import Norm, NormConfig, Role
from leadline.norms.bhyt import BHyT, BoundedTanhNorm, BoundedTanhReuse
from leadline.norms.elementwise import Derf, DyT
from leadline.norms.standard import LayerNorm, NoNorm, RMSNorm

__all__ = [
    "BHyT",
    "BoundedTanhNorm",
    "BoundedTanhReuse",
    "Derf",
    "DyT",
    "LayerNorm",
    "NoNorm",
    "Norm",
    "NormConfig",
    "RMSNorm",
    "Role",
]
