"""Where the blocks of somebody else's model are, found by structure (no table of names), and which one runs."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leadline.errors import UsageError, did_you_mean
from leadline.stacks.anatomy import Anatomy, Join, Sublayer, Trace, has_matrices, is_attention

CLASSES = 4
"""At most so many classes in one list of blocks: hybrids have two or three."""


class Layout(NamedTuple):
    """The blocks and what each is made of.

    Attributes:
        path: the name of the list of blocks in the model, such as "model.layers".
        blocks: the blocks.
        anatomies: one per block.
    """

    path: str
    blocks: nn.ModuleList
    anatomies: tuple[Anatomy, ...]


def find_layout(model: nn.Module, run: Callable[[], object], path: str | None = None) -> Layout:
    """The blocks of `model`: the longest list of alike modules with attention and an MLP that are called in order.

    Args:
        model: any module.
        run: runs the model on a few tokens.
        path: the list's name, instead of a search.

    Raises:
        UsageError: none is found, or `path` names none; the message says how to point at the blocks.
    """
    lists = module_lists(model)
    if path is None:
        likely = {name: blocks for name, blocks in lists.items() if _looks_like_blocks(blocks)}
        if not likely:
            known = "known by a mask or a cache among its arguments, or by the name of its projection, such as q_proj"
            raise UsageError(_unknown(model, lists, f"no list of modules with attention ({known}) and an MLP each"))
    else:
        likely = {path: named_list(model, path)}
    called, anatomies = _traced(likely, run)
    in_order = {name: blocks for name, blocks in likely.items() if called[name] == list(range(len(blocks)))}
    if not in_order:
        raise UsageError(_unknown(model, lists, f"{', '.join(likely)} is not called block after block"))
    chosen = max(in_order, key=lambda name: len(in_order[name]))
    return Layout(chosen, in_order[chosen], tuple(anatomies[chosen]))


def module_lists(model: nn.Module) -> dict[str, nn.ModuleList]:
    """Every list of modules by its name, those that are empty left out."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module)}


def named_list(model: nn.Module, path: str) -> nn.ModuleList:
    """The list of blocks of that name. Raises UsageError where there is none; names those that there are."""
    lists = module_lists(model)
    if path not in lists:
        raise UsageError(
            f"--layers {path}: there is no list of blocks at {path!r} in {_described(model, lists)}"
            f"{did_you_mean(path, lists)}"
        )
    return lists[path]


def largest_list(lists: Mapping[str, nn.ModuleList]) -> str:
    """The name of the list that holds most parameters."""
    return max(lists, key=lambda name: sum(p.numel() for p in lists[name].parameters()), default="transformer.h")


def _looks_like_blocks(blocks: nn.ModuleList) -> bool:
    children = [child for block in blocks for child in block.children()]
    return (
        len({type(block) for block in blocks}) <= CLASSES
        and any(is_attention(child) for child in children)
        and any(has_matrices(child) and not is_attention(child) for child in children)
    )


def _traced(
    lists: dict[str, nn.ModuleList], run: Callable[[], object]
) -> tuple[dict[str, list[int]], dict[str, list[Anatomy]]]:
    """In which order the entries of each list were called, and their anatomies in that order."""
    called: dict[str, list[int]] = {name: [] for name in lists}
    anatomies: dict[str, list[Anatomy]] = {name: [] for name in lists}
    with contextlib.ExitStack() as stack:
        for name, blocks in lists.items():
            for module in dict.fromkeys(blocks):
                waiting = iter([index for index, block in enumerate(blocks) if block is module])

                def ended(anatomy: Anatomy | None, name: str = name, waiting: Iterator[int] = waiting) -> None:
                    called[name].append(next(waiting, -1))
                    anatomies[name] += [] if anatomy is None else [anatomy]

                stack.enter_context(Trace(module, ended).recording())
        run()
    return called, anatomies


def _described(model: nn.Module, lists: dict[str, nn.ModuleList]) -> str:
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    found = [f"{name} ({len(lists[name])} × {type(lists[name][0]).__name__})" for name in outer]
    return f"{type(model).__name__}, whose lists of modules are: {', '.join(found) or 'none'}."


def _unknown(model: nn.Module, lists: dict[str, nn.ModuleList], why: str) -> str:
    return (
        f"can't find the blocks: {why}, in {_described(model, lists)} "
        f'Point at the list of blocks with --layers NAME, in Python stack_of(model, blocks="{largest_list(lists)}")'
    )


def a_few_tokens(vocab_size: int, context: int, device: torch.device) -> Tensor:
    """Tokens (2, 6) int64 from the middle of the vocabulary, away from padding and other special tokens."""
    time = min(6, context)
    return ((vocab_size // 2 + torch.arange(2 * time)) % vocab_size).view(2, time).to(device)


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
