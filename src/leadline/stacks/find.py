"""From a model to its stack of blocks."""

from __future__ import annotations

from torch import nn

from leadline.stacks.base import Stack


def stack_of(model: nn.Module, *, blocks: str | None = None) -> Stack:
    """The model as a stack of blocks."""
    raise TypeError(f"{type(model).__name__} is no stack of blocks")
