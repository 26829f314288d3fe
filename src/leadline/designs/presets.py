"""Model shapes by name, with the batch and the length of training that go with them."""

from __future__ import annotations

import dataclasses
from typing import Any

from leadline.config import check_numbers
from leadline.errors import UsageError, did_you_mean

DEEPEST = 1 << 14
WIDEST = 1 << 20
"""More blocks, or a wider model, than anyone trains: a slip of the hand, which would take all memory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShapeConfig:
    """The shape of a decoder, apart from its design and vocabulary.

    Attributes:
        dim: model width.
        blocks: transformer blocks; each has two sublayers.
        heads, kv_heads, head_dim: of attention.
        hidden: of the SwiGLU MLP.
        context: training length in tokens.
        tied: whether the head shares the embedding's matrix.
    """

    dim: int
    blocks: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    context: int
    tied: bool = True

    def __post_init__(self) -> None:
        check_numbers(self, positive=("dim", "blocks", "heads", "kv_heads", "head_dim", "hidden", "context"))
        if self.blocks > DEEPEST:
            raise UsageError(f"blocks={self.blocks} is too many; up to {DEEPEST} work")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preset(ShapeConfig):
    """A named shape.

    Attributes:
        name: as `--preset` takes it.
        batch_tokens: tokens in one optimiser step.
        steps: optimiser steps by default.
        learning_rate: the baseline's (prenorm) peak learning rate.
        vocab_size: the vocabulary that its size is quoted with; a run takes its data's own.
        source: where the shape comes from.
    """

    name: str
    batch_tokens: int
    steps: int
    learning_rate: float
    vocab_size: int
    source: str

    @property
    def tokens(self) -> int:
        """Training tokens by default."""
        return self.batch_tokens * self.steps

    @property
    def batch_size(self) -> int:
        """Sequences in one optimiser step."""
        return max(1, self.batch_tokens // self.context)

    @property
    def shape(self) -> ShapeConfig:
        """The shape alone."""
        return ShapeConfig(**{f.name: getattr(self, f.name) for f in dataclasses.fields(ShapeConfig)})


_GPT2 = "GPT-2's widths, heads and depths, as in arXiv 2605.23259; SwiGLU width 8/3 dim, rounded up to 64 (ours)"
_RATES = "learning rates and lengths are ours"

_ALL = (
    Preset(
        name="tiny", dim=72, blocks=24, heads=3, kv_heads=3, head_dim=24, hidden=192, context=128,
        batch_tokens=1024, steps=500, learning_rate=4e-3, vocab_size=257, source="ours: thin and deep, for a CPU",
    ),
    Preset(
        name="S", dim=768, blocks=12, heads=12, kv_heads=12, head_dim=64, hidden=2048, context=1024,
        batch_tokens=524288, steps=19073, learning_rate=6e-4, vocab_size=50257, source=f"{_GPT2}; {_RATES}",
    ),
    Preset(
        name="M", dim=1024, blocks=24, heads=16, kv_heads=16, head_dim=64, hidden=2752, context=1024,
        batch_tokens=524288, steps=19073, learning_rate=3e-4, vocab_size=50257, source=f"{_GPT2}; {_RATES}",
    ),
    Preset(
        name="L", dim=1280, blocks=36, heads=20, kv_heads=20, head_dim=64, hidden=3456, context=1024,
        batch_tokens=524288, steps=19073, learning_rate=2.5e-4, vocab_size=50257, source=f"{_GPT2}; {_RATES}",
    ),
    Preset(
        name="374M", dim=1024, blocks=16, heads=16, kv_heads=4, head_dim=64, hidden=4096, context=1024,
        batch_tokens=524288, steps=19073, learning_rate=3e-4, vocab_size=128256,
        source=f"arXiv 2601.09719; context and a tied vocabulary of 128,256 (it gives 374M) are ours; {_RATES}",
    ),
    Preset(
        name="1B", dim=2048, blocks=16, heads=32, kv_heads=8, head_dim=64, hidden=8192, context=1024,
        batch_tokens=524288, steps=38147, learning_rate=2e-4, vocab_size=128256,
        source=f"ours, like Llama 3.2 1B, for arXiv 2601.09719's 1B; {_RATES}",
    ),
    Preset(
        name="3B", dim=3072, blocks=28, heads=24, kv_heads=8, head_dim=128, hidden=8192, context=1024,
        batch_tokens=1048576, steps=57221, learning_rate=1.6e-4, vocab_size=128256,
        source=f"ours, like Llama 3.2 3B, for arXiv 2601.09719's 3B; {_RATES}",
    ),
)  # fmt: skip

PRESETS: dict[str, Preset] = {preset.name: preset for preset in _ALL}
"""Every preset by name."""


def preset_named(name: str) -> Preset:
    """The preset of that name; the case of its letters does not matter.

    Raises:
        UsageError: none has it.
    """
    for preset in PRESETS.values():
        if preset.name.lower() == name.lower():
            return preset
    raise UsageError(f"preset {name!r} is not known; {', '.join(PRESETS)} work.{did_you_mean(name, PRESETS)}")


def reshaped(
    shape: ShapeConfig,
    *,
    blocks: int | None = None,
    dim: int | None = None,
    heads: int | None = None,
    context: int | None = None,
) -> ShapeConfig:
    """The shape with another depth, width, number of heads or length; what is None stays.

    Another width scales the MLP's with it, to a multiple of 8. Without a number of heads, these stay as wide as they
    are; where that doesn't fit the width, they stay as many; where that doesn't either, there is one. Heads that are
    given share the width evenly. Queries a key head keep their number where it divides the heads, else every head has
    its own keys.

    Raises:
        UsageError: a number out of range, or heads that don't fit the width; names what does.
    """
    for name, value, most in (("blocks", blocks, DEEPEST), ("dim", dim, WIDEST), ("heads", heads, WIDEST)):
        if value is not None and not 1 <= value <= most:
            raise UsageError(f"{name}={value} is out of range; 1 to {most} work")
    if dim is not None and dim % 2:
        raise UsageError(f"dim={dim} is odd; the width must be even, such as {dim + 1}")
    new_dim = shape.dim if dim is None else dim
    new_heads = _heads_for(shape, new_dim) if heads is None else heads
    given = {"blocks": blocks, "context": context}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if (new_dim, new_heads) != (shape.dim, shape.heads):
        if new_dim % (2 * new_heads):
            works = ", ".join(str(n) for n in range(1, new_dim // 2 + 1) if new_dim % (2 * n) == 0)
            raise UsageError(
                f"heads={new_heads} do not share dim={new_dim} in heads of an even width; {works} heads work"
            )
        group = shape.heads // shape.kv_heads
        changes |= {
            "dim": new_dim,
            "heads": new_heads,
            "kv_heads": new_heads // group if new_heads % group == 0 else new_heads,
            "head_dim": new_dim // new_heads,
            "hidden": max(8, round(shape.hidden * new_dim / shape.dim / 8) * 8),
        }
    return dataclasses.replace(shape, **changes)


def _heads_for(shape: ShapeConfig, dim: int) -> int:
    if dim == shape.dim:
        return shape.heads
    if dim % shape.head_dim == 0:
        return dim // shape.head_dim
    return shape.heads if dim % (2 * shape.heads) == 0 else 1
