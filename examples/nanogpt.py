"""A small GPT of one's own, and the same with another depth: three lines change.

    python examples/nanogpt.py

trains both on the bytes of this file, some seconds each, and prints their losses.
"""

import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline as ll  # changed line 1


class Attention(nn.Module):
    """Causal self-attention behind its own norm."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, dim = x.shape
        split = self.qkv(self.norm(x)).view(batch, time, 3, self.heads, dim // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).reshape(batch, time, dim))


class MLP(nn.Module):
    """Two matrices and a GELU behind their own norm."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class GPT(nn.Module):
    """The model as it was: a PreNorm Transformer."""

    def __init__(self, vocab_size: int, dim: int, blocks: int, heads: int, context: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.place = nn.Parameter(torch.zeros(context, dim))
        self.sublayers = nn.ModuleList(make(dim, heads) for _ in range(blocks) for make in (Attention, MLP))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place[: tokens.shape[1]]
        for sublayer in self.sublayers:
            x = x + sublayer(x)
        return self.head(self.norm(x))


class GPTWithDepth(nn.Module):
    """The same with a Leadline connection; any other stands in its place."""

    def __init__(self, vocab_size: int, dim: int, blocks: int, heads: int, context: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.place = nn.Parameter(torch.zeros(context, dim))
        self.sublayers = nn.ModuleList(make(dim, heads) for _ in range(blocks) for make in (Attention, MLP))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab_size, bias=False)
        self.depth = ll.AttentionResiduals(block_size=4).build(dim, 2 * blocks)  # changed line 2

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place[: tokens.shape[1]]
        x = ll.fold(self.depth, x, self.sublayers)  # changed line 3
        return self.head(self.norm(x))


def train(model: nn.Module, text: Tensor, steps: int, batch_size: int = 16, context: int = 64) -> list[float]:
    """Trains on random pieces of `text`, byte numbers, and returns the loss of each step."""
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(text) - context, (batch_size,), generator=generator).tolist()
        pieces = torch.stack([text[start : start + context + 1] for start in starts])
        loss = F.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    text = torch.tensor(list(Path(__file__).read_bytes()))
    for make in (GPT, GPTWithDepth):
        torch.manual_seed(0)
        begin = time.perf_counter()
        losses = train(make(vocab_size=256, dim=64, blocks=8, heads=4, context=64), text, steps=150)
        print(f"{make.__name__:>13}: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
