"""A model without some of its units, in memory and in a folder: Leadline's decoders and Hugging Face's models."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leadline.errors import LeadlineError
from leadline.hub.agreement import check_logits, check_same_weights
from leadline.hub.open import OpenedModel
from leadline.models import Decoder, DecoderConfig, KVCache, cut
from leadline.stacks import Stack, Unit, stack_of
from leadline.stacks.causal_lm import CausalLMStack

RELOADED = "the reloaded model"


def check_saving(opened: OpenedModel) -> None:
    """Raises LeadlineError where nothing that is left of this model could be saved, whatever goes."""
    if isinstance(opened.stack, CausalLMStack):
        from leadline.hub.saving import check_configurations
        from leadline.hub.surgery import check_rebuilds

        check_configurations(opened.stack.model)
        check_rebuilds(opened.stack.model, layers=opened.stack.path)


def remove_units(stack: Stack, units: Collection[Unit]) -> tuple[Stack, dict[str, Any]]:
    """The model without these units; it shares its weights with the whole one until `own_weights`.

    Returns:
        The model, and what was changed in a Hugging Face model's configuration, by path.

    Raises:
        UsageError: they can only be skipped.
        LeadlineError: what is left would not be what it is here.
    """
    stack.check(units)
    if isinstance(stack.model, Decoder):
        return stack_of(cut(stack.model, _sublayers(stack.model.config, units), copy=False)), {}
    from leadline.hub.surgery import blocks_of_units, cut_blocks

    blocks, name = blocks_of_units(stack.model, units), _list_of(stack)
    surgery = cut_blocks(stack.model, blocks, layers=name)
    return stack_of(surgery.model, blocks=name), surgery.changed


def own_weights(stack: Stack) -> Stack:
    """The same with weights of its own, which can be trained beside the whole model."""
    return stack_of(copy.deepcopy(stack.model), blocks=_list_of(stack))


def write_and_reload(stack: Stack, changed: dict[str, Any], opened: OpenedModel, folder: Path, tokens: Tensor) -> float:
    """Writes a pruned model and its tokenizer, loads both again, and compares: weights, logits, shape, generation.

    Args:
        stack, changed: what `remove_units` returned; the stack may have been trained since.
        opened: the whole model.
        folder: is not there yet.
        tokens: (B, T) to compare with.

    Returns:
        The largest difference of logits.

    Raises:
        LeadlineError: it does not come back the same, or generates otherwise with its cache than without.
    """
    if not isinstance(stack.model, Decoder):
        from leadline.hub import saving

        return saving.write_and_reload(
            stack.model, folder, tokenizer=opened.path, tokens=tokens, changed=changed
        ).difference
    stack.model.save(folder)
    opened.tokenizer.save(folder)
    loaded = Decoder.load(folder).to(stack.device).eval()
    check_same_weights(stack.model, loaded, RELOADED)
    with torch.no_grad():
        again = loaded(tokens)
        difference = check_logits(stack.logits(tokens), again, RELOADED)
        cache = KVCache()
        steps = [loaded(tokens[:, i : i + 1], cache=cache) for i in range(tokens.shape[1])]
        check_logits(again, torch.cat(steps, dim=1), "generation with the cache", "cached")
    found = stack_of(loaded)
    if (found.blocks, found.sublayers) != (stack.blocks, stack.sublayers):
        raise LeadlineError(f"{stack.blocks} blocks were saved and {found.blocks} come back")
    return difference


def _list_of(stack: Stack) -> str | None:
    """The name of the list that holds the stack's blocks; the largest list of a model may be another."""
    return stack.path if isinstance(stack, CausalLMStack) else None


def _sublayers(config: DecoderConfig, units: Collection[Unit]) -> Sequence[int]:
    """The numbers of all sublayers that units consist of."""
    numbers: set[int | None] = set()
    for unit in units:
        attention, mlp = config.numbers[unit.block]
        numbers |= {None: {attention, mlp}, "attention": {attention}, "mlp": {mlp}}[unit.sublayer]
    return sorted(number for number in numbers if number is not None)
