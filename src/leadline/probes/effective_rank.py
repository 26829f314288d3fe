"""Effective rank: in how many directions something spreads, exp of the entropy of normalised singular values.

Source: Roy and Vetterli, "The effective rank: a measure of effective dimensionality", EUSIPCO 2007.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leadline.probes.passes import wide


def effective_rank(singular_values: Tensor) -> float | None:
    """exp(−Σ p ln p) with p = σ / Σσ: k for k equal values, 1 for one; None where all are zero.

    Args:
        singular_values: (K,), none negative.
    """
    total = float(singular_values.sum())
    if not math.isfinite(total) or total <= 0:
        return None
    share = singular_values.double() / total
    return float(torch.special.entr(share).sum().exp())


def effective_rank_of(matrix: Tensor) -> float | None:
    """Of a matrix, whose singular values are computed; None where it has entries that aren't finite.

    From the smaller Gram matrix in float64, which is several times quicker than a decomposition of the matrix itself;
    singular values below 1e-7 of the largest are lost in it.
    """
    matrix = wide(matrix)
    return _of_gram(matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix)


def _of_gram(gram: Tensor, size: Tensor | None = None) -> float | None:
    """Of a matrix from its product with itself; `size` is what its entries were computed from, if that was larger."""
    if not bool(gram.isfinite().all()):
        return None
    squares = torch.linalg.eigvalsh(gram)
    # What lies below the rounding of the sums is not a direction: its square root would be seen.
    norm = float(torch.linalg.matrix_norm(gram if size is None else size))
    floor = norm * torch.finfo(torch.float64).eps * gram.shape[0]
    return effective_rank(torch.where(squares > floor, squares, 0.0).sqrt())


class SecondMoment:
    """Σ x xᵀ and Σ x over tokens in float64: D² + D numbers, whatever the number of batches."""

    def __init__(self) -> None:
        self.tokens = 0
        self.product: Tensor | None = None
        self.total: Tensor | None = None

    def add(self, x_nD: Tensor) -> None:
        """Tokens (n, D) in float64."""
        product, total = x_nD.T @ x_nD, x_nD.sum(dim=0)
        self.product = product if self.product is None else self.product + product
        self.total = total if self.total is None else self.total + total
        self.tokens += x_nD.shape[0]

    def effective_rank(self, *, centred: bool) -> float | None:
        """Of the matrix of all tokens (tokens, D), with the mean over tokens taken off where `centred`.

        None where nothing was seen but zeros, or something that isn't finite.
        """
        if self.product is None or self.total is None:
            return None
        product = self.product
        if centred:
            product = product - torch.outer(self.total, self.total) / self.tokens
        return _of_gram(product, self.product)
