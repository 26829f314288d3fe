"""How good a stack is on held-out text, and how that text is read.

Scores are measured on *calibration* text, windows of the training split in an order that the seed decides
(`leadline.hub.text.training_batches`). Perplexity is reported on the validation split. No token is in both.

A window holds `context` predictions, of which the last `stride` count: each counted token has at least
`context - stride` tokens before it in its window. With `stride == context` every prediction counts and windows don't
overlap. A shorter stride gives a lower perplexity and costs more, so both numbers stand beside every result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.data import bits_per_byte
from leadline.errors import LeadlineError, UsageError
from leadline.hub.text import Text
from leadline.probes.watch import IGNORED, measuring
from leadline.stacks import Stack

LARGEST_LOSS = 700.0
"""exp of more than this is not a number."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How held-out text is read.

    Attributes:
        context: predictions in a window.
        stride: how many of them count in held-out text, the last ones.
        tokens: held-out predictions that count at most; None is all.
        batch_size: windows in a pass; it changes nothing but time and memory.

    Raises:
        UsageError: a number out of range.
    """

    context: int
    stride: int
    tokens: int | None = 65536
    batch_size: int = 8

    def __post_init__(self) -> None:
        for name in ("context", "stride", "batch_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)} is too small; 1 or more work")
        if self.stride > self.context:
            raise UsageError(f"stride={self.stride} is more than the context; 1 to {self.context} work")


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How good a stack is on held-out text.

    Attributes:
        loss: mean cross-entropy, nats a token.
        perplexity: exp(loss).
        bits_per_byte: of the text.
        accuracy: the share of tokens that were the most likely one.
        tokens: how many predictions counted.
        context, stride: how the text was read.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    accuracy: float
    tokens: int
    context: int
    stride: int


def quality(stack: Stack, text: Text) -> Quality:
    """Loss, perplexity and next-token accuracy of a stack, as it is at the moment.

    Raises:
        LeadlineError: the loss is not finite, or so large that there is no perplexity.
    """
    total, right, count = 0.0, 0, 0
    with measuring(stack.model):
        for batch in text.batches:
            logits = stack.logits(batch.tokens.to(stack.device))
            targets = batch.targets.to(stack.device)
            total += float(cross_entropy_sum(logits, targets))
            right += int((logits.argmax(dim=-1) == targets).sum())  # no token is the most likely one where none counts
            count += int((targets != IGNORED).sum())
    loss = total / count
    if not loss < LARGEST_LOSS:
        raise LeadlineError(f"the held-out loss is {loss:g}, which is no use; is the model whole?")
    return Quality(
        loss=loss,
        perplexity=math.exp(loss),
        bits_per_byte=bits_per_byte(loss, text.bytes_per_token),
        accuracy=right / count,
        tokens=count,
        context=text.context,
        stride=text.stride,
    )


def cross_entropy_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """The summed cross-entropy in nats of logits (B, T, V) and targets (B, T), in float32 or wider."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(
        wide.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=IGNORED
    )
