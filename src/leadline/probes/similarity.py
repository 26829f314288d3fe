"""How much blocks turn what they read, and how alike the states along depth are.

The S = L + 1 states are what block 0 reads and what every block leaves.

    angular distance  E arccos(cos(x_i, x_j)) / π: 0 for one direction, ½ for orthogonal ones; arXiv 2403.17887
    block influence   1 − E cos(x_i, x_{i+1}), and of n blocks in a row 1 − E cos(x_i, x_{i+n}); arXiv 2403.03853
    linear CKA        see `leadline.probes.cka`, on batches of at most 256 tokens
    effective rank    see `leadline.probes.effective_rank`; of all tokens, as they are and with their mean taken off

E is the mean over tokens. A zero vector counts as orthogonal to any other, and as 1 away in influence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from leadline.probes.cka import MinibatchCKA
from leadline.probes.effective_rank import SecondMoment
from leadline.probes.paired import PairedMeans, place_rows
from leadline.probes.passes import Measure
from leadline.probes.states import States, angles, chunks, cosines
from leadline.probes.watch import TokenBatch
from leadline.stacks import Stack

MOST_TOKENS = 256
"""Tokens at a time, which is also the batch of CKA."""


class BlockCosines(Measure):
    """Cosines and angles between the states along depth; during a batch it holds its states."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        count = stack.blocks + 1
        self._states = States(stack.blocks)
        self._angles = torch.zeros(count, count, dtype=torch.float64)
        self._cosines = torch.zeros(count, count, dtype=torch.float64)

    def on_block(self, block: int, before: Tensor, after: Tensor) -> None:
        self.width = after.shape[-1]
        self._states.add(block, before, after)

    @torch.no_grad()
    def end_batch(self, batch: TokenBatch, logits: Tensor) -> None:
        super().end_batch(batch, logits)
        for x_SnD in chunks(self._states.take(), MOST_TOKENS):
            cosine_nSS = cosines(x_SnD)
            self._cosines += cosine_nSS.sum(dim=0).cpu()
            self._angles += angles(cosine_nSS).sum(dim=0).cpu()
            self.add(x_SnD, cosine_nSS)

    def add(self, states_SnD: Tensor, cosine_nSS: Tensor) -> None:
        """The states of some tokens and their cosines, for measures that need more of them."""

    def influence(self, blocks: int = 1) -> list[float]:
        """1 − E cos(x_i, x_{i+n}) for every first block i of n blocks in a row."""
        found: list[float] = (1.0 - self._cosines.diagonal(blocks) / self.tokens).tolist()
        return found

    def window_angles(self, blocks: int) -> list[float]:
        """The angle across n blocks in a row, for every first one."""
        found: list[float] = (self._angles.diagonal(blocks) / self.tokens).tolist()
        return found


class Similarity(BlockCosines):
    """Angular distance, block influence, CKA and effective rank from one pass.

    Keeps S·D² float64 for the ranks.
    """

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self._influence = PairedMeans(stack.blocks)
        self._cka = MinibatchCKA()
        self._moments = [SecondMoment() for _ in range(stack.blocks + 1)]
        self._turned: list[Tensor] = []

    def add(self, states_SnD: Tensor, cosine_nSS: Tensor) -> None:
        self._turned.append(1.0 - cosine_nSS.diagonal(1, dim1=1, dim2=2).double().cpu())
        self._cka.add(states_SnD)
        for moment, x_nD in zip(self._moments, states_SnD, strict=True):
            moment.add(x_nD)

    @torch.no_grad()
    def end_batch(self, batch: TokenBatch, logits: Tensor) -> None:
        self._turned = []
        super().end_batch(batch, logits)
        sequences, length = batch.tokens.shape
        of_sequence = torch.cat(self._turned).view(sequences, length, -1).sum(dim=1)
        self._influence.add(of_sequence.numpy(), np.full(sequences, float(length)))

    def angular_distance(self) -> list[list[float]]:
        """(S, S), symmetric, zero on the diagonal."""
        rows: list[list[float]] = ((self._angles + self._angles.T) / (2 * self.tokens)).tolist()
        return rows

    def window_influence(self) -> list[list[float]]:
        """Row n − 1: 1 − E cos(x_i, x_{i+n}) for every first block i of n blocks in a row."""
        return [self.influence(n) for n in range(1, self.stack.blocks + 1)]

    def result(self) -> dict[str, Any]:
        """See `measure_stack`."""
        windows = self.window_influence()
        return {
            "tokens": self.tokens,
            "angular_distance": self.angular_distance(),
            "block_influence": windows[0] if windows else [],
            **place_rows(self._influence.places(), self.stack.blocks),
            "window_influence": windows,
            "cka": self._cka.result(),
            "effective_rank": [moment.effective_rank(centred=False) for moment in self._moments],
            "effective_rank_centred": [moment.effective_rank(centred=True) for moment in self._moments],
        }
