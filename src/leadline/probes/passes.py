"""One pass over batches that serves any number of measures, in memory that does not grow with the batches.

sizes, angles = Sizes(stack), Similarity(stack)
run_measures(stack, batches, [sizes, angles])
sizes.result()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from leadline.errors import LeadlineError
from leadline.probes.watch import TokenBatch, measuring
from leadline.stacks import Stack, StackWatcher


class Measure(StackWatcher):
    """A watcher that is also told where a batch ends, and has a result.

    It works by itself too: `with stack.watching(measure)`, then `end_batch` after every forward pass.

    Attributes:
        tokens: how many were seen.
        width: D, once a state was seen.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.tokens = 0
        self.width: int | None = None

    def end_batch(self, batch: TokenBatch, logits: Tensor) -> None:
        """The forward pass of `batch` is over, and gave `logits` (B, T, V). Call it from an override."""
        self.tokens += batch.tokens.numel()

    def result(self) -> dict[str, Any]:
        """What was measured, as plain data."""
        raise TypeError(f"{type(self).__name__} does not define result")


class Together(StackWatcher):
    """Several watchers as one."""

    def __init__(self, watchers: Sequence[StackWatcher]) -> None:
        self.watchers = watchers

    def on_block(self, block: int, before: Tensor, after: Tensor) -> None:
        for watcher in self.watchers:
            watcher.on_block(block, before, after)

    def on_sublayer(self, block: int, sublayer: str, output: Tensor) -> None:
        for watcher in self.watchers:
            watcher.on_sublayer(block, sublayer, output)

    def on_exit(self, block: int, hidden: Tensor) -> None:
        for watcher in self.watchers:
            if watcher.wants_exits:
                watcher.on_exit(block, hidden)


class _TogetherWithExits(Together):
    wants_exits: ClassVar[bool] = True


def together(watchers: Sequence[StackWatcher]) -> Together:
    """Several watchers as one, which asks for exits only where one of them does."""
    exits = any(watcher.wants_exits for watcher in watchers)
    return _TogetherWithExits(watchers) if exits else Together(watchers)


def run_measures(
    stack: Stack,
    batches: Iterable[TokenBatch],
    measures: Sequence[Measure],
    on_batch: Callable[[], None] | None = None,
) -> None:
    """Runs the model on all batches, in evaluation mode and without gradients, for what the measures see of it.

    Raises:
        LeadlineError: there are no tokens.
    """
    tokens = 0
    with measuring(stack.model), stack.watching(together(measures)):
        for batch in batches:
            if batch.tokens.numel() == 0:
                continue
            logits = stack.logits(batch.tokens.to(stack.device))
            for measure in measures:
                measure.end_batch(batch, logits)
            tokens += batch.tokens.numel()
            if on_batch is not None:
                on_batch()
    if tokens == 0:
        raise LeadlineError("there are no tokens to measure on")


def wide(x: Tensor) -> Tensor:
    """`x` detached in float64, on the CPU where its device has none."""
    x = x.detach()
    return x.cpu().double() if x.device.type == "mps" else x.double()


def mean_bits(nats: float, bytes_per_token: float) -> float:
    """Nats per token as bits per byte."""
    return nats / (bytes_per_token * LOG_2)


LOG_2 = float(torch.tensor(2.0, dtype=torch.float64).log())
