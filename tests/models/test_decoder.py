"""The decoder with every connection and every norm: forward, backward, dtypes, construction, recomputation."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.connections import Additive, AttentionResiduals, MultiGate
from leadline.errors import UsageError
from leadline.models import AttentionConfig, Decoder, DecoderConfig, InitConfig
from leadline.models.layers import Attention, KVCache, rotary_tables, rotate
from leadline.norms import BHyT, NormConfig

MakeConfig = Callable[..., DecoderConfig]
Lively = Callable[..., Decoder]


def gradients(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(tokens).square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture
def config(make_config: MakeConfig, connection: Any) -> DecoderConfig:
    return make_config(connection=connection, tied=False)


def test_every_connection(config: DecoderConfig, tokens: Tensor, lively: Lively) -> None:
    model = lively(config)
    found = gradients(model, tokens)
    assert all(torch.isfinite(g).all() for g in found.values())
    assert all(found[name].abs().sum() > 0 for name in found if name.endswith(("qkv.weight", "down.weight")))
    assert model(tokens[:0]).shape == (0, 13, 61)
    model(tokens[:0]).sum().backward()
    assert torch.allclose(model(tokens[:, :1]), model(tokens)[:, :1], atol=1e-9)
    assert len(model.sites()) == config.sublayers


def test_every_norm(make_config: MakeConfig, norm: NormConfig, tokens: Tensor, lively: Lively) -> None:
    layer = {"attention_output_norm": norm, "mlp_output_norm": norm}
    for options in ({}, {"layer": layer, "embedding_norm": norm}, {"layer": {"norm_scale": 0.5}}):
        model = lively(make_config(norm=norm, tied=False, embedding_scale=True, **options))
        assert all(torch.isfinite(g).all() for g in gradients(model, tokens).values())


def test_no_token_sees_a_later_one(config: DecoderConfig, tokens: Tensor, lively: Lively) -> None:
    model = lively(config)
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 61
    assert torch.allclose(model(tokens)[:, :7], model(changed)[:, :7], atol=1e-9)
    assert not torch.allclose(model(tokens)[:, 7:], model(changed)[:, 7:])


def test_bfloat16(config: DecoderConfig, tokens: Tensor) -> None:
    model = Decoder(config)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens)
    assert logits.dtype == torch.bfloat16
    logits.float().square().sum().backward()
    assert torch.allclose(logits.float(), model(tokens), atol=0.05)
    narrow = Decoder(config, dtype=torch.bfloat16)
    assert narrow(tokens).dtype == torch.bfloat16
    assert all(p.dtype == torch.float32 for site in narrow.sites() for p in site.parameters())


def test_recomputation_has_equal_gradients(config: DecoderConfig, tokens: Tensor, lively: Lively) -> None:
    model = lively(config)
    stored = gradients(model, tokens)
    model.recompute = True
    recomputed = gradients(model, tokens)
    assert stored.keys() == recomputed.keys()
    if isinstance(config.connection, MultiGate) and config.connection.memory == "invert":
        # A recomputed block has its streams at hand: it is nearer the truth than inversion without it.
        torch.testing.assert_close(recomputed, stored, rtol=1e-9, atol=1e-9)
    else:
        assert all(torch.equal(stored[name], recomputed[name]) for name in stored)


def test_meta_construction_then_materialise(make_config: MakeConfig, connection: Any, norm: NormConfig) -> None:
    config = make_config(connection=connection, norm=norm, embedding_norm=norm, embedding_scale=True, tied=False)
    model = Decoder(config, device="meta")
    assert all(t.is_meta for t in model.state_dict().values())
    model.to_empty(device="cpu")
    with torch.no_grad():
        for value in [*model.parameters(), *model.buffers()]:
            value.fill_(float("nan") if value.is_floating_point() else -1)
    model.reset_parameters(5)
    direct = Decoder(config, seed=5)
    assert model.state_dict().keys() == direct.state_dict().keys()
    assert all(torch.equal(model.state_dict()[name], value) for name, value in direct.state_dict().items())


def test_buffers_are_all_saved(make_config: MakeConfig, norm: NormConfig) -> None:
    model = Decoder(make_config(norm=norm))
    assert {name for name, _ in model.named_buffers()} <= model.state_dict().keys()


def test_the_same_seed_gives_the_same_matrices_in_every_design(
    make_config: MakeConfig, connection: Any, norm: NormConfig
) -> None:
    plain, other = Decoder(make_config()), Decoder(make_config(connection=connection, norm=norm))
    shared = [name for name, _ in plain.named_parameters() if name.endswith(".weight")]
    assert len(shared) == 1 + 4 * 3
    assert all(torch.equal(plain.state_dict()[name], other.state_dict()[name]) for name in shared)
    assert not torch.equal(plain.embed.weight, Decoder(make_config(), seed=1).embed.weight)


def test_construction_leaves_the_global_generator_alone(make_config: MakeConfig) -> None:
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    Decoder(make_config())
    assert torch.equal(torch.rand(3), expected)


def test_starting_deviations(make_config: MakeConfig) -> None:
    def deviations(init: InitConfig) -> dict[str, float]:
        model = Decoder(make_config(blocks=8, dim=128, init=init))
        attention, mlp = model.blocks[0].attention, model.blocks[0].mlp
        tensors = {
            "embed": model.embed.weight,
            "query_key": attention.qkv.weight[: -attention.value_weight.shape[0]],
            "value": attention.value_weight,
            "output": attention.output.weight,
            "gate_up": mlp.gate_up.weight,
            "down": mlp.down.weight,
        }
        return {name: tensor.std().item() for name, tensor in tensors.items()}

    gain = (8 * 8) ** -0.25
    for init, factors in (
        (InitConfig(output_scale="none"), {}),
        (InitConfig(), {"output": 0.25, "down": 0.25}),
        (InitConfig(output_scale="none", deepnorm=True), dict.fromkeys(("value", "output", "gate_up", "down"), gain)),
    ):
        for name, found in deviations(init).items():
            assert found == pytest.approx(0.02 * 2 * factors.get(name, 1.0), rel=0.06), (init, name)
    assert deviations(InitConfig(std=0.5))["embed"] == pytest.approx(0.5, rel=0.06)


def test_embedding_scale_starts_at_the_root_of_the_width(make_config: MakeConfig) -> None:
    model = Decoder(make_config(embedding_scale=True))
    assert model.embed_scale is not None
    assert model.embed_scale.tolist() == pytest.approx([math.sqrt(18)])


def test_tied_and_untied_heads(make_config: MakeConfig, tokens: Tensor) -> None:
    tied, untied = Decoder(make_config()), Decoder(make_config(tied=False))
    assert "head.weight" not in tied.state_dict()
    assert torch.equal(tied(tokens), F.linear(tied.hidden(tokens), tied.embed.weight))
    assert untied.head is not None
    assert torch.equal(untied(tokens), F.linear(untied.hidden(tokens), untied.head.weight))


def test_the_norm_uses_its_sites_scale(config: DecoderConfig) -> None:
    model = Decoder(config)
    for block in model.blocks:
        assert block.attention_norm.scale == block.attn_site.scale
        assert block.mlp_norm.scale == block.mlp_site.scale
    assert model.final_norm.scale == model.readout.scale


def test_norm_scale_multiplies_what_the_sublayer_sees(make_config: MakeConfig, tokens: Tensor) -> None:
    plain = Decoder(make_config(blocks=1, tied=False))
    scaled = Decoder(make_config(blocks=1, tied=False, layer={"norm_scale": 0.25}))
    seen = {}
    for name, model in (("plain", plain), ("scaled", scaled)):
        model.blocks[0].attention.qkv.register_forward_pre_hook(lambda _, x, name=name: seen.update({name: x[0]}))
        model(tokens)
    assert torch.allclose(seen["scaled"], 0.25 * seen["plain"])


@pytest.mark.parametrize("skip", [{0}, {1}, {2, 3}, {0, 1, 2, 3, 4, 5}, [5]])
def test_skipping_sublayers(config: DecoderConfig, tokens: Tensor, lively: Lively, skip: Any) -> None:
    model = lively(config)
    passed = model(tokens, skip=skip)
    assert torch.isfinite(passed).all()
    assert not torch.allclose(passed, model(tokens))
    assert torch.equal(passed, model(tokens, skip=skip))


def test_a_skipped_sublayer_is_a_cut_out_one(make_config: MakeConfig, tokens: Tensor, lively: Lively) -> None:
    model = lively(make_config(connection=Additive(post_norm="layernorm"), tied=False))
    cut = copy.deepcopy(model)
    del cut.blocks[1]
    assert torch.equal(model(tokens, skip=(2, 3)), cut(tokens))


def test_skipping_a_sublayer_that_is_not_there(make_config: MakeConfig, tokens: Tensor) -> None:
    model = Decoder(make_config())
    for wrong in (6, -1):
        with pytest.raises(UsageError, match=f"skip={wrong} .* 0 to 5"):
            model(tokens, skip=[wrong])


def test_grouped_queries_share_keys_and_values(tokens: Tensor) -> None:
    grouped = Attention(16, AttentionConfig(heads=4, kv_heads=2, head_dim=6))
    full = Attention(16, AttentionConfig(heads=4, kv_heads=4, head_dim=6))
    with torch.no_grad():
        for module in (grouped, full):
            module.output.weight.normal_(generator=torch.Generator().manual_seed(1))
        grouped.qkv.weight.normal_()
        query, key, value = grouped.qkv.weight.view(8, 6, 16).split((4, 2, 2))
        repeated = [query, *(w.repeat_interleave(2, dim=0) for w in (key, value))]
        full.qkv.weight.copy_(torch.cat(repeated).view(-1, 16))
    x = torch.randn(2, 9, 16)
    tables = rotary_tables(torch.arange(9), 6, 10000.0, torch.float32)
    assert torch.allclose(grouped(x, *tables), full(x, *tables), atol=1e-5)


def test_rotary_scores_depend_on_distance_only() -> None:
    query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    places = torch.tensor([3, 10, 40, 47])
    cosines, sines = rotary_tables(places, 8, 10000.0, torch.float64)
    turned_query, turned_key = (rotate(x.expand(1, 1, 4, 8), cosines, sines) for x in (query, key))
    scores = (turned_query @ turned_key.transpose(-1, -2))[0, 0]
    assert scores[0, 1] == pytest.approx(scores[2, 3])
    assert scores[0, 0] == pytest.approx(torch.dot(query.flatten(), key.flatten()).item())
    assert cosines.dtype == torch.float64
    assert rotary_tables(places, 8, 10000.0, torch.bfloat16)[0].dtype == torch.float32


def test_query_key_norm_bounds_the_scores(make_config: MakeConfig, tokens: Tensor) -> None:
    attention = AttentionConfig(heads=4, kv_heads=2, head_dim=6, qk_norm=True)
    model = Decoder(make_config(layer={"attention": attention}, tied=False))
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        rows = scaled.blocks[0].attention.qkv.weight
        rows[: -scaled.blocks[0].attention.value_weight.shape[0]] *= 1000.0
    kept = [model.blocks[0].attention, scaled.blocks[0].attention]
    tables = rotary_tables(torch.arange(13), 6, 10000.0, torch.float32)
    x = torch.randn(2, 13, 18)
    assert torch.allclose(kept[0](x, *tables), kept[1](x, *tables), atol=2e-3)


def test_a_warning_once_beyond_the_context(make_config: MakeConfig, tokens: Tensor, recwarn: Any) -> None:
    model = Decoder(make_config(context=8))
    assert model(tokens[:, :8]).shape[1] == 8
    assert not recwarn.list
    model(tokens)
    model(tokens)
    assert [str(w.message) for w in recwarn.list if "8 tokens at a time" in str(w.message)].__len__() == 1


def test_folded_gains_leave_the_output(
    make_config: MakeConfig, norm: NormConfig, tokens: Tensor, lively: Callable[..., Decoder]
) -> None:
    model = lively(make_config(blocks=2, norm=norm, tied=False))
    with torch.no_grad():
        expected = model(tokens)
        model.fold_gains()
        torch.testing.assert_close(model(tokens), expected, rtol=1e-10, atol=1e-10)
    for block in model.blocks:
        gain = getattr(block.attention_norm, "gain", None)
        if gain is not None and getattr(block.attention_norm, "bias", None) is None:
            assert torch.equal(gain, torch.ones_like(gain))


def test_a_folded_model_keeps_its_constants_and_is_not_saved(
    make_config: MakeConfig, tokens: Tensor, lively: Callable[..., Decoder], tmp_path: Path
) -> None:
    model = lively(make_config(blocks=2, norm=BHyT(), tied=False))
    model.refresh_statistics()
    expected = model(tokens)
    model.fold_gains()
    model.refresh_statistics()
    torch.testing.assert_close(model(tokens), expected, rtol=1e-10, atol=1e-10)
    with pytest.raises(UsageError, match="can't be saved"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_prefetch_changes_no_logits_in_training_and_in_generation(
    make_config: MakeConfig, tokens: Tensor, lively: Lively, size: int
) -> None:
    model = lively(make_config(blocks=3, connection=AttentionResiduals(block_size=size), tied=False))
    expected, plain = model(tokens), gradients(model, tokens)
    model.prefetch = True
    assert torch.allclose(model(tokens), expected, atol=1e-10)
    for name, grad in gradients(model, tokens).items():
        assert torch.allclose(grad, plain[name], atol=1e-8), name
    cache = KVCache()
    with torch.inference_mode():
        steps = [model(tokens[:, i : i + 1], cache=cache) for i in range(tokens.shape[1])]
    assert torch.allclose(torch.cat(steps, dim=1), expected, atol=1e-9)
