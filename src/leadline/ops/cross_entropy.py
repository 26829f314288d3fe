"""Cross-entropy over the head in chunks, so that the logits of a long batch never exist at once."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from leadline.errors import UsageError
from leadline.ops.precision import wide

Reduction = Literal["mean", "sum", "none"]
IGNORED = -100
"""The target that counts nothing, as in `torch.nn.functional.cross_entropy`."""


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, *, reduction: Reduction = "mean"
) -> Tensor:
    """The cross-entropy of `hidden @ weightᵀ`, with the logits of at most `chunk` tokens alive at a time.

    A target of -100 counts nothing: its loss is 0, and no gradient comes from it. Where all are -100 the mean is 0 with
    zero gradients, where PyTorch's is NaN.

    PyTorch's own `linear_cross_entropy` does it in float32 and float64 where this PyTorch has it (2.13 and newer): it
    makes the gradients in the forward pass, so the head is multiplied no more often than without chunks; its backward
    pass runs once, without `retain_graph` or second derivatives. In narrower
    dtypes and under autocast, where that one accumulates and returns narrow numbers, and with `reduction="none"`,
    chunks are recomputed in the backward pass: one more product with the head, and the plain formula's numbers.

    Args:
        hidden: (N, D), what the head reads.
        weight: (V, D), the head's.
        targets: (N), int64.
        chunk: tokens in a chunk.
        reduction: "mean" over the targets that count, "sum", or "none", which weights of one's own can multiply.

    Returns:
        A scalar, or (N) with `reduction="none"`; float32 or wider.

    Raises:
        UsageError: `chunk` is less than 1, or the reduction is not known.
    """
    if chunk < 1:
        raise UsageError(f"chunk={chunk} is too small; 1 token or more works, such as 1024")
    if reduction not in get_args(Reduction):
        raise UsageError(f"reduction={reduction!r} is not known; {', '.join(get_args(Reduction))} work")
    if reduction == "none":
        return _in_chunks(hidden, weight, targets, chunk, "none")
    total = _sum(hidden, weight, targets, chunk)
    return total / (targets != IGNORED).sum().clamp(min=1) if reduction == "mean" else total


def _sum(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    if hidden.shape[0] <= chunk:
        return _chunk(hidden, weight, targets, "sum")
    kind = hidden.device.type
    narrow = hidden.dtype != wide(hidden.dtype) or torch.is_autocast_enabled(kind)
    if not narrow and hasattr(torch.nn, "LinearCrossEntropyOptions"):
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=chunk)
        return F.linear_cross_entropy(hidden, weight, targets, reduction="sum", options=options)
    return _in_chunks(hidden, weight, targets, chunk, "sum").sum()


def _in_chunks(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, reduction: Reduction) -> Tensor:
    """The losses of all chunks, one after another: (N), or their sums."""
    losses = [
        checkpoint(_chunk, part, weight, wanted, reduction, use_reentrant=False, preserve_rng_state=False)
        for part, wanted in zip(hidden.split(chunk), targets.split(chunk), strict=True)
    ]
    return torch.cat([loss.reshape(-1) for loss in losses])


def _chunk(hidden: Tensor, weight: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
    logits = F.linear(hidden, weight)
    return F.cross_entropy(logits.to(wide(logits.dtype)), targets, reduction=reduction, ignore_index=IGNORED)
