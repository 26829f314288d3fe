"""Chunked cross-entropy: the head's product and the loss, so that the logits of a long batch never exist at once."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from leadline.errors import UsageError
from leadline.ops.precision import wide

IGNORED = -100
"""A target that doesn't count, as in PyTorch."""

Reduction = Literal["mean", "sum", "none"]


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, reduction: Reduction = "mean"
) -> Tensor:
    """The cross-entropy of `hidden @ weightᵀ`, with the logits of at most `chunk` tokens alive at a time.

    Values and gradients are those of `F.cross_entropy` on the logits, widened to float32 at least, with one
    difference: a mean over no tokens at all is 0 with zero gradients, where PyTorch gives NaN [ours].

    In float32, "mean" and "sum" are PyTorch's own `linear_cross_entropy` where this PyTorch has it (2.13 and newer): it
    makes the gradients in the forward pass, so the head is multiplied no more often than without chunks, and the
    backward pass runs once (no `retain_graph`). Otherwise chunks are recomputed in the backward pass: one more product
    with the head. In narrower dtypes and under autocast that one would accumulate and return narrow numbers.

    Args:
        hidden: (N, D), what the head reads.
        weight: (V, D), the head's.
        targets: (N), int64; -100 doesn't count.
        chunk: tokens in a chunk.
        reduction: "mean" over the targets that count, their "sum", or "none" for a loss per token, 0 where the target
            doesn't count.

    Returns:
        A scalar, or (N) for "none"; float32 or wider.

    Raises:
        UsageError: `chunk` is less than 1, or there is no such reduction.
    """
    if chunk < 1:
        raise UsageError(f"chunk={chunk} is too small; 1 token or more works, such as 1024")
    if reduction not in get_args(Reduction):
        raise UsageError(f"reduction={reduction!r} is not known; {', '.join(get_args(Reduction))} work")
    if reduction == "mean":
        kept = (targets != IGNORED).sum().clamp(min=1)
        return chunked_cross_entropy(hidden, weight, targets, chunk, "sum") / kept
    if hidden.shape[0] <= chunk:
        return _losses(hidden, weight, targets, reduction)
    plain = hidden.dtype == torch.float32 and not torch.is_autocast_enabled(hidden.device.type)
    if reduction == "sum" and plain and hasattr(torch.nn, "LinearCrossEntropyOptions"):
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=chunk)
        return F.linear_cross_entropy(hidden, weight, targets, reduction="sum", options=options)
    losses = [
        checkpoint(_losses, rows, weight, wanted, reduction, use_reentrant=False, preserve_rng_state=False)
        for rows, wanted in zip(hidden.split(chunk), targets.split(chunk), strict=True)
    ]
    return torch.cat(losses) if reduction == "none" else torch.stack(losses).sum()


def _losses(hidden: Tensor, weight: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
    logits = F.linear(hidden, weight)
    return F.cross_entropy(logits.to(wide(logits.dtype)), targets, reduction=reduction, ignore_index=IGNORED)
