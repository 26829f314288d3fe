"""Blocks that are skipped in place: each hands on what it reads, and the model stays whole."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch import Tensor, nn

from leadline.stacks.anatomy import Anatomy, hidden_of
from leadline.stacks.sites import replace


@contextlib.contextmanager
def bypassing(blocks: nn.ModuleList, skipped: Collection[int]) -> Iterator[None]:
    """Skips blocks of any model until the context ends; nothing but their numbers, from 0, is needed."""
    with contextlib.ExitStack() as stack:
        for number in skipped:
            bypass(stack, blocks[number])
        yield


def bypass(
    stack: contextlib.ExitStack,
    block: nn.Module,
    anatomy: Anatomy | None = None,
    skips: Callable[[nn.Module], bool] = lambda block: True,
) -> None:
    """Skips a block until `stack` ends.

    With a cache the block still fills its entries, so that positions are counted right; nobody reads them.

    Args:
        anatomy: what the block returns. Unless given, the block runs for that, also without a cache.
        skips: whether the block is skipped where it stands now, for one that stands in several places.
    """
    inner = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not skips(block):
            return inner(*args, **kwargs)
        hidden = hidden_of(args, kwargs)
        cached = any(hasattr(value, "get_seq_length") for value in (*args, *kwargs.values()))
        if anatomy is not None and not cached:
            return anatomy.wrapped(hidden)
        # A copy where the block may add to its input in place.
        kept = hidden.clone() if anatomy is None or anatomy.overwrites else hidden
        return with_first(inner(*args, **kwargs), kept)

    replace(stack, block, "forward", forward)


def with_first(output: Any, tensor: Tensor) -> Any:
    """`output` with its first tensor replaced: a tensor, a tuple or a list as it was."""
    if isinstance(output, Tensor):
        return tensor
    at = next(index for index, item in enumerate(output) if isinstance(item, Tensor))
    items = [*output[:at], tensor, *output[at + 1 :]]
    return items if isinstance(output, list) else tuple(items)
