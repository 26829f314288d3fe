"""Where a forward pass is: whether one runs, and in which block, for modules that stand in several blocks too."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

from torch import nn

from leadline.stacks.anatomy import Join, Sublayer
from leadline.stacks.layout import Layout

QUIET: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models that run a pass which isn't one of theirs, such as a lens: nobody is told of it."""


class Passes:
    """Follows the forward passes of a model.

    Attributes:
        running: whether a pass runs. What is called outside of one, when a block is recomputed for gradients, is no
            second pass.
        joins: by module whose output joins the stream, in which blocks it stands and as what of which sublayer.
    """

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        self.running = False
        self.joins: dict[nn.Module, dict[int, tuple[Sublayer, Join]]] = {}
        self._layout = layout
        self._model = model
        self._root = _owner(model, layout.path)
        self._places: dict[nn.Module, list[int]] = {}
        for index, (block, anatomy) in enumerate(zip(layout.blocks, layout.anatomies, strict=True)):
            self._places.setdefault(block, []).append(index)
            for sublayer in anatomy.sublayers:
                for join in sublayer.joins:
                    self.joins.setdefault(join.module, {})[index] = (sublayer, join)
        self._block = -1

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Follows until the context ends."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._root.register_forward_pre_hook(self._begin).remove)
            stack.callback(self._root.register_forward_hook(self._end, always_call=True).remove)
            for block in self._places:
                stack.callback(block.register_forward_pre_hook(self._enter).remove)
            yield

    def block_of(self, block: nn.Module) -> int:
        """The number of the block that runs, which is this module."""
        places = self._places[block]
        return places[0] if len(places) == 1 else self._block

    def place_of(self, module: nn.Module) -> tuple[int, Sublayer, Join]:
        """The number of the block that runs, and what this module is in it."""
        places = self.joins[module]
        index = next(iter(places)) if len(places) == 1 else self._block
        return index, *places[index]

    def _begin(self, module: nn.Module, args: Any) -> None:
        if self._model not in QUIET:
            self.running, self._block = True, -1

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._model not in QUIET:
            self.running = False

    def _enter(self, block: nn.Module, args: Any) -> None:
        if self._model in QUIET:
            return
        places = self._places[block]
        self._block = next((place for place in places if place > self._block), places[0])


def _owner(model: nn.Module, path: str) -> nn.Module:
    """The module that runs the blocks: the nearest above the list that can be called."""
    while "." in path:
        path = path.rpartition(".")[0]
        module = model.get_submodule(path)
        if not isinstance(module, (nn.ModuleDict, nn.ModuleList)):
            return module
    return model
