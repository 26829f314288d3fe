"""What every block and sublayer is worth: ΔM_i, held-out loss without it minus the loss with it.

Leaving out is the connection's own notion (`Stack.skipping`). Source: arXiv 2606.26538 for ΔM. The interval is ours: a
bootstrap over sequences in its Poisson form, where every sequence enters each resample as often as a Poisson variable
of mean 1 says, so that nothing is kept of a sequence once it was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leadline.errors import LeadlineError
from leadline.probes.paired import PairedMeans, place_rows
from leadline.probes.passes import mean_bits
from leadline.probes.watch import IGNORED, TokenBatch, counted, measuring
from leadline.stacks import Stack, Unit
from leadline.statistics import LEVEL

RESAMPLES = 1000


class LossRise:
    """By how much the loss rises for each of some changes to a model, summed over sequences.

    Args:
        changes: how many there are.
        resamples: of the bootstrap; 0: no interval.
        seed: of the bootstrap.

    Attributes:
        tokens: how many counted.
        paired: the same rises as means over the same sequences, to tell them apart.
    """

    def __init__(self, changes: int, *, resamples: int = RESAMPLES, seed: int = 0) -> None:
        self.tokens = 0
        self.paired = PairedMeans(changes)
        self._random = np.random.default_rng(seed)
        # The first column is the loss itself.
        self._sums = np.zeros(changes + 1)
        self._resampled = np.zeros((resamples, changes))
        self._resampled_tokens = np.zeros(resamples)

    def add(self, losses: Sequence[Tensor], tokens_per_sequence: int | Tensor) -> None:
        """One batch: losses (B,) summed over each sequence's tokens, first of the whole model, then of each change.

        Args:
            tokens_per_sequence: how many count, one number or (B,) of them.
        """
        table = torch.stack([loss.double().cpu() for loss in losses], dim=1).numpy()
        tokens = np.broadcast_to(torch.as_tensor(tokens_per_sequence).cpu().numpy(), len(table))
        self._sums += table.sum(axis=0)
        self.paired.add(table[:, 1:] - table[:, :1], tokens)
        self.tokens += int(tokens.sum())
        if len(self._resampled):
            times = self._random.poisson(1.0, (len(self._resampled), len(table)))
            self._resampled += times @ (table[:, 1:] - table[:, :1])
            self._resampled_tokens += times @ tokens

    @property
    def sequences(self) -> int:
        """How many counted."""
        return self.paired.sequences

    def loss(self) -> float:
        """Of the whole model, nats per token.

        Raises:
            LeadlineError: there are no tokens.
        """
        if self.tokens == 0:
            raise LeadlineError("there are no tokens to measure on")
        return float(self._sums[0]) / self.tokens

    def rises(self) -> list[float]:
        """The rise for each change, nats per token; negative where the change does the model good."""
        loss = self.loss()
        return [float(value) / self.tokens - loss for value in self._sums[1:]]

    def intervals(self) -> list[tuple[float | None, float | None]]:
        """The central 95 % of the resampled rises; None with fewer than two sequences or without resamples."""
        drawn = self._resampled_tokens > 0
        if self.sequences < 2 or not drawn.any():
            return [(None, None)] * (len(self._sums) - 1)
        rises = self._resampled[drawn] / self._resampled_tokens[drawn, None]
        low, high = np.quantile(rises, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def ablation(
    stack: Stack,
    batches: Iterable[TokenBatch],
    *,
    bytes_per_token: float = 1.0,
    kinds: Sequence[str] = ("block", "sublayer"),
    seed: int = 0,
    on_batch: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """ΔM of every block and sublayer with 95 % intervals over sequences; see `measure_stack`.

    Runs the model once per unit and batch, in evaluation mode without gradients. The interval says how sure the mean is
    over text of this kind, given the model; not how it would differ between trainings.

    Args:
        bytes_per_token: of the batches' text, 1 for the byte tokenizer.
        kinds: "block" and "sublayer", or one of them; the other is then None.

    Raises:
        LeadlineError: there are no tokens.
    """
    units = [unit for kind in kinds for unit in stack.units(kind)]
    rise = LossRise(len(units), seed=seed)
    with measuring(stack.model):
        for batch in batches:
            tokens = counted(batch.targets)
            if not bool(tokens.any()):
                continue
            rise.add([losses_without(stack, batch, without) for without in ((), *([unit] for unit in units))], tokens)
            if on_batch is not None:
                on_batch()
    loss = rise.loss()
    rows = {unit: row for unit, *row in zip(units, rise.rises(), rise.intervals(), strict=True)}
    found: dict[str, Any] = {
        "tokens": rise.tokens,
        "sequences": rise.sequences,
        "loss": loss,
        "bits_per_byte": mean_bits(loss, bytes_per_token),
        "first_half": None,
        "blocks": None,
        "sublayers": None,
    }
    for name, of_kind in (("nats", None), ("bits_per_byte", bytes_per_token)):
        for suffix, pick in _PICKS.items():
            values = {unit: _in_units(pick(row), of_kind) for unit, row in rows.items()}
            if "block" in kinds:
                blocks = found["blocks"] = found["blocks"] or {}
                blocks[name + suffix] = [values[unit] for unit in stack.units("block")]
            if "sublayer" in kinds:
                nested = found["sublayers"] = found["sublayers"] or {}
                nested[name + suffix] = [
                    [values[Unit(block, sublayer)] for sublayer in names] for block, names in enumerate(stack.sublayers)
                ]
    if found["blocks"] is not None:
        first = units.index(Unit(0))
        found["blocks"] |= place_rows(rise.paired.places(range(first, first + stack.blocks)), stack.blocks)
        found["first_half"] = rise.paired.ratio(
            *([first <= i < first + end for i in range(len(units))] for end in (stack.blocks // 2, stack.blocks))
        ).plain()
    return found


_PICKS: dict[str, Callable[[Sequence[Any]], float | None]] = {
    "": lambda row: row[0],
    "_low": lambda row: row[1][0],
    "_high": lambda row: row[1][1],
}


def sequence_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy in nats summed over each sequence, (B,) float64, from logits (B, T, V) and targets (B, T).

    A target of -100 adds nothing.
    """
    flat = logits.float().flatten(0, -2)
    loss = nn.functional.cross_entropy(flat, targets.flatten(), reduction="none", ignore_index=IGNORED)
    return loss.view(targets.shape).double().sum(dim=-1)


def losses_without(stack: Stack, batch: TokenBatch, units: Sequence[Unit]) -> Tensor:
    """`sequence_losses` of a batch while some units are skipped."""
    with stack.skipping(units):
        logits = stack.logits(batch.tokens.to(stack.device))
    return sequence_losses(logits, batch.targets.to(logits.device))


def _in_units(nats: float | None, bytes_per_token: float | None) -> float | None:
    return nats if nats is None or bytes_per_token is None else mean_bits(nats, bytes_per_token)
