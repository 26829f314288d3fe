"""Held-out loss."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.data import Split, bits_per_byte, evaluation_batches
from leadline.distributed.world import ALONE, World
from leadline.models import Decoder
from leadline.ops.cross_entropy import IGNORED


class Evaluation(NamedTuple):
    """Mean loss in nats a token, and bits per byte of text."""

    loss: float
    bits_per_byte: float


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """The context in which a forward pass runs."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy in nats, computed in float32 or wider."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide.flatten(0, 1), targets.flatten())


OnBatch = Callable[[], None]
OnSequences = Callable[[Tensor], None]

LOGITS = 1 << 26
"""A pass whose logits are more numbers than this is cut into chunks, unless `loss_chunk` says how."""


def chunk_for(tokens: int, vocab_size: int, loss_chunk: int | None) -> int | None:
    """Tokens in a piece of a pass over `tokens` tokens; None where its logits can exist at once."""
    if loss_chunk is None:
        return None if tokens * vocab_size <= LOGITS else max(1, LOGITS // (4 * vocab_size))
    return None if loss_chunk >= tokens else loss_chunk


class Reading(NamedTuple):
    """How held-out text is read.

    Attributes:
        tokens: at most so many, spread over the split.
        on_batch: called after every batch, because there may be many.
        world: the processes among which the batches are dealt out; all have the same result.
    """

    batch_size: int
    context: int
    tokens: int
    device: torch.device
    precision: str
    on_batch: OnBatch | None = None
    world: World = ALONE


@torch.no_grad()
def evaluate(
    model: nn.Module, split: Split, reading: Reading, *, on_sequences: OnSequences | None = None
) -> Evaluation:
    """The loss on held-out tokens, the same ones every time.

    Args:
        on_sequences: given every batch's losses by sequence, (batch,) nats a token.
    """

    def losses(inputs: Tensor, targets: Tensor) -> list[Tensor]:
        logits = model(inputs)
        sequences = zip(logits.split(1), targets.split(1), strict=True) if on_sequences is not None else ()
        return [loss_of(logits, targets), *(loss_of(*one) for one in sequences)]

    found = _losses(model, losses, split, reading)
    if on_sequences is not None:
        for _, (_, *sequences) in found:
            on_sequences(torch.tensor(sequences))
    (mean,) = _means([(size, each[:1]) for size, each in found])
    return Evaluation(mean, bits_per_byte(mean, split.bytes_per_token))


@torch.no_grad()
def evaluate_exits(model: Decoder, split: Split, reading: Reading) -> list[float]:
    """The same loss, in nats a token, if the model ended after each of its blocks; the last is that of `evaluate`.

    One pass through the stack, and one through the head for each block.
    """
    blocks = range(len(model.blocks))

    def losses(inputs: Tensor, targets: Tensor) -> list[Tensor]:
        return [loss_of(model.logits(hidden), targets) for hidden in model.exits(inputs, blocks)]

    return _means(_losses(model, losses, split, reading))


def _losses(
    model: nn.Module, losses: Callable[[Tensor, Tensor], list[Tensor]], split: Split, reading: Reading
) -> list[tuple[int, list[float]]]:
    """Of every batch how many targets count, and what `losses` returns, in evaluation mode."""
    training = model.training
    model.eval()
    mine: dict[int, tuple[int, list[float]]] = {}
    batches = list(evaluation_batches(split, reading.batch_size, reading.context, reading.tokens))
    for number, batch in reading.world.dealt(batches):
        with autocast(reading.device, reading.precision):
            found = losses(batch.tokens.to(reading.device), batch.targets.to(reading.device))
        size = int((batch.targets != IGNORED).sum())
        mine[number] = size, torch.stack(found).tolist() if size else [0.0] * len(found)  # over nothing means are NaN
        if reading.on_batch is not None:
            reading.on_batch()
    model.train(training)
    every = {number: result for part in reading.world.gathered(mine) for number, result in part.items()}
    return [every[number] for number in sorted(every)]


def _means(found: Sequence[tuple[int, Sequence[float]]]) -> list[float]:
    """The means over all targets that count, summed in the order of the batches."""
    totals = [0.0] * len(found[0][1]) if found else []
    for size, losses in found:
        totals = [old + loss * size for old, loss in zip(totals, losses, strict=True)]
    return [total / sum(size for size, _ in found) for total in totals]
