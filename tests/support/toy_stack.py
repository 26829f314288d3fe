"""A linear stack whose every answer is known by hand.

Token t is embedded as row t of `embedding`. A sublayer gives `x @ matrix`, and its block adds it to x. The final norm
is RMSNorm without gain or eps where `normed`, else nothing; the head is the identity, so logits are the last state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from leadline.errors import LeadlineError, UsageError
from leadline.stacks import Stack, StackWatcher, Unit


class Batch(NamedTuple):
    tokens: Tensor
    targets: Tensor


def rows(*tokens: Sequence[int]) -> list[Batch]:
    """One batch per row of tokens, each of one sequence, whose targets are the tokens themselves."""
    return [Batch(torch.tensor([row]), torch.tensor([row])) for row in tokens]


class LinearModel(nn.Module):
    """Parameters: `embedding` (V, D), and `matrices` (N, D, D) one after another."""

    def __init__(self, embedding: Tensor, matrices: Sequence[Tensor | nn.Parameter]) -> None:
        super().__init__()
        self.embedding = nn.Parameter(embedding)
        self.matrices = nn.ParameterList(m if isinstance(m, nn.Parameter) else nn.Parameter(m) for m in matrices)


class ToyStack(Stack):
    """Blocks of one sublayer each ("mlp"), or of two ("attention", "mlp") where `sublayers_per_block` is 2."""

    def __init__(
        self,
        embedding: Tensor,
        matrices: Sequence[Tensor | nn.Parameter],
        sublayers_per_block: int = 1,
        normed: bool = False,
    ) -> None:
        self.model = LinearModel(embedding, matrices)
        self.blocks = len(matrices) // sublayers_per_block
        names = ("mlp",) if sublayers_per_block == 1 else ("attention", "mlp")
        self.sublayers = (names,) * self.blocks
        self.normed = normed
        self.passes = 0
        self._watcher: StackWatcher | None = None
        self._skipped: set[Unit] = set()

    @property
    def context(self) -> int:
        return 16

    @property
    def vocab_size(self) -> int:
        return int(self.model.embedding.shape[1])

    @property
    def norms_scale(self) -> bool:
        return self.normed

    def parameters_of(self, unit: Unit) -> dict[str, nn.Parameter]:
        per_block = len(self.sublayers[unit.block])
        wanted = [
            (index, name)
            for index, name in enumerate(f"matrices.{i}" for i in range(len(self.model.matrices)))
            if index // per_block == unit.block
            and unit.sublayer in (None, self.sublayers[unit.block][index % per_block])
        ]
        matrices = list(self.model.matrices)
        first = {id(parameter): index for index, parameter in reversed(list(enumerate(matrices)))}
        return {name: matrices[index] for index, name in wanted if first[id(matrices[index])] == index}

    def logits(self, tokens: Tensor) -> Tensor:
        self.passes += 1
        x, index = self.model.embedding[tokens], 0
        for block, names in enumerate(self.sublayers):
            before = x
            for name in names:
                matrix = self.model.matrices[index]
                index += 1
                if self._skipped & {Unit(block), Unit(block, name)}:
                    continue
                output = x @ matrix
                if self._watcher is not None:
                    self._watcher.on_sublayer(block, name, output)
                x = x + output
            if self._watcher is not None and Unit(block) not in self._skipped:
                self._watcher.on_block(block, before, x)
                if self._watcher.wants_exits:
                    self._watcher.on_exit(block, x)
        return self.lens(x)

    def lens(self, hidden: Tensor) -> Tensor:
        return hidden / hidden.square().mean(dim=-1, keepdim=True).sqrt() if self.normed else hidden

    @contextlib.contextmanager
    def watching(self, watcher: StackWatcher) -> Iterator[None]:
        if self._watcher is not None:
            raise LeadlineError("this model is being watched already")
        self._watcher = watcher
        try:
            yield
        finally:
            self._watcher = None

    @contextlib.contextmanager
    def skipping(self, units: Collection[Unit]) -> Iterator[None]:
        known = {*self.units("block"), *self.units("sublayer")}
        if not known.issuperset(units):
            raise UsageError("no such unit")
        before, self._skipped = self._skipped, self._skipped | set(units)
        try:
            yield
        finally:
            self._skipped = before
