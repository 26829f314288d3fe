"""Whether two computations agree: a speed is worth nothing where they don't."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

FLOOR = 1e-4
"""A tensor this much shorter than all of them together is judged by that length: it may be rounding alone."""


def disagreement(
    found: Sequence[Tensor | None],
    truth: Sequence[Tensor | None],
    names: Sequence[str],
    tolerance: float | Sequence[float],
) -> str:
    """What differs, in words; empty where every error is at most the tolerance.

    Args:
        found, truth, names: one for each tensor; None stands for zeros.
        tolerance: of `errors`, one for all or one for each.
    """
    if len(found) != len(truth):
        return f"{len(found)} results instead of {len(truth)}"
    for name, one, two in zip(names, found, truth, strict=True):
        if one is not None and two is not None and one.shape != two.shape:
            return f"{name} has shape {tuple(one.shape)} instead of {tuple(two.shape)}"
    allowed = [tolerance] * len(names) if isinstance(tolerance, float) else tolerance
    for name, error, most in zip(names, errors(found, truth), allowed, strict=True):
        if math.isinf(error):
            return f"{name} is not finite"
        if not error <= most:
            return f"{name} is off by {error:.1e} of its length, more than {most:.1e}"
    return ""


def errors(found: Sequence[Tensor | None], truth: Sequence[Tensor | None]) -> list[float]:
    """For each tensor the length of the difference over the length of the truth; infinity for what is not finite."""
    lengths = [0.0 if two is None else float(two.detach().double().norm()) for two in truth]
    least = max(FLOOR * math.hypot(*lengths), 1e-300)
    distances = [_distance(one, two) for one, two in zip(found, truth, strict=True)]
    return [distance / max(length, least) for distance, length in zip(distances, lengths, strict=True)]


def _distance(found: Tensor | None, truth: Tensor | None) -> float:
    """The length of the difference; None stands for zeros."""
    if found is None:
        return 0.0 if truth is None else float(truth.detach().double().norm())
    wide = found.detach().double()
    if not torch.isfinite(wide).all():
        return math.inf
    return float((wide if truth is None else wide - truth.detach().double()).norm())
