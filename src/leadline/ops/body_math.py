"""Arithmetic that the bodies of several operators are written in: token by token, row by row.

Streams and sources are lists of rows and never one tensor with a dimension for them, so that Inductor keeps a token's
rows together. Shapes: N tokens, D width.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def added(parts: Iterable[Tensor]) -> Tensor:
    """The sum of some tensors, from the first to the last."""
    return functools.reduce(operator.add, parts)


def largest_of(scores: Iterable[Tensor]) -> Tensor:
    """The maximum of some tensors, element by element."""
    return functools.reduce(torch.maximum, scores)


def softmax(scores: Sequence[Tensor]) -> list[Tensor]:
    """The softmax over a list of scores (N)."""
    largest = largest_of(scores)
    weights = [(score - largest).exp() for score in scores]
    whole = added(weights)
    return [weight / whole for weight in weights]


def times(rows: Tensor, scalars: Tensor) -> Tensor:
    """Rows (N, D) or one row (D), times per-token scalars (N)."""
    return scalars.unsqueeze(-1) * rows


def as_rows(tensor: Tensor) -> Tensor:
    """(..., D) as (N, D)."""
    return tensor.reshape(-1, tensor.shape[-1])


def rows_of(stacked: Tensor) -> list[Tensor]:
    """(S, ..., D) as S tensors (N, D)."""
    return list(stacked.reshape(stacked.shape[0], -1, stacked.shape[-1]).unbind(0))


def gradient_like(grad: Tensor | None, leaf: Tensor | None) -> Tensor | None:
    """A gradient in the form of its leaf; zero where it is missing, None where the leaf is."""
    if leaf is None:
        return None
    return torch.zeros_like(leaf) if grad is None else grad.to(leaf.dtype).reshape(leaf.shape)
