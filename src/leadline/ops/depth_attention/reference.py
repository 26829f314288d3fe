"""Depth attention in plain PyTorch: the truth."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leadline.ops.precision import wide


def source_root(source: Tensor, eps: float) -> Tensor:
    """`1 / sqrt(mean v² + eps)` of (..., D), in float32 or wider: (...)."""
    length = torch.linalg.vector_norm(source, dim=-1, dtype=wide(source.dtype))
    return (length.square() / source.shape[-1] + eps).rsqrt()


def source_roots(sources: Sequence[Tensor], eps: float, roots: Sequence[Tensor] | None) -> Sequence[Tensor]:
    """Those of all sources, as data: the ones that are known already, if there is one for each."""
    if roots is not None and len(roots) == len(sources):
        return roots
    with torch.no_grad():
        return [source_root(source, eps) for source in sources]


def depth_attention_weights(sources: Sequence[Tensor], query: Tensor, key_gain: Tensor, eps: float) -> Tensor:
    """The softmax weights, (k, ...), in float32 or wider."""
    return torch.softmax(torch.stack([_score(source, query, key_gain, eps) for source in sources]), dim=0)


def depth_attention_reference(sources: Sequence[Tensor], query: Tensor, key_gain: Tensor, eps: float) -> Tensor:
    """The mix, (..., D); see `leadline.ops.depth_attention`."""
    weights = depth_attention_weights(sources, query, key_gain, eps)
    stacked = torch.stack([source.to(weights.dtype) for source in sources])
    return (weights.unsqueeze(-1) * stacked).sum(dim=0).to(sources[0].dtype)


def _score(source: Tensor, query: Tensor, key_gain: Tensor, eps: float) -> Tensor:
    x = source.to(wide(source.dtype))
    root = (x.square().mean(dim=-1) + eps).rsqrt()
    direction = query.to(x.dtype) * key_gain.to(x.dtype)
    return (x * direction).sum(dim=-1) * root
