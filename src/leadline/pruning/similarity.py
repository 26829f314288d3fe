"""Similarity of what a unit reads and leaves: Block Influence, and the angle across a window of blocks.

Sources: arXiv 2403.03853 (Block Influence), arXiv 2403.17887 (angular distance of contiguous blocks). A zero vector
counts as orthogonal to any other, as in `leadline.probes.similarity`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from leadline.errors import LeadlineError, UsageError
from leadline.probes.passes import Measure, run_measures, wide
from leadline.probes.similarity import MOST_TOKENS, BlockCosines
from leadline.probes.states import chunks, cosines
from leadline.probes.watch import TokenBatch
from leadline.stacks import Stack, Unit

ADDS_UP = 0.05
"""Relative; a bfloat16 stream is off by less, and a connection that mixes or gates by more."""


def similarity(stack: Stack, batches: Iterable[TokenBatch], kind: str = "block") -> list[float]:
    """Block Influence `1 - E cos(x_i, x_{i+1})` of every unit, in the order of `stack.units(kind)`.

    For a block `x_i` and `x_{i+1}` are what it reads and what it leaves behind (see `StackWatcher.on_block`). For a
    sublayer they are the residual stream before and after it, which exists in additive streams alone.

    Raises:
        UsageError: sublayers of a stack whose stream is not the sum of their outputs.
        LeadlineError: there are no tokens.
    """
    measure = BlockCosines(stack) if kind == "block" else SublayerCosines(stack)
    run_measures(stack, batches, [measure])
    return measure.influence()


def window_distances(stack: Stack, batches: Iterable[TokenBatch], sizes: Collection[int]) -> dict[int, list[float]]:
    """The angle `arccos(cos)/π` across every window of n contiguous blocks, for each n in `sizes`.

    Returns:
        By n: one number per first block, 0 to L - n. It compares what the window's first block reads with what its
        last leaves behind, averaged over tokens.

    Raises:
        LeadlineError: there are no tokens.
    """
    measure = BlockCosines(stack)
    run_measures(stack, batches, [measure])
    return {n: measure.window_angles(n) for n in sorted(set(sizes))}


class SublayerCosines(Measure):
    """Cosines between the stream before and after each sublayer, put together from the sublayers' outputs."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self._cosines = dict.fromkeys(stack.units("sublayer"), 0.0)
        self._outputs: list[tuple[str, Tensor]] = []

    def on_sublayer(self, block: int, sublayer: str, output: Tensor) -> None:
        self._outputs.append((sublayer, wide(output)))

    @torch.no_grad()
    def on_block(self, block: int, before: Tensor, after: Tensor) -> None:
        stream = [wide(before)]
        for _, output in self._outputs:
            stream.append(stream[-1] + output)
        if (stream[-1] - wide(after)).norm() > ADDS_UP * wide(after).norm():
            raise UsageError(
                "--criterion similarity of sublayers needs a stream that is the sum of their outputs, and this model's "
                "is not; --unit block works, and so do taylor, magnitude, ablation, cfp and random"
            )
        for x_SnD in chunks(stream, MOST_TOKENS):
            totals = cosines(x_SnD).sum(dim=0).diagonal(1).tolist()
            for (name, _), total in zip(self._outputs, totals, strict=True):
                self._cosines[Unit(block, name)] += total
        self._outputs = []

    def influence(self) -> list[float]:
        """One number per sublayer."""
        if self.tokens == 0:
            raise LeadlineError("there are no tokens to measure on")
        return [1.0 - total / self.tokens for total in self._cosines.values()]
