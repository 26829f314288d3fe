"""From a model to one with fewer blocks: the same tensors under their new names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leadline.errors import LeadlineError
from leadline.stacks.layout import module_lists


@dataclass(frozen=True)
class _Lists:
    """The lists of modules that have an entry per layer, the deepest names first, and which entries stay."""

    names: tuple[str, ...]
    kept: tuple[int, ...]

    def old_name(self, name: str) -> str:
        """The name that a tensor of the cut model has in the whole one."""
        for prefix in self.names:
            match = re.fullmatch(rf"({re.escape(prefix)}\.)(\d+)(.*)", name)
            if match:
                return f"{match[1]}{self.kept[int(match[2])]}{match[3]}"
        return name

    def removed(self, name: str) -> bool:
        """Whether a tensor of the whole model belongs to a block that goes."""
        matches = (re.match(rf"{re.escape(prefix)}\.(\d+)", name) for prefix in self.names)
        return any(match is not None and int(match[1]) not in self.kept for match in matches)


def move_tensors(model: nn.Module, new: nn.Module, stack: str, kept: Sequence[int]) -> None:
    """Puts the tensors of the old model into the new one, the very objects, so that ties stay ties.

    Besides the blocks themselves: other lists with an entry per layer, and tensors with a part per layer along one
    dimension (an embedding for each layer), of which the parts that stay are copied.

    Args:
        stack: the name of the list of blocks in both.
        kept: the numbers of the blocks that stay, ascending.

    Raises:
        LeadlineError: a tensor that is missing, left over, or of another shape.
    """
    whole: Any = model.get_submodule(stack)
    blocks = len(whole)
    olds = model.state_dict(keep_vars=True)
    lists = _Lists(_lists_per_layer(model, new, blocks, len(kept), stack), tuple(kept))
    sliced: dict[tuple[int, torch.Size], Any] = {}
    used: set[str] = set()
    for name, tensor in new.state_dict(keep_vars=True).items():
        source = lists.old_name(name)
        if source not in olds:
            raise LeadlineError(f"the cut {type(model).__name__} wants {name}, and the model has no {source}")
        used.add(source)
        old = olds[source]
        if old.shape != tensor.shape:
            key = (id(old), tensor.shape)
            if key not in sliced:
                sliced[key] = _parts_that_stay(source, old, tensor.shape, blocks, kept)
            old = sliced[key]
        owner, _, leaf = name.rpartition(".")
        holder = new.get_submodule(owner)
        (holder._parameters if leaf in holder._parameters else holder._buffers)[leaf] = old
    lost = sorted(name for name in olds.keys() - used if not lists.removed(name))
    if lost:
        raise LeadlineError(f"the cut model has no place for {lost[0]}; {len(lost)} tensors would be lost")
    _computed_buffers_to(new, next(iter(olds.values())).device)


def _computed_buffers_to(model: nn.Module, device: torch.device) -> None:
    """Buffers that are computed and not saved, such as rotary frequencies, follow the weights."""
    for module in model.modules():
        for leaf in module._non_persistent_buffers_set:
            buffer = module._buffers.get(leaf)
            if buffer is not None:
                module._buffers[leaf] = buffer.to(device)


def _lists_per_layer(model: nn.Module, new: nn.Module, blocks: int, left: int, stack: str) -> tuple[str, ...]:
    news = module_lists(new)
    names = {
        name
        for name, module in module_lists(model).items()
        if len(module) == blocks != left and len(news.get(name, ())) == left
    }
    return tuple(sorted(names | {stack}, key=len, reverse=True))


def _parts_that_stay(name: str, old: Tensor, shape: torch.Size, blocks: int, kept: Sequence[int]) -> nn.Parameter:
    wrong = LeadlineError(f"{name} is {list(old.shape)} and would be {list(shape)} in the cut model")
    if old.dim() != len(shape):
        raise wrong
    different = [dimension for dimension, size in enumerate(shape) if size != old.shape[dimension]]
    dimension = different[0]
    part, rest = divmod(old.shape[dimension], blocks)
    if len(different) != 1 or rest or part * len(kept) != shape[dimension]:
        raise wrong
    index = torch.tensor(kept, device=old.device)
    chosen = old.detach().unflatten(dimension, (blocks, part)).index_select(dimension, index)
    return nn.Parameter(chosen.flatten(dimension, dimension + 1), requires_grad=old.requires_grad)
