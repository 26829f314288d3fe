"""Cross-entropy over the head in pieces, so that the logits of a long batch never exist at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from leadline.errors import UsageError
from leadline.ops.precision import wide


def chunked_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """The mean cross-entropy of `hidden @ weightᵀ`, with the logits of at most `chunk` tokens alive at a time.

    PyTorch's own `linear_cross_entropy` does it in float32 and float64 where this PyTorch has it (2.13 and newer): it
    makes the gradients in the forward pass, so the head is multiplied no more often than without pieces. In narrower
    dtypes and under autocast, where that one accumulates and returns narrow numbers, pieces are recomputed in the
    backward pass: one more product with the head, and the numbers of the plain formula.

    Args:
        hidden: (N, D), what the head reads.
        weight: (V, D), the head's.
        targets: (N), int64.
        chunk: tokens in a piece.

    Returns:
        A scalar, float32 or wider.

    Raises:
        UsageError: `chunk` is less than 1.
    """
    if chunk < 1:
        raise UsageError(f"chunk={chunk} is too small; 1 token or more works, such as 1024")
    if hidden.shape[0] <= chunk:
        return F.cross_entropy(_logits(hidden, weight), targets)
    kind = hidden.device.type
    narrow = hidden.dtype != wide(hidden.dtype) or torch.is_autocast_enabled(kind)
    if not narrow and hasattr(torch.nn, "LinearCrossEntropyOptions"):
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=chunk)
        return F.linear_cross_entropy(hidden, weight, targets, options=options)
    total = torch.zeros((), dtype=wide(hidden.dtype), device=hidden.device)
    for piece, wanted in zip(hidden.split(chunk), targets.split(chunk), strict=True):
        total = total + checkpoint(_piece, piece, weight, wanted, use_reentrant=False, preserve_rng_state=False)
    return total / targets.numel()


def _logits(hidden: Tensor, weight: Tensor) -> Tensor:
    logits = F.linear(hidden, weight)
    return logits.to(wide(logits.dtype))


def _piece(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(_logits(hidden, weight), targets, reduction="sum")
