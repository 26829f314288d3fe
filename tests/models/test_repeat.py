"""The last blocks run several times: shared parameters, sites and cache entries of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from leadline.connections import AttentionResiduals
from leadline.errors import UsageError
from leadline.models import Decoder, DecoderConfig, InitConfig, KVCache, RepeatConfig, cut, generate
from leadline.norms import BHyT, NormConfig, RMSNorm

MakeConfig = Callable[..., DecoderConfig]
Lively = Callable[..., Decoder]

COARSE = RMSNorm(eps=0.05)
TWICE = RepeatConfig(last=2, times=2)
"""Of three layers: blocks 0 1 2 1 2."""


def unrolled(model: Decoder) -> Decoder:
    """A plain decoder of as many blocks, each with a copy of what it runs in `model`."""
    config = model.config
    layers = tuple(config.layers[layer] for layer in config.block_layers)
    fields = {name: getattr(config, name) for name in config.__dataclass_fields__}
    plain = Decoder(DecoderConfig(**fields | {"layers": layers, "repeat": None}), dtype=model.embed.weight.dtype)
    values = model.state_dict()
    for name in plain.state_dict():
        if name not in values:
            _, index, rest = name.split(".", 2)
            values[name] = values[f"blocks.{config.block_layers[int(index)]}.{rest}"]
    plain.load_state_dict(values)
    return plain


def test_every_connection(make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively) -> None:
    layer = {"attention_output_norm": COARSE}
    for repeat in (TWICE, RepeatConfig(last=1, times=3), RepeatConfig(last=3, times=2)):
        config = make_config(connection=connection, norm=COARSE, repeat=repeat, tied=False, layer=layer)
        model = lively(config)
        plain = unrolled(model)
        assert len(model.blocks) == 3 + repeat.last * (repeat.times - 1)
        assert len(model.sites()) == config.sublayers == 2 * len(model.blocks)
        assert torch.equal(model(tokens), plain(tokens))
        assert torch.equal(model(tokens, skip={3, 6}), plain(tokens, skip={3, 6}))
        for block in model.blocks:
            assert block.attention_norm.scale == block.attn_site.scale
            assert block.mlp_norm.scale == block.mlp_site.scale


def test_gradients_are_sums_over_the_occurrences(
    make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively
) -> None:
    model = lively(make_config(connection=connection, repeat=TWICE, norm=COARSE, tied=False))
    plain = unrolled(model)
    plain(tokens).square().sum().backward()
    whole = dict(plain.named_parameters())
    for recompute in (False, True):
        model.recompute = recompute
        model.zero_grad()
        model(tokens).square().sum().backward()
        for name, parameter in model.named_parameters():
            grads = [whole[name].grad]
            for first, again in ((1, 3), (2, 4)):
                if name.startswith(f"blocks.{first}.") and "_site." not in name:
                    grads.append(whole[name.replace(f"blocks.{first}.", f"blocks.{again}.")].grad)
            there = [grad for grad in grads if grad is not None]
            assert (parameter.grad is not None) == bool(there), name
            if parameter.grad is not None:
                torch.testing.assert_close(parameter.grad, sum(there), rtol=1e-8, atol=1e-8)


def test_parameters_count_once_under_their_first_name(make_config: MakeConfig, connection: Any) -> None:
    model = Decoder(make_config(connection=connection, repeat=TWICE))
    once = Decoder(make_config(connection=connection, blocks=3))
    shared = [name for name, _ in model.named_parameters() if "_site." not in name and "readout" not in name]
    assert shared == [name for name, _ in once.named_parameters() if "_site." not in name and "readout" not in name]
    assert len({id(p) for p in model.parameters()}) == len(list(model.parameters()))
    assert set(dict(model.named_parameters())) <= model.state_dict().keys()
    assert model.blocks[3].attention is model.blocks[1].attention
    assert model.blocks[4].mlp_norm.gain is model.blocks[2].mlp_norm.gain


def test_saved_once_and_reloaded_tied_with_every_connection(
    make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively, tmp_path: Path
) -> None:
    check_saving(lively(make_config(connection=connection, repeat=TWICE, tied=False)), tokens, tmp_path)


def test_saved_once_and_reloaded_tied_with_every_norm(
    make_config: MakeConfig, norm: NormConfig, tokens: Tensor, lively: Lively, tmp_path: Path
) -> None:
    check_saving(lively(make_config(norm=norm, repeat=TWICE, tied=False)), tokens, tmp_path)


def check_saving(model: Decoder, tokens: Tensor, tmp_path: Path) -> None:
    model.save(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = list(file.keys())
    assert all("_site." in name for name in names if name.startswith(("blocks.3.", "blocks.4.")))
    loaded = Decoder.load(tmp_path)
    assert loaded.config == model.config
    assert torch.equal(loaded(tokens), model(tokens))
    assert_tied(loaded, tokens)


def assert_tied(model: Decoder, tokens: Tensor) -> None:
    """A change of a block's parameters and buffers changes each of its occurrences."""
    for first, again in ((1, 3), (2, 4)):
        one, other = model.blocks[first], model.blocks[again]
        assert one.attention is other.attention
        assert one.mlp is other.mlp
        for name in ("attention_norm", "mlp_norm"):
            ours, theirs = getattr(one, name), getattr(other, name)
            assert [id(p) for p in ours.parameters()] == [id(p) for p in theirs.parameters()]
            assert [id(b) for b in ours.buffers()] == [id(b) for b in theirs.buffers()]
    assert torch.isfinite(model(tokens)).all()


def test_ties_outlive_whatever_moves_parameters(make_config: MakeConfig, norm: NormConfig, tokens: Tensor) -> None:
    config = make_config(connection=AttentionResiduals(), norm=norm, repeat=TWICE, tied=False)
    direct = Decoder(config, seed=5)
    late = Decoder(config, device="meta")
    late.to_empty(device="cpu")
    late.reset_parameters(5)
    assert all(torch.equal(late.state_dict()[name], value) for name, value in direct.state_dict().items())
    for model in (direct, late, copy.deepcopy(direct), copy.deepcopy(direct).to(torch.float64)):
        assert_tied(model, tokens)
    assert torch.equal(copy.deepcopy(direct)(tokens), direct(tokens))
    assert torch.equal(late(tokens), direct(tokens))


def test_every_occurrence_has_its_own_cache_entry(
    make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively
) -> None:
    model = lively(make_config(connection=connection, repeat=RepeatConfig(last=2, times=3), tied=False))
    with torch.no_grad():
        cache = KVCache()
        steps = torch.cat([model(piece, cache=cache) for piece in tokens.split([5, 3, *[1] * 5], dim=1)], dim=1)
        assert torch.allclose(steps, model(tokens), atol=1e-9)
    assert sorted(cache._entries) == list(range(7))
    cached, uncached = (generate(model, tokens[:, :4], 8, temperature=0, cache=kept) for kept in (True, False))
    assert torch.equal(cached, uncached)


def test_a_block_that_repeats_is_cut_in_all_its_occurrences(
    make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively
) -> None:
    model = lively(make_config(connection=connection, norm=COARSE, repeat=TWICE, tied=False))
    for sublayers in ({2, 3, 6, 7}, {5, 9}, {0, 1}, {0, 1, 4, 5, 8, 9}, {2, 3, 4, 5, 6, 7, 8, 9}):
        smaller = cut(model, sublayers)
        assert torch.equal(smaller(tokens), model(tokens, skip=sublayers))
    assert smaller.config.repeat is None
    assert cut(model, {2, 3, 6, 7}).config.repeat == RepeatConfig(last=1, times=2)
    with pytest.raises(UsageError, match=r"blocks 1, 3 are the same block.* 3, 7 can only be cut together"):
        cut(model, {3})


def test_bhyt_takes_the_moment_in_every_occurrence(make_config: MakeConfig, tokens: Tensor, lively: Lively) -> None:
    model = lively(make_config(norm=BHyT(position_aware=True, learn_lambda=False), repeat=TWICE, tied=False))
    assert all(block.reuses_moment for block in model.blocks)
    expected = unrolled(model)(tokens)
    assert torch.equal(model(tokens), expected)
    with torch.no_grad():
        model.blocks[1].attention.output.weight.mul_(3.0)
    model.refresh_statistics()
    assert torch.equal(model.blocks[3].mlp_norm.c, model.blocks[1].mlp_norm.c)
    assert torch.equal(model(tokens), unrolled(model)(tokens))
    assert not torch.allclose(model(tokens), expected)


def test_gains_are_folded_once(make_config: MakeConfig, norm: NormConfig, tokens: Tensor, lively: Lively) -> None:
    model = lively(make_config(norm=norm, repeat=TWICE, tied=False))
    with torch.no_grad():
        expected = model(tokens)
        model.fold_gains()
        torch.testing.assert_close(model(tokens), expected, rtol=1e-9, atol=1e-9)


def test_the_start_is_that_of_the_stack_without_repeats(make_config: MakeConfig) -> None:
    """So that a repeated stack and a plain one differ by the repeats alone."""
    plain, again = (
        Decoder(make_config(dim=128, repeat=repeat, init=InitConfig(std=0.04))).blocks[0].mlp.down.weight
        for repeat in (None, RepeatConfig(last=3, times=4))
    )
    assert plain.std().item() == pytest.approx(0.04 / 6**0.5, rel=0.06)
    assert torch.equal(plain, again)


@pytest.mark.parametrize("size", [1, 3])
def test_reading_ahead(make_config: MakeConfig, tokens: Tensor, lively: Lively, size: int) -> None:
    connection = AttentionResiduals(block_size=size)
    model = lively(make_config(connection=connection, repeat=TWICE, tied=False))
    expected = model(tokens)
    model.prefetch = True
    assert torch.allclose(model(tokens), expected, atol=1e-10)


@pytest.mark.parametrize(
    ("repeat", "message"),
    [
        (RepeatConfig(last=4, times=2), "repeat.last=4 must be from 1 to 3"),
        (RepeatConfig(last=0, times=2), "repeat.last=0"),
        (RepeatConfig(last=1, times=1), "repeat.times=1 must be at least 2"),
    ],
)
def test_repetitions_that_do_not_fit(make_config: MakeConfig, repeat: RepeatConfig, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_config(repeat=repeat)
