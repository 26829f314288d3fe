"""How much blocks turn what they read, and how alike the states along depth are.

The S = L + 1 states are what block 0 reads and what every block leaves.

    angular distance  E arccos(cos(x_i, x_j)) / π: 0 for one direction, ½ for orthogonal ones; arXiv 2403.17887
    block influence   1 − E cos(x_i, x_{i+1}), and of n blocks in a row 1 − E cos(x_i, x_{i+n}); arXiv 2403.03853
    linear CKA        how alike two sets of vectors are, up to rotation and scale, on batches of at most 256 tokens
    effective rank    see `leadline.probes.effective_rank`; of all tokens, as they are and with their mean taken off

E is the mean over tokens. A zero vector counts as orthogonal to any other, and as 1 away in influence. Over batches b

    CKA(X, Y) = Σ_b HSIC₁(X_b X_bᵀ, Y_b Y_bᵀ) / √(Σ_b HSIC₁(X_b X_bᵀ, X_b X_bᵀ) · Σ_b HSIC₁(Y_b Y_bᵀ, Y_b Y_bᵀ))

with the unbiased HSIC₁ of Song et al., so that the sum over batches estimates the value on all tokens, as in
arXiv 2010.15327. The memory is that of one batch's Gram matrices. The estimate can lie slightly below 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from leadline.probes.effective_rank import SecondMoment
from leadline.probes.paired import PairedMeans, place_rows
from leadline.probes.passes import Measure, States, angles, chunks, cosines
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


class MinibatchCKA:
    """CKA between S sets of vectors of the same tokens."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self._rounding: Tensor | None = None

    def add(self, x_SnD: Tensor) -> None:
        """One batch of n tokens, float64; fewer than four are left out, because the estimate needs four."""
        n = x_SnD.shape[1]
        if n < 4:
            return
        gram = x_SnD @ x_SnD.transpose(1, 2)
        centred = u_centred(gram).flatten(1)
        products = centred @ centred.T / (n * (n - 3))
        # What is left of equal vectors when their sums have been rounded.
        rounding = gram.flatten(1).square().sum(dim=1) * (n * torch.finfo(gram.dtype).eps) ** 2 / (n * (n - 3))
        self.total = products if self.total is None else self.total + products
        self._rounding = rounding if self._rounding is None else self._rounding + rounding

    def result(self) -> list[list[float | None]] | None:
        """(S, S), 1 on the diagonal; None for a set of equal vectors, and as a whole without a batch."""
        if self.total is None or self._rounding is None:
            return None
        own = self.total.diagonal()
        own = torch.where(own > self._rounding, own, 0.0)
        size = torch.sqrt(torch.outer(own, own))
        return [
            [
                None if float(size[i, j]) <= 0 else 1.0 if i == j else float(self.total[i, j] / size[i, j])
                for j in range(len(own))
            ]
            for i in range(len(own))
        ]


def u_centred(gram: Tensor) -> Tensor:
    """Székely and Rizzo's U-centring of (..., n, n): products of two such matrices sum to n(n − 3) HSIC₁."""
    n = gram.shape[-1]
    gram = gram - torch.diag_embed(gram.diagonal(dim1=-2, dim2=-1))
    rows = gram.sum(dim=-1, keepdim=True) / (n - 2)
    whole = rows.sum(dim=-2, keepdim=True) / (n - 1)
    centred = gram - rows - rows.transpose(-1, -2) + whole
    return centred - torch.diag_embed(centred.diagonal(dim1=-2, dim2=-1))
