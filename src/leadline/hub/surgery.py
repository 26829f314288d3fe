"""Taking blocks out of a Hugging Face causal language model, so that it is what its own class would build and load.

    pruned = remove_blocks(model, [20, 21, 25])      # a new model; the old one stays whole

The configuration is cut (`leadline.hub.config_lists`), the class builds a model from it, and the tensors of the blocks
that stay move in. So every layer number, cache, mask and schedule is the library's own, and the same as after a
reload. What the class would build differently for a block at its new place (a scale by depth, another kind of
attention) is found by comparing the two blocks, and is refused: blocks of such a model can only be skipped.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from leadline.errors import LeadlineError, UsageError
from leadline.hub.config_lists import cut_config
from leadline.hub.library import one_line
from leadline.hub.move_tensors import move_tensors
from leadline.stacks import Unit
from leadline.stacks.layout import largest_list, module_lists, named_list

_LAYER_NUMBERS = frozenset({"layer_idx", "layer_id", "layer_index", "layer_number", "block_idx"})
_PLAIN = (int, float, bool, str, type(None))


@dataclass(frozen=True)
class Surgery:
    """What `cut_blocks` did.

    Attributes:
        model: the new model. It shares its tensors with the old one.
        changed: what was changed in the configuration, by path.
        kept: the numbers that its blocks had, from 0.
        layers: the name of the list of blocks.
    """

    model: Any
    changed: dict[str, Any]
    kept: tuple[int, ...]
    layers: str


def remove_blocks(model: Any, blocks: Collection[int], *, layers: str | None = None) -> Any:
    """The model without some of its blocks.

    Args:
        model: a `transformers.PreTrainedModel` with a stack of blocks; stays as it is.
        blocks: the numbers of those to remove, from 0.
        layers: the name of the list of blocks, such as "model.layers"; found without.

    Returns:
        A new model of the same class. The tensors are those of `model`, so it takes no memory for weights, and
        training one changes the other; `copy.deepcopy` parts them.

    Raises:
        UsageError: a number that isn't there, or nothing would be left.
        LeadlineError: the result would not be what the class builds and loads; says why.
    """
    return cut_blocks(model, blocks, layers=layers).model


def cut_blocks(model: Any, blocks: Collection[int], *, layers: str | None = None) -> Surgery:
    """As `remove_blocks`, and says what was done."""
    surgery = _rebuilt(model, blocks, layers)
    move_tensors(model, surgery.model, surgery.layers, surgery.kept)
    surgery.model.generation_config = copy.deepcopy(model.generation_config)
    surgery.model.train(model.training)
    return surgery


def check_rebuilds(model: Any, *, layers: str | None = None) -> None:
    """Makes sure that the class builds this model again, so that what no choice of blocks changes is known before one.

    Raises:
        LeadlineError: it doesn't; says why, as `remove_blocks` would of any blocks.
    """
    _rebuilt(model, (), layers)


def _rebuilt(model: Any, blocks: Collection[int], layers: str | None) -> Surgery:
    """What the class builds without these blocks, compared with what they are here; its weights have no values yet."""
    name, stack = find_blocks(model, layers)
    kept = kept_blocks(len(stack), blocks)
    _refuse_unknown(model)
    cut = cut_config(model.config, len(stack), kept)
    _tie_as_it_is(model, cut.config)
    new = _build(model, cut.config, f"with {len(kept)} of {len(stack)} blocks")
    new_stack = new.get_submodule(name)
    if len(new_stack) != len(kept):
        raise LeadlineError(
            f"{type(model).__name__} built {len(new_stack)} blocks from a configuration for {len(kept)}; "
            "it counts its layers in a way that is not known"
        )
    for position, block in enumerate(kept):
        check_same_block(stack[block], new_stack[position], Place(block, position, len(stack), kept))
    _refuse_narrowed(model, new)
    return Surgery(new, cut.changed, kept, name)


def blocks_of_units(model: Any, units: Collection[Unit]) -> list[int]:
    """The blocks that units make up: whole ones, and those of which every sublayer is named.

    Raises:
        UsageError: a sublayer alone. No class of the library builds a block without attention or MLP.
    """
    blocks = {unit.block for unit in units if unit.sublayer is None}
    halves: dict[int, set[str]] = {}
    for unit in units:
        if unit.sublayer is not None and unit.block not in blocks:
            halves.setdefault(unit.block, set()).add(unit.sublayer)
    for block, names in sorted(halves.items()):
        if not {"attention", "mlp"} <= names:
            raise UsageError(
                f"{type(model).__name__} has no block without its {' and '.join(sorted(names))}, so a model without "
                f"{block}.{sorted(names)[0]} could not be loaded again; --unit block works, and --dry-run "
                "skips sublayers without saving"
            )
        blocks.add(block)
    return sorted(blocks)


def kept_blocks(count: int, removed: Collection[int]) -> tuple[int, ...]:
    """The numbers that stay of `count` blocks, from 0.

    Raises:
        UsageError: a number that isn't there, or nothing would be left.
    """
    strangers = sorted(block for block in removed if not 0 <= block < count)
    if strangers:
        raise UsageError(f"--blocks: there is no block {strangers[0]}; the {count} blocks are 0 to {count - 1}")
    kept = tuple(block for block in range(count) if block not in set(removed))
    if not kept:
        raise UsageError(f"--blocks names all {count} blocks; at least one must stay")
    return kept


def find_blocks(model: nn.Module, layers: str | None = None) -> tuple[str, nn.ModuleList]:
    """The list of blocks and its name in the model: the one named, or the list that holds most of the parameters.

    Raises:
        UsageError: there is none of that name; names those that there are.
        LeadlineError: there is none at all.
    """
    lists = module_lists(model)
    if not lists:
        raise LeadlineError(f"{type(model).__name__} has no list of blocks, so none can be removed")
    name = largest_list(lists) if layers is None else layers
    return name, named_list(model, name)


def _refuse_unknown(model: Any) -> None:
    if not hasattr(model, "config") or not hasattr(type(model), "from_pretrained"):
        raise LeadlineError(
            f"{type(model).__name__} is not a model of the transformers library; unwrap it first (merge adapters)"
        )
    if getattr(model, "is_quantized", False) or getattr(model.config, "quantization_config", None) is not None:
        raise LeadlineError(
            "the weights are quantised, and a cut model would not load with them; load it in bfloat16 or float32 first"
        )
    if len(set(map(str, (getattr(model, "hf_device_map", None) or {}).values()))) > 1:
        raise LeadlineError("the model is spread over devices; load it without device_map to remove blocks")


def _refuse_narrowed(model: Any, new: Any) -> None:
    """Buffers that are not saved, such as rotary frequencies, come back as the class makes them."""
    made = dict(new.named_buffers())
    for name, buffer in model.named_buffers():
        other = made.get(name)
        if other is None or not (buffer.is_floating_point() and other.is_floating_point()):
            continue
        if torch.finfo(buffer.dtype).bits < torch.finfo(other.dtype).bits:
            was, is_ = (str(tensor.dtype).removeprefix("torch.") for tensor in (buffer, other))
            raise LeadlineError(
                f"{name} is {was} here, and {type(model).__name__} makes it {is_}, so a model loaded again would "
                f"compute otherwise; load it with dtype={was} instead of casting it with .to()"
            )


def _build(model: Any, config: Any, what: str) -> Any:
    """The class's own model for a configuration, its tensors without values yet."""
    from transformers.initialization import no_init_weights

    try:
        with no_init_weights():
            return type(model)._from_config(config, dtype=model.dtype)
    except Exception as error:  # Whatever the library objects to is the reason of the refusal.
        raise LeadlineError(f"{type(model).__name__} cannot be built {what}: {one_line(error)}") from error


def _tie_as_it_is(model: Any, config: Any) -> None:
    """The configuration says of the head what is true of the model, or a reload would tie or untie it."""
    head, embedding = (_weight(model, name) for name in ("get_output_embeddings", "get_input_embeddings"))
    if head is None or embedding is None:
        return
    for owner in (config, config.get_text_config(decoder=True)):
        if hasattr(owner, "tie_word_embeddings"):
            owner.tie_word_embeddings = head is embedding


def _weight(model: Any, getter: str) -> Any:
    try:
        return getattr(getattr(model, getter)(), "weight", None)
    except (AttributeError, NotImplementedError):  # A class without such a layer says so in one of these ways.
        return None


@dataclass(frozen=True)
class Place:
    """Where a block was and where it is now.

    Attributes:
        block: its number in the old model, from 0.
        position: its number in the new one.
        blocks: how many the old model has.
        kept: the old numbers of all blocks of the new one.
    """

    block: int
    position: int
    blocks: int
    kept: tuple[int, ...]

    def same(self, attribute: str, old: Any, new: Any) -> bool:
        """Whether an attribute of the block means the same in both models."""
        if attribute in _LAYER_NUMBERS:
            return True
        if ("layer" in attribute or "idx" in attribute) and (old, new) == (self.block, self.position):
            return True
        if isinstance(old, list | tuple) and len(old) == self.blocks != len(self.kept):
            return _equal(old, new) or _equal(type(old)(old[block] for block in self.kept), new)
        return _equal(old, new)

    def refuse(self, module: str, attribute: str, old: Any, new: Any) -> NoReturn:
        """Raises the LeadlineError that says what would change."""
        what = ".".join(part for part in (module, attribute) if part) or "its class"
        raise LeadlineError(
            f"block {self.block} would not stay itself as block {self.position} of a saved model: {what} is {old} now "
            f"and would be {new}, because this class computes it from the layer's number. Remove other blocks (whole "
            "periods of the schedule), or skip blocks without saving (--dry-run)"
        )


def check_same_block(old: nn.Module, new: nn.Module, place: Place) -> None:
    """Compares what the class builds at a block's new place with the block: parts, numbers, computed buffers.

    Logits of a short text would not show all of it: a sliding window is longer than any text to compare with.

    Raises:
        LeadlineError: something differs; says what.
    """
    others = dict(new.named_modules())
    for name, module in old.named_modules():
        other = others.pop(name, None)
        if other is None or type(other) is not type(module):
            place.refuse(name, "", type(module).__name__, type(other).__name__ if other is not None else "nothing")
        for attribute, value in _plain_attributes(module):
            there = getattr(other, attribute, None)
            if not place.same(attribute, value, there):
                place.refuse(name, attribute, repr(value), repr(there))
        for attribute in module._non_persistent_buffers_set:
            value, there = getattr(module, attribute), getattr(other, attribute, None)
            if isinstance(value, Tensor) and not (isinstance(there, Tensor) and _close(value, there)):
                place.refuse(name, attribute, "one tensor", "another")
    for name, other in others.items():
        place.refuse(name, "", "nothing", type(other).__name__)


def _plain_attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        flat = value if isinstance(value, list | tuple) else (value,)
        if not name.startswith("_") and name != "training" and all(isinstance(entry, _PLAIN) for entry in flat):
            yield name, value


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one == other or (one != one and other != other))


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if one.is_meta or other.is_meta:
        return True
    return torch.allclose(one.detach().double().cpu(), other.detach().double().cpu(), rtol=1e-2, atol=1e-6)
