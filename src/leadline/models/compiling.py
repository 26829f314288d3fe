"""Compiling a decoder block by block: once for every kind of block, not once a layer.

Blocks that differ in their weights alone are one kind: a uniform PreNorm stack has one, CascadeFormer's A2 three. What
a compiler takes for a constant makes another kind: widths, norms, and what a connection keeps of its place. Multi-Gate
Residuals and Attention Residuals have about as many kinds as blocks for that reason; compile these models whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import nn

from leadline.connections.base import State
from leadline.models.block import Block, Tokens
from leadline.models.decoder import Decoder
from leadline.models.layers import CacheEntry

STARTS = ("_start", "training")
"""Endings of attributes that the forward pass doesn't read, or that change on their own."""
FACTOR = "norm_scale"
"""LNS's factor: a number that compiled code takes as an input, so that blocks that differ in it share code."""


@dataclasses.dataclass
class CompiledForward:
    """What stands in for a block's `forward`; the block's hooks run outside of it.

    Generation with a cache runs uncompiled: the cache grows with every token. So does a block of which both sublayers
    are skipped: there is nothing to compute.

    Attributes:
        backend: as `torch.compile` takes it.
        functions: compiled code, shared by all blocks of a kind: a function for every structure of the state that comes
            along, made when it is first needed. Where training drops blocks, the number of sources or streams that a
            block meets differs from step to step. One function for all of them would run into the compiler's limit on
            recompiling it.
    """

    block: Block
    backend: str | Callable[..., Any]
    functions: dict[Any, Callable[..., State]]

    def __call__(
        self,
        state: State,
        tokens: Tokens,
        cache: CacheEntry | None = None,
        skip_attention: bool = False,
        skip_mlp: bool = False,
    ) -> State:
        """As `Block.forward`."""
        if cache is not None or (skip_attention and skip_mlp):
            return Block.forward(self.block, state, tokens, cache, skip_attention, skip_mlp)
        structure = structure_of(state), skip_attention, skip_mlp
        if structure not in self.functions:
            self.functions[structure] = torch.compile(_own_function(), backend=self.backend, fullgraph=True)
        return self.functions[structure](self.block, state, tokens, None, skip_attention, skip_mlp)


def compile_blocks(model: Decoder, *, backend: str | Callable[..., Any] = "inductor") -> int:
    """Makes every block run compiled, blocks of one kind from one compiled function; returns the number of kinds.

    Code is compiled when a block first runs: for training once a kind, and once more where another batch or length
    turns sizes into variables (or LNS's factor); and once for each number of sources or streams that a block meets,
    which is one unless blocks are skipped. Each of these has a function of its own, so that many don't run into the
    compiler's limit on recompiling one function; where one does, the run fails rather than going on uncompiled.

    Args:
        backend: as `torch.compile` takes it.
    """
    kinds: dict[str, dict[Any, Callable[..., State]]] = {}
    for block in cast(list[Block], list(model.blocks)):
        forward = CompiledForward(block, backend, kinds.setdefault(kind_of(block), {}))
        block.forward = forward  # type: ignore[method-assign]  # this block's alone; its hooks stay
    return len(kinds)


def structure_of(state: Any) -> Any:
    """What compiled code takes for granted of a state, but for the sizes: how many tensors it has, and where.

    An empty tensor is a note whose shape is what it says, such as the number of a block.
    """
    if isinstance(state, tuple):
        return tuple(map(structure_of, state))
    return tuple(state.shape) if isinstance(state, torch.Tensor) and state.numel() == 0 else type(state)


@contextlib.contextmanager
def eager_blocks(model: Decoder) -> Iterator[None]:
    """Blocks that `compile_blocks` compiled run as they were written until the context ends, so that hooks inside of
    them see what they do."""
    compiled = {block: vars(block).pop("forward") for block in model.blocks if "forward" in vars(block)}
    try:
        yield
    finally:
        for block, forward in compiled.items():
            vars(block)["forward"] = forward


def kind_of(block: Block) -> str:
    """What compiled code of this block takes for granted, as text: equal for blocks that can share code."""
    parts = [f"factor {block.norm_scale != 1.0}"]
    for name, module in _modules(block):
        plain = {
            key: value
            for key, value in sorted(vars(module).items())
            if not key.startswith("_") and not key.endswith(STARTS) and key != FACTOR and _is_plain(value)
        }
        tensors = [
            (key, tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
            for key, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        ]
        parts.append(f"{name} {type(module).__name__} {plain} {tensors}")
    return "\n".join(parts)


def _modules(block: Block) -> Iterator[tuple[str, nn.Module]]:
    """All that a block is made of; one that repeats another has that one's parts, without being registered."""
    yield from block.named_modules()
    for part, module in sorted(vars(block).items()):
        if isinstance(module, nn.Module):
            yield from module.named_modules(prefix=f"shared {part}")


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    is_config = dataclasses.is_dataclass(value) and not isinstance(value, CompiledForward)
    return value is None or isinstance(value, int | float | str | torch.dtype) or is_config


def _own_function() -> Callable[..., State]:
    """`Block.forward` with a code object of its own: compiled code is kept with the code object."""
    forward = Block.forward
    return types.FunctionType(
        forward.__code__.replace(co_name="forward_of_one_kind"),
        forward.__globals__,
        "forward_of_one_kind",
        forward.__defaults__,
        forward.__closure__,
    )
