"""A decoder as data: one configuration per layer, so that a taper, a removed block or a mixture is data, not code.

A *block* is a layer in the stack as it runs. Without `repeat` the two are the same.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Literal

from leadline.config import kind
from leadline.connections.base import Connection
from leadline.errors import UsageError
from leadline.norms.base import NormConfig

LARGEST = 2**48
"""Of any size; PyTorch can't count the entries of what is larger."""


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
        _check_sizes(self, "heads", "kv_heads", "head_dim", where=f"{where}.")
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
        _check_sizes(self, "hidden", where=f"{where}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """One transformer block: two sublayers, each with its norms; or one of them, where the other was cut out.

    Attributes:
        attention: the first sublayer, or None where the block has none; its norms then mean nothing.
        mlp: the second, in the same way. A block has at least one of them.
        attention_norm: what stands before attention.
        mlp_norm: what stands before the MLP.
        attention_output_norm: what stands behind attention (Peri-LN, Sandwich), if anything.
        mlp_output_norm: the same behind the MLP.
        norm_scale: multiplies the output of both input norms (LNS: 1/sqrt(block number), already computed).
    """

    attention: AttentionConfig | None
    mlp: MLPConfig | None
    attention_norm: NormConfig
    mlp_norm: NormConfig
    attention_output_norm: NormConfig | None = None
    mlp_output_norm: NormConfig | None = None
    norm_scale: float = 1.0

    def check(self, where: str) -> None:
        """Raises UsageError, naming `where`, if something in this block doesn't fit."""
        if self.attention is None and self.mlp is None:
            raise UsageError(f"{where} has neither attention nor mlp; leave the whole layer out of layers")
        if self.attention is not None:
            self.attention.check(f"{where}.attention")
        if self.mlp is not None:
            self.mlp.check(f"{where}.mlp")
        if not (self.norm_scale > 0 and math.isfinite(self.norm_scale)):
            raise UsageError(f"{where}.norm_scale={self.norm_scale} must be a finite number more than 0, such as 1.0")

    @property
    def sublayers(self) -> int:
        """How many sublayers the block has: one or two."""
        return (self.attention is not None) + (self.mlp is not None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CutConfig:
    """The stack that a decoder was cut from. `leadline.models.cut` makes it.

    A connection resolves every index when it is built: block numbers, home streams, factors, scales. So a decoder with
    parts cut out builds its connection for the whole stack and takes the sites of what is left.

    Attributes:
        built_for: sublayers of the whole stack.
        places: the number that each sublayer which is left had there, ascending: attention of block i is 2i, its MLP
            2i + 1.
    """

    built_for: int
    places: tuple[int, ...]

    def check(self, blocks: Sequence[tuple[int | None, int | None]]) -> None:
        """Raises UsageError unless every sublayer has a place that fits; `blocks` are `DecoderConfig.numbers`."""
        sublayers = sum(number is not None for block in blocks for number in block)
        if self.built_for % 2 or self.built_for < 2:
            raise UsageError(f"cut.built_for={self.built_for} must be two sublayers for every block, such as 24")
        if len(self.places) != sublayers:
            raise UsageError(
                f"cut.places has {len(self.places)} numbers, and the stack has {sublayers} sublayers; each has one"
            )
        for before, place in zip((-1, *self.places), self.places, strict=False):
            if not before < place < self.built_for:
                raise UsageError(
                    f"cut.places has {place} after {before}; it ascends from 0 to {self.built_for - 1} "
                    f"(built_for={self.built_for})"
                )
        for index, (attention, mlp) in enumerate(blocks):
            pair = tuple(None if number is None else self.places[number] for number in (attention, mlp))
            wrong = any(place is not None and place % 2 != side for side, place in enumerate(pair))
            if wrong or (None not in pair and pair[0] != (pair[1] or 0) - 1):
                raise UsageError(
                    f"cut.places has {pair[0]} for attention and {pair[1]} for the MLP of block {index}; "
                    "those of one block are 2i and 2i + 1"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepeatConfig:
    """The last blocks run several times with the same parameters (arXiv 2606.26538, its second intervention).

    Of 4 layers, `last=2, times=3` makes a stack of 8 blocks: layers 0 1 2 3 2 3 2 3.

    Attributes:
        last: how many layers at the end of the list repeat.
        times: how often they run in all.
    """

    last: int
    times: int

    def check(self, layers: int) -> None:
        """Raises UsageError where there aren't so many layers, or nothing repeats."""
        if not 1 <= self.last <= layers:
            raise UsageError(f"repeat.last={self.last} must be from 1 to {layers}, the number of layers")
        if self.times < 2:
            raise UsageError(f"repeat.times={self.times} must be at least 2; without repetition, repeat is None")


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitConfig:
    """How matrices start: normal with mean 0, everything else at what its module says.

    Attributes:
        std: the standard deviation; None is 0.02·sqrt(512/dim). [ours]
        output_scale: "depth" divides the output projections of attention and MLP by sqrt(2·blocks) (GPT-2). Blocks
            are those with parameters of their own, repeats apart, before anything was cut out.
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
        repeat: the last layers run several times; None runs each once.
        cut: the stack that this one was cut from; None where nothing was.
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
    repeat: RepeatConfig | None = None
    cut: CutConfig | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        _check_sizes(self, "vocab_size", "dim", "context")
        if not (self.rope_theta > 0 and math.isfinite(self.rope_theta)):
            raise UsageError(f"rope_theta={self.rope_theta} must be a finite number more than 0, such as 10000.0")
        for index, layer in enumerate(self.layers):
            if not isinstance(layer, LayerConfig):
                raise UsageError(f"layers[{index}] should be a LayerConfig, not {type(layer).__name__}")
            layer.check(f"layers[{index}]")
        if self.repeat is not None:
            self.repeat.check(len(self.layers))
        if self.cut is not None:
            self.cut.check(self.numbers)
        for index, layer in enumerate(self.layers):
            if self.cut is None and layer.sublayers < 2:
                missing = "attention" if layer.attention is None else "mlp"
                raise UsageError(
                    f"layers[{index}].{missing} is None, so cut must say which places the other sublayers have; "
                    "leadline.models.cut(model, sublayers) makes such a model"
                )

    @property
    def block_layers(self) -> tuple[int, ...]:
        """The layer that each block of the stack runs: 0 1 2 3, and then again those that repeat."""
        layers = tuple(range(len(self.layers)))
        return layers if self.repeat is None else layers + layers[-self.repeat.last :] * (self.repeat.times - 1)

    @property
    def sublayers(self) -> int:
        """Number of sublayers in the stack as it runs: two per block, fewer where one was cut out."""
        return sum(self.layers[layer].sublayers for layer in self.block_layers)

    @property
    def numbers(self) -> tuple[tuple[int | None, int | None], ...]:
        """For each block the numbers of its attention and of its MLP among the sublayers; None for what isn't there."""
        count = itertools.count()
        layers = [self.layers[layer] for layer in self.block_layers]
        pairs = [[None if part is None else next(count) for part in (one.attention, one.mlp)] for one in layers]
        return tuple((attention, mlp) for attention, mlp in pairs)

    @property
    def built_for(self) -> int:
        """Sublayers of the stack that the connection is built for."""
        return self.sublayers if self.cut is None else self.cut.built_for

    @property
    def places(self) -> tuple[int, ...]:
        """The number of each sublayer in the stack that the connection is built for."""
        return tuple(range(self.sublayers)) if self.cut is None else self.cut.places

    @property
    def original_blocks(self) -> tuple[int, ...]:
        """The number of each block in the stack that the connection is built for."""
        places = self.places
        return tuple(places[next(number for number in block if number is not None)] // 2 for block in self.numbers)


def _check_sizes(config: object, *names: str, where: str = "") -> None:
    """Raises UsageError where one of these fields is no size."""
    for name in names:
        value = getattr(config, name)
        if value < 1:
            raise UsageError(f"{where}{name}={value} must be at least 1")
        if value > LARGEST:
            raise UsageError(f"{where}{name}={value} is too large; up to {LARGEST} works")
