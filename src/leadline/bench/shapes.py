"""The shapes that models are measured at."""

from __future__ import annotations

import dataclasses
from typing import Literal

from leadline.designs import ShapeConfig
from leadline.errors import UsageError

VOCABULARY = 256
"""Of every model here: small, so that the head is a small part of the time. It is the same for all designs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchShape:
    """A decoder's shape and the batch that it gets.

    Attributes:
        blocks, dim, heads: of the decoder; heads share nothing.
        context: tokens in a sequence.
        batch: sequences.

    Raises:
        UsageError: a number that doesn't work, named with its option.
    """

    blocks: int
    dim: int
    heads: int
    context: int
    batch: int

    def __post_init__(self) -> None:
        for option, value in dataclasses.asdict(self).items():
            if value < 1:
                raise UsageError(f"--{option} {value} is too small; 1 or more work")
        if self.dim % self.heads or self.dim // self.heads % 2:
            work = [str(n) for n in range(1, self.dim + 1) if self.dim % n == 0 and self.dim // n % 2 == 0]
            raise UsageError(
                f"--heads {self.heads} does not make even heads of --dim {self.dim}; "
                + (f"{', '.join(work)} work" if work else "an even --dim works")
            )

    @property
    def hidden(self) -> int:
        """Of the SwiGLU: 8/3 of the width, rounded to a multiple of 8."""
        return max(8, round(self.dim * 8 / 3 / 8) * 8)

    @property
    def config(self) -> ShapeConfig:
        """For a design's decoder."""
        return ShapeConfig(
            dim=self.dim,
            blocks=self.blocks,
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=self.dim // self.heads,
            hidden=self.hidden,
            context=self.context,
        )

    def __str__(self) -> str:
        return (
            f"{self.blocks} blocks, D={self.dim}, heads of {self.dim // self.heads}, MLP {self.hidden}, "
            f"T={self.context}, B={self.batch}, vocabulary {VOCABULARY}"
        )


ShapeName = Literal["a", "b"]
SHAPES: dict[str, BenchShape] = {
    "a": BenchShape(blocks=12, dim=512, heads=8, context=256, batch=4),
    "b": BenchShape(blocks=24, dim=128, heads=4, context=128, batch=16),
}
"""Wide, and thin and deep."""
HEAD_WIDTH = {"a": 64, "b": 32}


def default_heads(dim: int, width: int) -> int:
    """Heads of this width, or one where the width of the model is not a multiple of it."""
    return dim // width if dim >= width and dim % width == 0 else 1


def shape_named(name: str, **numbers: int | None) -> tuple[BenchShape, str | None]:
    """A shape with other numbers where they aren't None, and its name while it is still that shape.

    Another width of the model keeps the width of the heads where that divides it.
    """
    base = SHAPES[name]
    given = {key: value for key, value in numbers.items() if value is not None}
    if "dim" in given:
        given.setdefault("heads", default_heads(given["dim"], HEAD_WIDTH[name]))
    shape = dataclasses.replace(base, **given)
    return shape, name if shape == base else None
