"""What the probes need of a model: to watch its sites (`leadline.stacks.sites`), and to run it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from leadline.errors import LeadlineError
from leadline.models import Decoder
from leadline.ops.cross_entropy import IGNORED
from leadline.stacks.base import measuring
from leadline.stacks.sites import Watcher, readout_of, sites_of, watch

__all__ = [
    "IGNORED",
    "TokenBatch",
    "Watcher",
    "block_starts",
    "counted",
    "has_sites",
    "measuring",
    "readout_of",
    "run",
    "sites_of",
    "watch",
]


class TokenBatch(Protocol):
    """What the probes need of a batch: tokens and the tokens that follow them, both (B, T) int64.

    A target of -100 doesn't count, as padding or as context alone.
    """

    @property
    def tokens(self) -> Tensor: ...

    @property
    def targets(self) -> Tensor: ...


def counted(targets: Tensor) -> Tensor:
    """How many predictions of each sequence count, (B,) int64, for targets (B, T)."""
    return (targets != IGNORED).sum(dim=-1)


def run(model: nn.Module, batches: Iterable[TokenBatch], device: torch.device) -> int:
    """Runs the model on all batches for what a watcher sees of it; the number of tokens."""
    hidden: Callable[[Tensor], Any] = getattr(model, "hidden", model)
    tokens = 0
    for batch in batches:
        if batch.tokens.numel() == 0:
            continue
        hidden(batch.tokens.to(device))
        tokens += batch.tokens.numel()
    return tokens


def block_starts(model: nn.Module, sites_per_block: int = 2) -> list[int]:
    """The number of each block's first site: a decoder says it (a block that was cut may have one site only).

    Args:
        sites_per_block: of any other model with sites.
    """
    if isinstance(model, Decoder):
        return [next(number for number in pair if number is not None) for pair in model.config.numbers]
    return list(range(0, len(sites_of(model)), sites_per_block))


def has_sites(model: nn.Module) -> bool:
    """Whether the model reads and writes through connection sites."""
    try:
        return bool(sites_of(model))
    except LeadlineError:
        return False
