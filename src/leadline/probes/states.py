"""The states along depth of one batch: what block 0 reads, then what every block leaves."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from leadline.errors import LeadlineError
from leadline.probes.passes import wide


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
