"""Gradient fan-in φ: over how many paths the loss reaches a block. Source: arXiv 2606.26538, for the idea; the
formulas are ours.

    plain            φ_l = L − l + 1
    exits            φ_l = Σ_{m ≥ l} w_m (m − l + 1)           deep supervision with weights w_m
    repeated blocks  a block's φ is the sum over its places in the unrolled stack

Blocks are numbered from 1 in the formulas, from 0 in lists.
"""

from __future__ import annotations

from collections.abc import Sequence

from leadline.errors import UsageError


def fan_in(
    blocks: int, *, exit_weights: Sequence[float] | None = None, order: Sequence[int] | None = None
) -> list[float]:
    """φ of every block.

    Args:
        blocks: L.
        exit_weights: the weight of the loss after each place in the stack; None: 1 after the last, 0 elsewhere.
        order: the block at each place of the unrolled stack; None: 0 … L − 1.

    Raises:
        UsageError: a weight too many or too few, or a block that isn't there.
    """
    places = list(range(blocks)) if order is None else list(order)
    wrong = [block for block in places if not 0 <= block < blocks]
    if wrong:
        raise UsageError(f"order={list(places)} names block {wrong[0]}; blocks 0 to {blocks - 1} work")
    depth = len(places)
    weights = [0.0] * (depth - 1) + [1.0] if exit_weights is None else list(exit_weights)
    if depth and len(weights) != depth:
        raise UsageError(f"exit_weights has {len(weights)} numbers; one for each of the {depth} places works")
    phi = [0.0] * blocks
    for place, block in enumerate(places):
        phi[block] += sum(weights[end] * (end - place + 1) for end in range(place, depth))
    return phi


def repeat_last(blocks: int, last: int, times: int) -> list[int]:
    """The order of a stack whose last `last` blocks run `times` times, for `fan_in`.

    >>> repeat_last(4, last=2, times=2)
    [0, 1, 2, 3, 2, 3]

    Raises:
        UsageError: there are not so many blocks, or `times` is below 1.
    """
    if not 0 <= last <= blocks:
        raise UsageError(f"last={last} must lie from 0 to {blocks}, the number of blocks")
    if times < 1:
        raise UsageError(f"times={times} must be at least 1")
    return [*range(blocks), *list(range(blocks - last, blocks)) * (times - 1)]
