"""The two sublayers of a block, attention and SwiGLU, and the rotary embeddings.

Shapes: B batch, T new tokens, S tokens attended to, D width, H query heads, K key and value heads, E head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.models.cache import CacheEntry
from leadline.models.config import AttentionConfig, MLPConfig
from leadline.norms import RMSNorm

Device = torch.device | str | None


class Linear(nn.Linear):
    """A matrix without a bias, whose values come from `leadline.models.initialise` and not from its constructor."""

    def __init__(self, dim_in: int, dim_out: int, device: Device, dtype: torch.dtype | None) -> None:
        super().__init__(dim_in, dim_out, bias=False, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Leaves the values as they are."""


class Embedding(nn.Embedding):
    """A table of vectors, initialised as `Linear` is."""

    def reset_parameters(self) -> None:
        """Leaves the values as they are."""


def rotary_tables(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines for `rotate`, each (T, E/2), in float32 (float64 for a float64 model).

    They depend on nothing but positions, so they are made again in each forward pass: no buffer to lose.
    Source: arXiv 2104.09864; pairs are (i, i + E/2), as in Llama.
    """
    wide = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=wide) / head_dim
    angles = positions.to(wide).unsqueeze(-1) * (1.0 / theta**exponents)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turns the pairs of x (B, heads, T, E) by the angles of `rotary_tables`; arithmetic in the tables' dtype."""
    first, second = x.to(cosines.dtype).chunk(2, dim=-1)
    turned = torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)
    return turned.to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention: queries, keys and values from one matrix (in this order), grouped queries through SDPA.

    Parameters: `qkv.weight` ((H + 2K)·E, D), `output.weight` (D, H·E); with QK-norm `query_norm.gain` and
    `key_norm.gain` (E,).
    """

    def __init__(self, dim: int, config: AttentionConfig, device: Device = None, dtype: torch.dtype | None = None):
        super().__init__()
        config.check("attention")
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.head_dim = config.head_dim
        rows = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.qkv = Linear(dim, rows, device, dtype)
        self.output = Linear(config.heads * config.head_dim, dim, device, dtype)
        self.query_norm: nn.Module | None = None
        self.key_norm: nn.Module | None = None
        if config.qk_norm:
            self.query_norm = RMSNorm().build(config.head_dim, role="query_key", device=device, dtype=dtype)
            self.key_norm = RMSNorm().build(config.head_dim, role="query_key", device=device, dtype=dtype)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor, cache: CacheEntry | None = None) -> Tensor:
        """x (B, T, D) to (B, T, D); with a cache the T tokens follow those it holds."""
        batch, time, _ = x.shape
        heads = self.qkv(x).view(batch, time, self.heads + 2 * self.kv_heads, self.head_dim).transpose(1, 2)
        query_key, value = heads.split((self.heads + self.kv_heads, self.kv_heads), dim=1)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = query_key.split((self.heads, self.kv_heads), dim=1)
            query_key = torch.cat((self.query_norm(query), self.key_norm(key)), dim=1)
        query, key = rotate(query_key, cosines, sines).split((self.heads, self.kv_heads), dim=1)
        if cache is not None:
            key, value = cache.append(key, value)
        mixed = self._attend(query, key, value)
        return self.output(mixed.transpose(1, 2).reshape(batch, time, self.heads * self.head_dim))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The newest T of S tokens attend to all tokens up to themselves: (B, H, T, E)."""
        time, attended = query.shape[2], key.shape[2]
        mask, causal = None, False
        if time > 1:  # branches, because under torch.compile these sizes may be symbols, which is_causal doesn't take
            if time == attended:
                causal = True
            else:
                mask = torch.ones(time, attended, dtype=torch.bool, device=query.device).tril(attended - time)
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=causal,
            enable_gqa=self.heads != self.kv_heads,
        )

    @property
    def value_weight(self) -> Tensor:
        """The rows of `qkv` that make values: (K·E, D)."""
        return self.qkv.weight[-self.kv_heads * self.head_dim :]


class SwiGLU(nn.Module):
    """`down(silu(gate(x)) * up(x))` (arXiv 2002.05202), with gate and up in one matrix, gate first.

    Parameters: `gate_up.weight` (2·hidden, D), `down.weight` (D, hidden).
    """

    def __init__(self, dim: int, config: MLPConfig, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        config.check("mlp")
        self.gate_up = Linear(dim, 2 * config.hidden, device, dtype)
        self.down = Linear(config.hidden, dim, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) to (..., D)."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)
