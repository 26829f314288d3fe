"""One pass over batches that serves any number of measures, and the states along depth of one batch.

Memory does not grow with the batches:

sizes, angles = Sizes(stack), Similarity(stack)
run_measures(stack, batches, [sizes, angles])
sizes.result()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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


class States:
    """Holds a batch's S = L + 1 states until they are taken; copies nothing."""

    def __init__(self, blocks: int) -> None:
        self._held: list[Tensor | None] = [None] * (blocks + 1)

    def add(self, block: int, before: Tensor, after: Tensor) -> None:
        """What `StackWatcher.on_block` is told."""
        self._held[block], self._held[block + 1] = before.detach(), after.detach()

    def take(self) -> list[Tensor]:
        """All states in their order, each (..., D). A block that was left out leaves its state as it was.

        Raises:
            LeadlineError: no block ran, or the states have different shapes.
        """
        held, self._held = self._held, [None] * len(self._held)
        last = next((state for state in held if state is not None), None)
        if last is None:
            raise LeadlineError("no block of this model ran, so there are no states along depth")
        states = []
        for state in held:
            last = last if state is None else state
            states.append(last)
        shapes = list(dict.fromkeys(tuple(state.shape) for state in states))
        if len(shapes) > 1:
            raise LeadlineError(
                f"this model's states have different shapes along depth, {shapes[0]} and {shapes[1]} among them, so "
                "they can't be compared; ablation, the gradient share, Taylor and magnitude work"
            )
        return states


def chunks(states: list[Tensor], most: int) -> Iterator[Tensor]:
    """The states in float64, (S, n, D), for at most `most` tokens at a time in parts of nearly one size."""
    flat = [state.reshape(-1, state.shape[-1]) for state in states]
    tokens = flat[0].shape[0]
    parts = -(-tokens // most)
    split = [state.tensor_split(parts) for state in flat] if parts else []
    for part in range(parts):
        yield torch.stack([wide(state[part]) for state in split])


def cosines(states_SnD: Tensor) -> Tensor:
    """The cosine of every token's states with each other, (n, S, S); 0 with a zero vector, its own too.

    A vector with itself is exactly 1.
    """
    unit_SnD = torch.nn.functional.normalize(states_SnD, dim=-1, eps=1e-150)
    unit_nSD = unit_SnD.transpose(0, 1)
    cosine = (unit_nSD @ unit_nSD.transpose(1, 2)).clamp(-1.0, 1.0)
    # Rounding would leave an angle of 1e-8 between a state and an equal one: a block that changes nothing.
    return torch.where(cosine > 1.0 - 1e-14, 1.0, cosine)


def angles(cosines_nSS: Tensor) -> Tensor:
    """arccos(cos)/π, with zero on the diagonal."""
    angle = cosines_nSS.acos() / torch.pi
    return angle - torch.diag_embed(angle.diagonal(dim1=-2, dim2=-1))
