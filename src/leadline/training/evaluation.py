"""Held-out loss."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.data import Split, bits_per_byte, evaluation_batches
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
    """

    batch_size: int
    context: int
    tokens: int
    device: torch.device
    precision: str
    on_batch: OnBatch | None = None


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
        if on_sequences is not None:
            on_sequences(torch.stack([loss_of(*one) for one in zip(logits.split(1), targets.split(1), strict=True)]))
        return [loss_of(logits, targets)]

    (mean,) = _means(model, losses, split, reading)
    return Evaluation(mean, bits_per_byte(mean, split.bytes_per_token))


@torch.no_grad()
def evaluate_exits(model: Decoder, split: Split, reading: Reading) -> list[float]:
    """The same loss, in nats a token, if the model ended after each of its blocks; the last is that of `evaluate`.

    One pass through the stack, and one through the head for each block.
    """
    blocks = range(len(model.blocks))

    def losses(inputs: Tensor, targets: Tensor) -> list[Tensor]:
        return [loss_of(model.logits(hidden), targets) for hidden in model.exits(inputs, blocks)]

    return _means(model, losses, split, reading)


def _means(
    model: nn.Module, losses: Callable[[Tensor, Tensor], list[Tensor]], split: Split, reading: Reading
) -> list[float]:
    """The means over all targets that count of what `losses` returns for each batch, in evaluation mode."""
    training = model.training
    model.eval()
    totals: list[float] = []
    count = 0
    for batch in evaluation_batches(split, reading.batch_size, reading.context, reading.tokens):
        with autocast(reading.device, reading.precision):
            found = losses(batch.tokens.to(reading.device), batch.targets.to(reading.device))
        size = int((batch.targets != IGNORED).sum())
        found = found if size else [torch.zeros(()) for _ in found]  # PyTorch's mean over nothing is NaN
        totals = [old + loss.item() * size for old, loss in zip(totals or [0.0] * len(found), found, strict=True)]
        count += size
        if reading.on_batch is not None:
            reading.on_batch()
    model.train(training)
    return [total / count for total in totals]
