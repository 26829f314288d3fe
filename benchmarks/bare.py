"""The same PreNorm decoder as Leadline's, in plain PyTorch and without Leadline: what it is measured against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BareBlock(nn.Module):
    """`x + attention(rms(x))`, then `x + swiglu(rms(x))`."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.RMSNorm(dim, eps=1e-6)
        self.mlp_norm = nn.RMSNorm(dim, eps=1e-6)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)
        self.gate_up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        batch, time, dim = x.shape
        parts = self.qkv(self.attention_norm(x)).view(batch, time, 3 * self.heads, -1).transpose(1, 2)
        query, key, value = parts.split(self.heads, dim=1)
        mixed = F.scaled_dot_product_attention(
            turn(query, cosines, sines), turn(key, cosines, sines), value, is_causal=True
        )
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, time, dim))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class BareDecoder(nn.Module):
    """A tied decoder with rotary embeddings: tokens (B, T) to logits (B, T, V)."""

    def __init__(self, vocab_size: int, dim: int, blocks: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.head_dim = dim // heads
        self.embed = nn.Embedding(vocab_size, dim)
        self.blocks = nn.ModuleList(BareBlock(dim, heads, hidden) for _ in range(blocks))
        self.final_norm = nn.RMSNorm(dim, eps=1e-6)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02 * (512 / dim) ** 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.shape[1]
        angles = torch.arange(time)[:, None] / 10000.0 ** (torch.arange(0, self.head_dim, 2) / self.head_dim)
        cosines, sines = angles.cos(), angles.sin()
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, cosines, sines)
        return F.linear(self.final_norm(x), self.embed.weight)


def turn(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary embeddings on (B, H, T, E)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)
