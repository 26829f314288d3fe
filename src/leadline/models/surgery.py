"""Cutting sublayers and blocks out of a decoder, for good: exactly what `skip=` of them does, without them.

    smaller = cut(model, [6, 7, 11])             # block 3, and the MLP of block 5
    smaller(tokens)                              # equals model(tokens, skip=[6, 7, 11])

What is left keeps everything that its index once decided (`CutConfig`), with every connection and norm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from leadline.errors import UsageError
from leadline.models.config import CutConfig, DecoderConfig
from leadline.models.decoder import Decoder
from leadline.models.layers import renumbered


def cut(model: Decoder, sublayers: Collection[int], *, copy: bool = True) -> Decoder:
    """A new decoder without these sublayers; `model` stays as it is.

    Blocks that lose both sublayers are gone, and those that are left are renumbered from 0. A block that repeats
    is cut in all of its occurrences.

    Args:
        sublayers: numbers as for `skip`, in the order of `model.sites()`.
        copy: the parameters are copied; else they share memory with those of `model`.

    Raises:
        UsageError: a number that isn't there, nothing would be left, or one occurrence of a block that repeats is
            to be cut and another isn't.
    """
    config = cut_config(model.config, sublayers)
    kept = kept_blocks(model.config, sublayers)
    smaller = Decoder(config, device="meta", dtype=model.embed.weight.dtype)
    values = model.state_dict()
    wanted = {name: values[renumbered(name, kept)].detach() for name in smaller.state_dict()}
    if copy:
        wanted = {name: value.clone() for name, value in wanted.items()}
    smaller.load_state_dict(wanted, assign=True)
    before = dict(model.named_parameters())
    for name, parameter in smaller.named_parameters():
        parameter.requires_grad_(before[renumbered(name, kept)].requires_grad)
    smaller.recompute, smaller.prefetch, smaller.folded = model.recompute, model.prefetch, model.folded
    return smaller.train(model.training)


def cut_config(config: DecoderConfig, sublayers: Collection[int]) -> DecoderConfig:
    """The configuration of a decoder without these sublayers. Errors as for `cut`."""
    gone = _checked(config, sublayers)
    left = [
        dataclasses.replace(
            layer,
            attention=None if attention in gone else layer.attention,
            mlp=None if mlp in gone else layer.mlp,
        )
        for layer, (attention, mlp) in zip(config.layers, config.numbers[: len(config.layers)], strict=True)
    ]
    repeats = sum(1 for layer in left[-config.repeat.last :] if layer.sublayers) if config.repeat else 0
    places = tuple(place for number, place in enumerate(config.places) if number not in gone)
    whole = places == tuple(range(config.built_for))
    return dataclasses.replace(
        config,
        layers=tuple(layer for layer in left if layer.sublayers),
        repeat=dataclasses.replace(config.repeat, last=repeats) if config.repeat and repeats else None,
        cut=None if whole else CutConfig(built_for=config.built_for, places=places),
    )


def kept_blocks(config: DecoderConfig, sublayers: Collection[int]) -> tuple[int, ...]:
    """The numbers of the blocks that keep something when these sublayers are cut."""
    gone = frozenset(sublayers)
    return tuple(block for block, pair in enumerate(config.numbers) if not set(pair) - {None} <= gone)


def sublayers_of(config: DecoderConfig, blocks: Collection[int]) -> tuple[int, ...]:
    """The numbers of all sublayers of these blocks, in all occurrences of those that repeat.

    Raises:
        UsageError: a block that isn't there.
    """
    total = len(config.block_layers)
    for block in blocks:
        if not 0 <= block < total:
            raise UsageError(f"block {block} isn't there; this model has 0 to {total - 1}")
    layers = {config.block_layers[block] for block in blocks}
    pairs = [pair for layer, pair in zip(config.block_layers, config.numbers, strict=True) if layer in layers]
    return tuple(number for pair in pairs for number in pair if number is not None)


def _checked(config: DecoderConfig, sublayers: Collection[int]) -> frozenset[int]:
    for number in sublayers:
        if not 0 <= number < config.sublayers:
            raise UsageError(f"sublayer {number} isn't there; this model has 0 to {config.sublayers - 1}")
    gone = frozenset(sublayers)
    if len(gone) == config.sublayers:
        raise UsageError(f"all {config.sublayers} sublayers are to be cut; at least one must be left")
    for layer in dict.fromkeys(config.block_layers):
        blocks = [block for block, other in enumerate(config.block_layers) if other == layer]
        for numbers in zip(*(config.numbers[block] for block in blocks), strict=True):
            shared = {number for number in numbers if number is not None}
            if shared & gone and not shared <= gone:
                raise UsageError(
                    f"blocks {', '.join(map(str, blocks))} are the same block, which repeats: sublayers "
                    f"{', '.join(map(str, sorted(shared)))} can only be cut together (skip= leaves out one alone)"
                )
    return gone
