"""Connections whose settings depend on the depth, or that bring a placement along.

A recipe becomes a `Connection` when the number of blocks is known: `recipe.resolve(blocks)`.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from leadline.connections import Additive, AttentionResiduals, Connection
from leadline.errors import UsageError

Placement = Literal["pre", "peri", "sandwich", "lns", "post", "mix"]
"""Where the norms stand, see `docs/norms.md`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What becomes a connection once the number of blocks is known."""

    def resolve(self, blocks: int) -> Connection:
        """The connection for a stack of `blocks` blocks."""
        raise TypeError(f"{type(self).__name__} does not define resolve")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain(Recipe):
    """The plain residual stream."""

    def resolve(self, blocks: int) -> Connection:
        return Additive()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PostNorm(Recipe):
    """`x ← norm(x + F(x))`, no norm inside.

    Attributes:
        norm: LayerNorm as in the first Transformer, or RMSNorm.
    """

    placement: ClassVar[Placement] = "post"
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"

    def resolve(self, blocks: int) -> Connection:
        return Additive(post_norm=self.norm)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepPostNorm(PostNorm):
    """`x ← norm(α x + F(x))` with α = (2·blocks)^¼; the initialisation goes with it."""

    def resolve(self, blocks: int) -> Connection:
        return Additive(post_norm=self.norm, alpha="deepnorm")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixedNorm(Recipe):
    """Post-norm in the first blocks, pre-norm in the others.

    Attributes:
        norm: the post-norm's kind [ours: RMSNorm, as in the other blocks].
        share: the share of blocks with post-norm, rounded to at least one block [paper: a quarter].
    """

    placement: ClassVar[Placement] = "mix"
    norm: Literal["layernorm", "rmsnorm"] = "rmsnorm"
    share: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UsageError(f"share={self.share} must lie between 0 and 1; the paper uses 0.25")

    def post_blocks(self, blocks: int) -> int:
        """How many blocks, from the first, have post-norm."""
        return min(blocks, max(1, round(self.share * blocks)))

    def resolve(self, blocks: int) -> Connection:
        return Additive(post_norm=self.norm, post_norm_blocks=self.post_blocks(blocks))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerScale(Recipe):
    """A learned scale per channel on every sublayer's output.

    Attributes:
        start: where the scale starts.
    """

    start: float = 1e-4

    def resolve(self, blocks: int) -> Connection:
        return Additive(branch="layerscale", layerscale_init=self.start)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReZero(Recipe):
    """A learned scalar, starting at zero, on every sublayer's output."""

    def resolve(self, blocks: int) -> Connection:
        return Additive(branch="rezero")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockAttentionResiduals(Recipe):
    """Attention Residuals over a bank of block sums.

    Attributes:
        blocks: about how many blocks the stack is cut into; the block size is the sublayers divided by it, rounded.
        key_norm: whether keys are normalised.
        weights: how scores become weights.
    """

    blocks: int = 8
    key_norm: bool = True
    weights: Literal["softmax", "sigmoid", "static"] = "softmax"

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise UsageError(f"blocks={self.blocks} must be at least 1; the paper uses 8")

    def resolve(self, blocks: int) -> Connection:
        size = max(1, round(2 * blocks / self.blocks))
        return AttentionResiduals(block_size=size, key_norm=self.key_norm, weights=self.weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeriLN:
    """A norm before and after every sublayer.

    Attributes:
        embedding_norm: whether the embedding is normalised too.
    """

    placement: ClassVar[Placement] = "peri"
    embedding_norm: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class SandwichLN:
    """A norm before and after every sublayer; the embedding stays as it is."""

    placement: ClassVar[Placement] = "sandwich"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerNormScaling:
    """Every input norm divided by the square root of the block's number."""

    placement: ClassVar[Placement] = "lns"


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryKeyNorm:
    """RMSNorm on each head's queries and keys."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainInit:
    """Output projections start like all other matrices, not divided by sqrt(2·blocks)."""
