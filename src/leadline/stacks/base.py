"""A model seen as a stack of blocks: what probes, criteria and pruning need to know of it, whoever wrote it.

    stack = stack_of(model)                      # Leadline's decoder, or a Hugging Face causal language model
    with stack.watching(watcher):                # what every block reads, writes and leaves behind
        stack.logits(tokens)
    with stack.skipping([Unit(3), Unit(5, "mlp")]):
        stack.logits(tokens)                     # without block 3 and without the MLP of block 5

Shapes: B batch, T time, D width, V vocabulary. Blocks are numbered from 0.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from leadline.errors import LeadlineError, UsageError

_WATCHED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class Unit(NamedTuple):
    """What can be left out of a stack: a block, or one sublayer of it.

    Attributes:
        block: its number, from 0.
        sublayer: "attention" or "mlp"; None is the whole block.
    """

    block: int
    sublayer: str | None = None

    def __str__(self) -> str:
        return str(self.block) if self.sublayer is None else f"{self.block}.{self.sublayer}"


class StackWatcher:
    """What `Stack.watching` tells of every forward pass. Override what is of use; keep sums, not tensors.

    Tensors are those of the model, in its dtype, and carry gradients where the pass does.
    """

    wants_exits: ClassVar[bool] = False
    """Whether `on_exit` is called, which may cost one more read a block."""

    def on_block(self, block: int, before: Tensor, after: Tensor) -> None:
        """Block `block` read `before` and left `after`, both (B, T, D).

        In an additive stream these are the stream before and after the block. In any other connection they are what
        the block's first sublayer reads and what the next block's first sublayer reads, or the readout after the last.
        Never a tensor behind the final norm. A block that is left out is not told of.
        """

    def on_sublayer(self, block: int, sublayer: str, output: Tensor) -> None:
        """A sublayer's output (B, T, D), as it joins depth."""

    def on_exit(self, block: int, hidden: Tensor) -> None:
        """What the final norm would get (B, T, D) if the model ended after `block`."""


class Stack:
    """A model seen as blocks along depth.

    Attributes:
        model: the model itself.
        blocks: how many there are.
        sublayers: the names of each block's sublayers, in the order in which they run.
    """

    model: nn.Module
    blocks: int
    sublayers: tuple[tuple[str, ...], ...]

    @property
    def device(self) -> torch.device:
        """Where the model's first parameter is."""
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    @property
    def context(self) -> int:
        """Tokens that the model was made for."""
        raise TypeError(f"{type(self).__name__} does not define context")

    @property
    def vocab_size(self) -> int:
        """V."""
        raise TypeError(f"{type(self).__name__} does not define vocab_size")

    @property
    def norms_scale(self) -> bool:
        """Whether the norms before sublayers ignore the size of what they read, as RMSNorm does and DyT does not."""
        raise TypeError(f"{type(self).__name__} does not define norms_scale")

    def parameters_of(self, unit: Unit) -> dict[str, nn.Parameter]:
        """The parameters of a block or sublayer by their names in the model, each once.

        A parameter that several blocks share belongs to the first of them. What belongs to a block and to none of its
        sublayers (a norm before both, in a parallel block) is in the block's alone.
        """
        raise TypeError(f"{type(self).__name__} does not define parameters_of")

    def logits(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, V) for tokens (B, T) int64, on the model's device, without a cache."""
        raise TypeError(f"{type(self).__name__} does not define logits")

    def lens(self, hidden: Tensor) -> Tensor:
        """The final norm and the head, with whatever the model does after it: (..., D) to (..., V)."""
        raise TypeError(f"{type(self).__name__} does not define lens")

    def watching(self, watcher: StackWatcher) -> AbstractContextManager[None]:
        """Tells `watcher` of every forward pass until the context ends. The model's numbers stay to the bit.

        Raises:
            LeadlineError: the model is being watched already.
        """
        raise TypeError(f"{type(self).__name__} does not define watching")

    def skipping(self, units: Collection[Unit]) -> AbstractContextManager[None]:
        """Leaves units out of every forward pass, the connection's own way, until the context ends.

        Raises:
            UsageError: a unit that isn't there.
        """
        raise TypeError(f"{type(self).__name__} does not define skipping")

    def parameters_under(self, prefix: str, parts: Collection[str] | None = None) -> dict[str, nn.Parameter]:
        """The parameters whose names begin so, each once; of `parts`, the next words of the names, alone if given."""
        return {
            name: value
            for name, value in self.model.named_parameters()
            if name.startswith(prefix) and (parts is None or name.removeprefix(prefix).split(".")[0] in parts)
        }

    def units(self, kind: str) -> list[Unit]:
        """All units of a kind, "block" or "sublayer", in the order in which they run."""
        if kind == "block":
            return [Unit(block) for block in range(self.blocks)]
        return [Unit(block, name) for block, names in enumerate(self.sublayers) for name in names]

    def check(self, units: Collection[Unit]) -> None:
        """Raises UsageError for a unit that isn't there, which is named with those that are."""
        for unit in units:
            if not 0 <= unit.block < self.blocks:
                raise UsageError(f"there is no block {unit.block}; this model has 0 to {self.blocks - 1}")
            names = self.sublayers[unit.block]
            if unit.sublayer is not None and unit.sublayer not in names:
                has = " and ".join(names) or "no sublayers"
                raise UsageError(f"there is no sublayer {unit}; block {unit.block} has {has}")


@contextlib.contextmanager
def watched_once(model: nn.Module) -> Iterator[None]:
    """Raises LeadlineError where the model is being watched already; nobody else can, until the context ends."""
    if model in _WATCHED:
        raise LeadlineError("this model is being watched already; end that before the next begins")
    _WATCHED.add(model)
    try:
        yield
    finally:
        _WATCHED.discard(model)


@contextlib.contextmanager
def measuring(model: nn.Module) -> Iterator[torch.device]:
    """Evaluation mode without gradients; the modes of all modules come back. Gives the model's device."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield next((p.device for p in model.parameters()), torch.device("cpu"))
    finally:
        for module, mode in modes.items():
            module.training = mode
