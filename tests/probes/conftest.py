"""A stack of linear sublayers on a connection of our own, small enough to know every answer by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from leadline.connections.base import Readout, Site
from leadline.designs import PRESETS, resolve
from leadline.models import Decoder


class Streams(NamedTuple):
    streams: tuple[Tensor, ...]


class ListSite(Site):
    """Reads the sum of all that was written; shows the weights 1/k, and the streams themselves."""

    def read(self, state: Streams) -> tuple[Tensor, Streams]:
        return torch.stack(state.streams).sum(dim=0), state

    def write(self, state: Streams, output: Tensor) -> Streams:
        return Streams((*state.streams, output))

    def inspect(self, state: Streams) -> dict[str, Tensor]:
        count = len(state.streams)
        leading = state.streams[0].shape[:-1]
        shown = {
            "weights": torch.full((*leading, count), 1.0 / count),
            "streams": torch.stack(state.streams),
        }
        if count > 1:
            shown["gates"] = torch.arange(count).float().expand(*leading, count)
            shown["mixing"] = torch.eye(count).expand(*leading, count, count)
        return shown


class ListReadout(Readout):
    def forward(self, state: Streams) -> Tensor:
        return torch.stack(state.streams).sum(dim=0)

    def inspect(self, state: Streams) -> dict[str, Tensor]:
        count = len(state.streams)
        return {"weights": torch.full((*state.streams[0].shape[:-1], count), 1.0 / count)}


class Toy(nn.Module):
    """Token t is embedded as row t of `embedding`; sublayer l is x → x @ matrices[l]; the head is the identity."""

    def __init__(self, embedding: Tensor, matrices: list[Tensor]) -> None:
        super().__init__()
        self.embedding = nn.Parameter(embedding)
        self.matrices = nn.ParameterList([nn.Parameter(m) for m in matrices])
        self.site_list = nn.ModuleList([ListSite(1.0) for _ in matrices])
        self.readout = ListReadout(1.0)
        self.dropout = nn.Dropout(0.5)

    def forward(self, tokens: Tensor, *, skip: Collection[int] = ()) -> Tensor:
        state = Streams((self.embedding[tokens],))
        for index, (site, matrix) in enumerate(zip(self.site_list, self.matrices, strict=True)):
            if index in skip:
                state = site.skip(state)
                continue
            h, state = site.read(state)
            state = site.write(state, self.dropout(h @ matrix) if self.training else h @ matrix)
        return self.readout(state)


class Batch(NamedTuple):
    tokens: Tensor
    targets: Tensor


@pytest.fixture
def toy() -> Callable[..., Toy]:
    """`toy(embedding, matrices)` is a stack of linear sublayers."""
    return Toy


@pytest.fixture
def batches() -> Callable[..., list[Batch]]:
    """`batches([0, 1], [2])` is two batches of one sequence each, whose targets are the tokens themselves."""
    return lambda *rows: [Batch(torch.tensor([row]), torch.tensor([row])) for row in rows]


@pytest.fixture
def some_batches() -> list[Batch]:
    """Two batches of two and one sequences of 8 tokens below 11, with targets of their own."""
    generator = torch.Generator().manual_seed(0)
    return [Batch(*torch.randint(0, 11, (2, count, 8), generator=generator)) for count in (2, 1)]


@pytest.fixture
def decoder() -> Callable[..., Decoder]:
    """`decoder("mgr", blocks=3)` is a decoder of width 16 for 11 tokens and a context of 8."""

    def build(expression: str, blocks: int = 3) -> Decoder:
        tiny = PRESETS["tiny"].shape
        shape = dataclasses.replace(tiny, blocks=blocks, dim=16, heads=2, kv_heads=2, head_dim=8, hidden=24, context=8)
        return Decoder(resolve(expression).decoder(shape, vocab_size=11), seed=0)

    return build
