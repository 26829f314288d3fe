"""What is cut out of a decoder is to depth what was left out with `skip=`, for every connection and norm."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from leadline.config import from_dict, to_dict
from leadline.connections import AttentionResiduals
from leadline.errors import UsageError
from leadline.models import (
    CutConfig,
    Decoder,
    DecoderConfig,
    KVCache,
    RepeatConfig,
    cut,
    generate,
    kept_blocks,
    sublayers_of,
)
from leadline.norms import BHyT, NormConfig, RMSNorm

MakeConfig = Callable[..., DecoderConfig]
Lively = Callable[..., Decoder]

COARSE = RMSNorm(eps=0.05)
"""An eps that counts, so that a norm with another site's scale would be seen."""

CUTS = [{0, 1}, {2, 3}, {6, 7}, {0}, {1}, {7}, {1, 2}, {0, 3, 4, 5}, {0, 1, 2, 3, 4, 5, 6}]


def equal(model: Decoder, sublayers: set[int], tokens: Tensor) -> Decoder:
    """The smaller model, whose logits are those of the whole one to the bit."""
    smaller = cut(model, sublayers)
    with torch.no_grad():
        expected = model(tokens, skip=sublayers)
        assert not torch.allclose(expected, model(tokens))
        assert torch.equal(smaller(tokens), expected)
    return smaller


def test_every_connection(make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively) -> None:
    model = lively(make_config(blocks=4, connection=connection, norm=COARSE, tied=False, layer={"norm_scale": 0.7}))
    for sublayers in CUTS:
        smaller = equal(model, sublayers, tokens)
        assert len(smaller.sites()) == smaller.config.sublayers == 8 - len(sublayers)
        assert len(smaller.blocks) == len(kept_blocks(model.config, sublayers))
        assert smaller.config.original_blocks == kept_blocks(model.config, sublayers)


def test_every_norm(make_config: MakeConfig, norm: NormConfig, tokens: Tensor, lively: Lively) -> None:
    for layer in ({}, {"attention_output_norm": norm, "mlp_output_norm": norm}):
        for connection in ({}, {"connection": AttentionResiduals(block_size=3)}):
            model = lively(make_config(norm=norm, layer=layer, tied=False, **connection))
            for sublayers in ({2, 3}, {2}, {3}, {0, 3}):
                equal(model, sublayers, tokens)


def test_gradients_are_those_of_the_whole_model(
    make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively
) -> None:
    model = lively(make_config(connection=connection, tied=False))
    sublayers = {1, 2, 3}
    smaller = cut(model, sublayers)
    before = kept_blocks(model.config, sublayers)
    model(tokens, skip=sublayers).square().sum().backward()
    for recompute in (False, True):
        smaller.recompute = recompute
        smaller.zero_grad()
        smaller(tokens).square().sum().backward()
        whole = dict(model.named_parameters())
        for name, parameter in smaller.named_parameters():
            old = name
            for new, number in enumerate(before):
                if name.startswith(f"blocks.{new}."):
                    old = name.replace(f"blocks.{new}.", f"blocks.{number}.")
            expected = whole[old].grad
            assert (parameter.grad is None) == (expected is None), name
            if parameter.grad is not None and expected is not None:
                torch.testing.assert_close(parameter.grad, expected, rtol=1e-9, atol=1e-9)


def test_the_cache_is_numbered_by_the_blocks_that_are_left(
    make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively
) -> None:
    smaller = cut(lively(make_config(blocks=4, connection=connection, tied=False)), {2, 3, 4})
    with torch.no_grad():
        cache = KVCache()
        steps = torch.cat([smaller(piece, cache=cache) for piece in tokens.split([5, 3, *[1] * 5], dim=1)], dim=1)
        assert torch.allclose(steps, smaller(tokens), atol=1e-9)
    assert sorted(cache._entries) == [0, 2]  # block 1 has lost its attention
    cached, uncached = (generate(smaller, tokens[:, :4], 8, temperature=0, cache=kept) for kept in (True, False))
    assert torch.equal(cached, uncached)


def test_saved_and_loaded(
    make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively, tmp_path: Path
) -> None:
    smaller = cut(lively(make_config(connection=connection, tied=False)), {1, 4, 5})
    smaller.save(tmp_path)
    loaded = Decoder.load(tmp_path)
    assert loaded.config == smaller.config
    assert loaded.config.cut == CutConfig(built_for=6, places=(0, 2, 3))
    assert torch.equal(loaded(tokens), smaller(tokens))


def test_cutting_twice_is_cutting_once(
    make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively
) -> None:
    model = lively(make_config(blocks=4, connection=connection, tied=False))
    once = cut(model, {2, 3, 5, 6})
    twice = cut(cut(model, {2, 3}), {3, 4})  # left after the first cut: 0 1 4 5 6 7
    assert twice.config == once.config
    assert all(torch.equal(value, once.state_dict()[name]) for name, value in twice.state_dict().items())
    assert torch.equal(twice(tokens), model(tokens, skip={2, 3, 5, 6}))
    assert torch.equal(once(tokens, skip={1}), model(tokens, skip={1, 2, 3, 5, 6}))


def test_cutting_nothing_copies_the_model(make_config: MakeConfig, tokens: Tensor, lively: Lively) -> None:
    model = lively(make_config(tied=False)).eval()
    model.embed.weight.requires_grad_(False)
    model.recompute = model.prefetch = True
    same = cut(model, [])
    assert same.config == model.config
    assert same.config.cut is None
    assert torch.equal(same(tokens), model(tokens))
    assert (same.recompute, same.prefetch, same.training) == (True, True, False)
    assert [name for name, p in same.named_parameters() if not p.requires_grad] == ["embed.weight"]
    with torch.no_grad():
        same.blocks[0].attention.qkv.weight.zero_()
    assert not torch.equal(same(tokens), model(tokens))


def test_what_can_not_be_cut(make_config: MakeConfig) -> None:
    model = Decoder(make_config(blocks=2))
    with pytest.raises(UsageError, match="sublayer 4 isn't there; this model has 0 to 3"):
        cut(model, [4])
    with pytest.raises(UsageError, match="all 4 sublayers"):
        cut(model, range(4))
    with pytest.raises(UsageError, match="block 2 isn't there; this model has 0 to 1"):
        sublayers_of(model.config, [2])


def test_whole_blocks_by_number(make_config: MakeConfig) -> None:
    assert sublayers_of(make_config(blocks=4), [1, 3]) == (2, 3, 6, 7)
    smaller = cut(Decoder(make_config(blocks=4)), [0, 3])
    assert sublayers_of(smaller.config, [0, 2]) == (0, 2, 3)
    repeating = make_config(blocks=3, repeat=RepeatConfig(last=1, times=3))
    assert sublayers_of(repeating, [3]) == (4, 5, 6, 7, 8, 9)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ((0, 1), "cut.places has 2 numbers, and the stack has 3"),
        ((0, 3, 2), r"cut.places has 2 after 3; it ascends from 0 to 7"),
        ((0, 1, 8), r"cut.places has 8 after 1; it ascends from 0 to 7 \(built_for=8\)"),
        ((1, 2, 4), "cut.places has 1 for attention and 2 for the MLP of block 0"),
        ((0, 3, 5), "cut.places has 0 for attention and 3 for the MLP of block 0"),
        ((0, 1, 4), "cut.places has None for attention and 4 for the MLP of block 1"),
    ],
)
def test_places_that_do_not_fit(make_config: MakeConfig, places: tuple[int, ...], message: str) -> None:
    full = make_config(blocks=2)
    layers = (full.layers[0], dataclasses.replace(full.layers[1], attention=None))
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(full, layers=layers, cut=CutConfig(built_for=8, places=places))


def test_an_mlp_is_in_no_place_of_an_attention(make_config: MakeConfig) -> None:
    full = make_config(blocks=2)
    layers = (dataclasses.replace(full.layers[0], attention=None), full.layers[1])
    with pytest.raises(UsageError, match=r"cut.places has None for attention and 0 for the MLP of block 0"):
        dataclasses.replace(full, layers=layers, cut=CutConfig(built_for=4, places=(0, 2, 3)))


def test_layers_that_do_not_fit(make_config: MakeConfig) -> None:
    full = make_config(blocks=2)
    bare = dataclasses.replace(full.layers[1], attention=None, mlp=None)
    with pytest.raises(UsageError, match=r"layers\[1\] has neither attention nor mlp"):
        dataclasses.replace(full, layers=(full.layers[0], bare))
    with pytest.raises(UsageError, match=r"layers\[1\]\.mlp is None, so cut must say"):
        dataclasses.replace(full, layers=(full.layers[0], dataclasses.replace(full.layers[1], mlp=None)))
    with pytest.raises(UsageError, match=r"cut\.built_for=7"):
        dataclasses.replace(full, cut=CutConfig(built_for=7, places=(0, 1, 2, 3)))


def test_configurations_there_and_back_and_from_before_there_were_cuts(make_config: MakeConfig) -> None:
    config = cut(Decoder(make_config()), {1, 2}).config
    assert from_dict(DecoderConfig, json.loads(json.dumps(to_dict(config)))) == config
    old = to_dict(make_config())
    del old["cut"], old["repeat"]
    assert from_dict(DecoderConfig, old) == make_config()


def test_a_model_starts_as_the_whole_one_did(make_config: MakeConfig, connection: Any) -> None:
    """Standard deviations by the whole depth, and every matrix by its number there."""
    whole = cut(Decoder(make_config(blocks=4, connection=connection), seed=5), {0, 2, 3})
    fresh = Decoder(whole.config, seed=5)
    assert fresh.state_dict().keys() == whole.state_dict().keys()
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in fresh.state_dict().items())


def test_bhyt_is_exact_where_attention_is_gone_and_keeps_its_constant_elsewhere(
    make_config: MakeConfig, tokens: Tensor, lively: Lively
) -> None:
    model = lively(make_config(norm=BHyT(), tied=False))
    smaller = equal(model, {2}, tokens)
    assert [block.reuses_moment for block in smaller.blocks] == [True, False, True]
    smaller.refresh_statistics()
    for new, old in ((0, 0), (2, 2)):
        assert torch.equal(smaller.blocks[new].mlp_norm.c, model.blocks[old].mlp_norm.c)


def test_gains_are_folded_after_and_before(make_config: MakeConfig, tokens: Tensor, lively: Lively) -> None:
    smaller = cut(lively(make_config(tied=False)), {1, 2})
    expected = smaller(tokens)
    smaller.fold_gains()
    torch.testing.assert_close(smaller(tokens), expected, rtol=1e-10, atol=1e-10)
    again = cut(smaller, {0})
    assert again.folded
    assert torch.equal(again(tokens), smaller(tokens, skip={0}))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_reading_ahead(make_config: MakeConfig, tokens: Tensor, lively: Lively, size: int) -> None:
    connection = AttentionResiduals(block_size=size)
    smaller = cut(lively(make_config(blocks=4, connection=connection, tied=False)), {0, 3, 4})
    expected = smaller(tokens)
    smaller.prefetch = True
    assert torch.allclose(smaller(tokens), expected, atol=1e-10)
