"""A decoder as data: one configuration per layer, so that a taper, a removed block or a mixture is data, not code."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from leadline.config import kind
from leadline.connections.base import Connection
from leadline.errors import UsageError
from leadline.norms.base import NormConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """Causal self-attention with rotary embeddings.

    Attributes:
        heads: query heads.
        kv_heads: key and value heads; divides `heads`.
        head_dim: width of a head; even, because rotary embeddings turn pairs.
        qk_norm: RMSNorm on each head's queries and keys, before the rotary embeddings.
    """

    heads: int
    kv_heads: int
    head_dim: int
    qk_norm: bool = False

    def check(self, where: str) -> None:
        """Raises UsageError, naming `where`, if the numbers don't fit each other."""
        _at_least_one(f"{where}.heads", self.heads)
        _at_least_one(f"{where}.kv_heads", self.kv_heads)
        _at_least_one(f"{where}.head_dim", self.head_dim)
        if self.heads % self.kv_heads:
            work = ", ".join(str(n) for n in range(1, self.heads + 1) if self.heads % n == 0)
            raise UsageError(f"{where}.kv_heads={self.kv_heads} does not divide heads={self.heads}; {work} work")
        if self.head_dim % 2:
            raise UsageError(
                f"{where}.head_dim={self.head_dim} is odd, and rotary embeddings turn pairs; "
                f"{max(self.head_dim - 1, 2)} and {max(self.head_dim + 1, 4)} work"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLPConfig:
    """SwiGLU: `down(silu(gate(x)) * up(x))`.

    Attributes:
        hidden: width between.
    """

    hidden: int

    def check(self, where: str) -> None:
        """Raises UsageError, naming `where`, if the width is not positive."""
        _at_least_one(f"{where}.hidden", self.hidden)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """One transformer block: two sublayers, each with its norms.

    Attributes:
        attention: the first sublayer.
        mlp: the second.
        attention_norm: what stands before attention.
        mlp_norm: what stands before the MLP.
        attention_output_norm: what stands behind attention (Peri-LN, Sandwich), if anything.
        mlp_output_norm: the same behind the MLP.
        norm_scale: multiplies the output of both input norms (LNS: 1/sqrt(block number), already worked out).
    """

    attention: AttentionConfig
    mlp: MLPConfig
    attention_norm: NormConfig
    mlp_norm: NormConfig
    attention_output_norm: NormConfig | None = None
    mlp_output_norm: NormConfig | None = None
    norm_scale: float = 1.0

    def check(self, where: str) -> None:
        """Raises UsageError, naming `where`, if something in this block doesn't fit."""
        self.attention.check(f"{where}.attention")
        self.mlp.check(f"{where}.mlp")
        if not (self.norm_scale > 0 and math.isfinite(self.norm_scale)):
            raise UsageError(f"{where}.norm_scale={self.norm_scale} must be a finite number more than 0, such as 1.0")


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitConfig:
    """How matrices start: normal with mean 0, everything else at what its module says.

    Attributes:
        std: the standard deviation; None is 0.02·sqrt(512/dim). [ours]
        output_scale: "depth" divides the output projections of attention and MLP by sqrt(2·blocks) (GPT-2).
        deepnorm: multiplies the matrices of the MLP, values and attention's output by (8·blocks)^-1/4
            (arXiv 2203.00555, decoders); queries and keys stay.
    """

    std: float | None = None
    output_scale: Literal["none", "depth"] = "depth"
    deepnorm: bool = False

    def __post_init__(self) -> None:
        if self.std is not None and not (self.std >= 0 and math.isfinite(self.std)):
            raise UsageError(f"std={self.std} must be a finite number of 0 or more, such as 0.02, or None")
        if self.output_scale not in ("none", "depth"):
            raise UsageError(f"output_scale={self.output_scale!r} can be none or depth")


@kind("decoder")
@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The whole configuration of a decoder.

    Attributes:
        vocab_size: number of tokens.
        dim: model width.
        layers: one configuration per block, from the embedding up. None is allowed: an embedding and a head.
        connection: how sublayers read from depth and write back.
        final_norm: what stands between the readout and the head.
        embedding_norm: what stands behind the embedding (Peri-LN), if anything.
        embedding_scale: multiply the embedding by a learned scalar that starts at sqrt(dim) (DyT).
        rope_theta: base of the rotary frequencies.
        context: the length of training sequences in tokens.
        tied: the head is the embedding's matrix.
        init: how matrices start.
    """

    vocab_size: int
    dim: int
    layers: tuple[LayerConfig, ...]
    connection: Connection
    final_norm: NormConfig
    embedding_norm: NormConfig | None = None
    embedding_scale: bool = False
    rope_theta: float = 10000.0
    context: int
    tied: bool = True
    init: InitConfig = InitConfig()

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        _at_least_one("vocab_size", self.vocab_size)
        _at_least_one("dim", self.dim)
        _at_least_one("context", self.context)
        if not (self.rope_theta > 0 and math.isfinite(self.rope_theta)):
            raise UsageError(f"rope_theta={self.rope_theta} must be a finite number more than 0, such as 10000.0")
        for index, layer in enumerate(self.layers):
            if not isinstance(layer, LayerConfig):
                raise UsageError(f"layers[{index}] should be a LayerConfig, not {type(layer).__name__}")
            layer.check(f"layers[{index}]")

    @property
    def sublayers(self) -> int:
        """Number of sublayers: two per block."""
        return 2 * len(self.layers)


def _at_least_one(option: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"{option}={value} must be at least 1")
