"""A step's gradients: its forward and backward passes, each with what the step drops and where it exits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leadline.data import Batch
from leadline.models import Decoder
from leadline.models.compiling import compile_blocks, eager_blocks
from leadline.ops import chunked_cross_entropy
from leadline.probes import DepthRecord, record
from leadline.training.evaluation import autocast, chunk_for, loss_of
from leadline.training.gradient_share import Diversity
from leadline.training.layerskip import LayerSkip
from leadline.training.resolve import Run

SUB_BATCHES = 4
"""Into which a step of one pass is cut to see how much its gradients differ."""


class Losses(NamedTuple):
    """Of a step or a pass, scalars on the device: at the end of the stack, and `Σ w_m · loss` over early exits."""

    final: Tensor
    exits: Tensor


class Passes:
    """The forward and backward passes of a run's steps.

    Attributes:
        forward, hidden, exits: the model's, compiled where the run asks for it. Compiled blocks are in the model.
        loss_chunk: tokens whose logits exist at once; None is all of a pass.
    """

    def __init__(self, model: Decoder, run: Run, device: torch.device) -> None:
        config = run.config
        self.model, self.run, self.device = model, run, device
        self.layerskip: LayerSkip = run.layerskip
        compiled = config.runtime.compile
        if config.runtime.compile_blocks:
            compile_blocks(model)
        self.forward = torch.compile(model) if compiled else model
        self.hidden = torch.compile(model.hidden) if compiled else model.hidden
        self.exits = torch.compile(model.exits) if compiled else model.exits
        tokens = run.batch_size // config.data.grad_accumulation * run.context
        heads = 1 + self.layerskip.most_exits
        self.loss_chunk = chunk_for(tokens, run.model.vocab_size * heads, config.runtime.loss_chunk)

    def gradients(
        self, batch: Batch, step: int, *, recorded: bool, diversity: Diversity | None = None
    ) -> tuple[Losses, DepthRecord | None]:
        """The mean losses, and gradients in place; the same for any number of passes.

        Args:
            batch: the whole step's.
            step: from 1.
            recorded: also keep a depth record, of the first pass.
            diversity: takes the gradients of the step's parts.
        """
        parts = self.run.config.data.grad_accumulation
        total = Losses(torch.zeros((), device=self.device), torch.zeros((), device=self.device))
        depth = None
        for number, (tokens, targets) in enumerate(self._pieces(batch, parts)):
            recording: contextlib.AbstractContextManager[DepthRecord | None] = contextlib.nullcontext()
            wanted = recorded and number == 0
            if wanted and self.layerskip:
                depth = self._record_whole(tokens)
            elif wanted:
                recording = record(self.model, inspect=True)
            with eager_blocks(self.model) if wanted else contextlib.nullcontext():
                with recording as seen, autocast(self.device, self.run.config.runtime.precision):
                    losses = self._losses(tokens, targets, step, compiled=not wanted)
                depth = seen if seen is not None else depth
                with self._apart(diversity) if parts > 1 else contextlib.nullcontext():
                    ((losses.final + losses.exits if self.layerskip.exits else losses.final) / parts).backward()
            total = Losses(*(a + b.detach().float() / parts for a, b in zip(total, losses, strict=True)))
        if diversity is not None and parts == 1:
            with eager_blocks(self.model):
                self._sub_batches(batch, step, diversity)
        return total, depth

    def _pieces(self, batch: Batch, parts: int) -> Iterator[tuple[Tensor, Tensor]]:
        for tokens, targets in zip(batch.tokens.chunk(parts), batch.targets.chunk(parts), strict=True):
            yield tokens.to(self.device), targets.to(self.device)

    def _losses(self, tokens: Tensor, targets: Tensor, step: int, *, compiled: bool) -> Losses:
        """Means over the pass."""
        skip = self._sublayers(self.layerskip.dropped(step))
        model: Decoder = self.model
        none = torch.zeros((), device=self.device)
        if self.layerskip.exits:
            weights = self.layerskip.weights(step)
            wanted = [*weights, self.layerskip.blocks - 1]
            *early, last = (self.exits if compiled else model.exits)(tokens, wanted, skip=skip)
            exits = none
            for hidden, weight in zip(early, weights.values(), strict=True):
                exits = exits + weight * self._loss(hidden, targets)
            return Losses(self._loss(last, targets), exits)
        given: dict[str, Any] = {"skip": skip} if skip else {}
        if self.loss_chunk is None:
            return Losses(loss_of((self.forward if compiled else model)(tokens, **given), targets), none)
        return Losses(self._loss((self.hidden if compiled else model.hidden)(tokens, **given), targets), none)

    def _loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        if self.loss_chunk is None:
            return loss_of(self.model.logits(hidden), targets)
        return chunked_cross_entropy(hidden.flatten(0, 1), self.model.head_weight, targets.flatten(), self.loss_chunk)

    def _sublayers(self, blocks: frozenset[int]) -> frozenset[int]:
        numbers = self.run.model.numbers
        return frozenset(number for block in blocks for number in numbers[block] if number is not None)

    @torch.no_grad()
    def _record_whole(self, tokens: Tensor) -> DepthRecord:
        """A record of the whole model, whatever this step drops and wherever it exits: one more forward pass."""
        recording = record(self.model, inspect=True)
        with eager_blocks(self.model), recording as depth, autocast(self.device, self.run.config.runtime.precision):
            self.model.hidden(tokens)
        return depth

    @contextlib.contextmanager
    def _apart(self, diversity: Diversity | None) -> Iterator[None]:
        """Shows `diversity` what a backward pass adds to the gradients; their sum stays the same, bit for bit."""
        if diversity is None:
            yield
            return
        before = _taken(self.model)
        yield
        diversity.add()
        with torch.no_grad():
            for parameter, grad in before:
                parameter.grad = grad if parameter.grad is None else grad.add_(parameter.grad)

    def _sub_batches(self, batch: Batch, step: int, diversity: Diversity) -> None:
        """Shows `diversity` the gradients of parts of the batch; those of the step stay as they are."""
        if batch.tokens.shape[0] < 2:
            return
        before = _taken(self.model)
        for tokens, targets in self._pieces(batch, min(SUB_BATCHES, batch.tokens.shape[0])):
            with autocast(self.device, self.run.config.runtime.precision):
                losses = self._losses(tokens, targets, step, compiled=False)
            (losses.final + losses.exits).backward()
            diversity.add()
            _taken(self.model)
        for parameter, grad in before:
            parameter.grad = grad


def _taken(model: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
    """The gradients that there are; afterwards there are none."""
    taken = [(parameter, parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
    for parameter, _ in taken:
        parameter.grad = None
    return taken
