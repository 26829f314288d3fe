"""Linear CKA over small batches: how alike two sets of vectors are, up to rotation and scale.

    CKA(X, Y) = Σ_b HSIC₁(X_b X_bᵀ, Y_b Y_bᵀ) / √(Σ_b HSIC₁(X_b X_bᵀ, X_b X_bᵀ) · Σ_b HSIC₁(Y_b Y_bᵀ, Y_b Y_bᵀ))

with the unbiased HSIC₁ of Song et al., so that the sum over batches b estimates the value on all tokens, as in
arXiv 2010.15327. The memory is that of one batch's Gram matrices. The estimate can lie slightly below 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
