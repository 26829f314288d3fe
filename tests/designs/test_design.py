"""What designs become: decoder configurations, notes, settings, presets."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from leadline.connections import AttentionResiduals
from leadline.designs import PARTS, PRESETS, TABLE, ShapeConfig, preset_named, resolve, settings
from leadline.errors import UsageError
from leadline.models.config import InitConfig
from leadline.norms import BHyT, NoNorm, RMSNorm

TINY = PRESETS["tiny"]
SMALL = ShapeConfig(dim=16, blocks=4, heads=2, kv_heads=1, head_dim=8, hidden=32, context=16)


def test_prenorm_at_tiny() -> None:
    config = resolve("prenorm").decoder(TINY, 257)
    assert (config.dim, len(config.layers), config.context, config.tied) == (72, 24, 128, True)
    layer = config.layers[0]
    assert (layer.attention.heads, layer.attention.kv_heads, layer.attention.head_dim) == (3, 3, 24)
    assert layer.mlp.hidden == 192
    assert layer.attention_norm == layer.mlp_norm == config.final_norm == RMSNorm()
    assert layer.attention_output_norm is None
    assert config.init == InitConfig(output_scale="depth")
    assert not config.embedding_scale


def test_lns_divides_by_the_root_of_the_block_number_and_starts_undivided() -> None:
    config = resolve("lns").decoder(TINY, 257)
    for number, layer in enumerate(config.layers, start=1):
        assert layer.norm_scale == pytest.approx(1 / math.sqrt(number))
        assert isinstance(layer.norm_scale, float)
    assert config.init.output_scale == "none"


@pytest.mark.parametrize(
    ("expression", "scale"),
    [
        ("bhyt", "none"),
        ("layerscale", "none"),
        ("rezero", "none"),
        ("bhyt-exact", "none"),
        ("mgr + bhyt", "none"),
        ("bhyt-unit", "depth"),
        ("mgr", "depth"),
    ],
)
def test_bhyt_starts_undivided_and_its_unit_start_as_rmsnorm_does(expression: str, scale: str) -> None:
    assert resolve(expression).decoder(TINY, 257).init.output_scale == scale


def test_peri_and_sandwich_have_output_norms_and_only_peri_norms_the_embedding() -> None:
    peri, sandwich = resolve("peri-ln").decoder(SMALL, 17), resolve("sandwich-ln").decoder(SMALL, 17)
    for config in (peri, sandwich):
        assert config.layers[0].attention_output_norm == config.layers[0].mlp_output_norm == RMSNorm()
    assert peri.embedding_norm == RMSNorm()
    assert sandwich.embedding_norm is None
    assert resolve("peri-ln(embedding_norm=false)").decoder(SMALL, 17).embedding_norm is None


def test_post_norm_has_no_norm_inside_and_none_at_the_end() -> None:
    for name in ("post-ln", "deepnorm"):
        config = resolve(name).decoder(SMALL, 17)
        assert config.final_norm == NoNorm()
        assert config.layers[0].attention_norm == config.layers[-1].mlp_norm == NoNorm()
        assert config.init == InitConfig(output_scale="none", deepnorm=name == "deepnorm")


def test_mix_ln_is_post_norm_in_the_first_quarter() -> None:
    config = resolve("mix-ln").decoder(TINY, 257)
    assert [layer.attention_norm == NoNorm() for layer in config.layers] == [True] * 6 + [False] * 18
    assert config.connection.post_norm_blocks == 6
    assert config.final_norm == RMSNorm()


def test_dyt_scales_the_embedding() -> None:
    assert resolve("dyt").decoder(SMALL, 17).embedding_scale
    assert resolve("derf").decoder(SMALL, 17).embedding_scale
    assert not resolve("bhyt").decoder(SMALL, 17).embedding_scale


def test_bhyts_final_norm_is_rmsnorm_unless_asked() -> None:
    assert resolve("bhyt").decoder(SMALL, 17).final_norm == RMSNorm()
    assert isinstance(resolve("bhyt(final=bhyt)").decoder(SMALL, 17).final_norm, BHyT)


def test_qk_norm_and_plain_init() -> None:
    assert resolve("qk-norm").decoder(SMALL, 17).layers[0].attention.qk_norm
    assert resolve("mgr + plain-init").decoder(SMALL, 17).init.output_scale == "none"


@pytest.mark.parametrize(("blocks", "size"), [(1, 1), (2, 1), (4, 1), (8, 2), (12, 3), (24, 6), (36, 9)])
def test_attnres_block_makes_about_eight_blocks(blocks: int, size: int) -> None:
    connection = resolve("attnres-block").connection_for(blocks)
    assert isinstance(connection, AttentionResiduals)
    assert connection.block_size == size


@pytest.mark.parametrize(
    ("expression", "approximate"),
    [
        ("bhyt", True),
        ("bhyt-unit", True),
        ("bhyt + qk-norm", True),
        ("bhyt(position_aware=true)", True),
        ("bhyt-exact", False),
        ("bhyt + mgr", False),
        ("bhyt(position_aware=true) + mgr", False),
        ("bhyt + attnres", False),
        ("bhyt + lns", False),
        ("bhyt + peri-ln", False),
        ("bhyt + layerscale", False),
        ("bhyt + rezero", False),
        ("bhyt + mix-ln", False),
    ],
)
def test_bhyt_approximates_only_where_that_holds_and_says_so(expression: str, approximate: bool) -> None:
    design = resolve(expression)
    norm = design.decoder(TINY, 257).layers[-1].mlp_norm
    assert isinstance(norm, BHyT)
    assert norm.approximate == approximate
    said = any("exact here" in note for note in design.notes(TINY))
    assert said == (not approximate and expression != "bhyt-exact")


def test_notes() -> None:
    assert resolve("prenorm").notes(TINY) == []
    assert "blocks of 6 sublayers" in resolve("attnres-block").notes(TINY)[0]
    assert "first 6 of 24" in resolve("mix-ln").notes(TINY)[0]
    one = dataclasses.replace(SMALL, blocks=1)
    assert "never used" in resolve("mgr").notes(one)[0]


def test_options_that_do_not_fit_the_depth_are_named() -> None:
    with pytest.raises(UsageError, match="streams"):
        resolve("mgr(streams=8)").decoder(SMALL, 17)


def test_settings_of_designs_in_the_table_and_of_others() -> None:
    assert set(TABLE) <= {resolve(name).expression for name in PARTS}
    for name, row in TABLE.items():
        found = settings(resolve(name), TINY)
        assert (found.learning_rate, found.points, found.tuned) == (row.learning_rate, row.points, True)
    assert settings(resolve("plain-init"), TINY).learning_rate == TABLE["prenorm"].learning_rate
    assert "not swept for this design; prenorm's" in settings(resolve("plain-init"), TINY).source


@pytest.mark.parametrize(
    ("expression", "lowest"),
    [
        ("mgr + bhyt", "mgr-competitive"),
        ("mgr + layernorm", "layernorm"),
        ("attnres-block + bhyt", "attnres-block"),
        ("hc + bhyt + peri-ln", "peri-ln"),
        ("bhyt(lambda_attention=10) + cascade-a2", "bhyt"),
    ],
)
def test_combinations_take_the_lowest_rate_of_their_parts(expression: str, lowest: str) -> None:
    found = settings(resolve(expression), TINY)
    assert found.learning_rate == TABLE[lowest].learning_rate
    assert lowest in found.source
    assert found.points == ()


@pytest.mark.parametrize("name", ["hc", "post-ln", "layerscale", "mgr + bhyt", "bhyt-unit", "prenorm"])
def test_rates_at_other_presets_are_the_baselines_and_say_that_they_are_not_tuned(name: str) -> None:
    for preset in (PRESETS["S"], PRESETS["374M"], PRESETS["1B"]):
        found = settings(resolve(name), preset)
        assert found.learning_rate == preset.learning_rate
        assert not found.tuned
        assert found.source.endswith("not tuned at this size")
        assert found.points == ()


def test_a_source_s_rate_for_a_size_is_used_and_named() -> None:
    for name, preset, rate, source in (
        ("bhyt", "1B", 3e-4, "2601.09719"),
        ("bhyt(lambda_mlp=1)", "3B", 3e-4, "2601.09719"),
        ("lns", "374M", 5e-4, "2502.05795"),
    ):
        found = settings(resolve(name), PRESETS[preset])
        assert (found.learning_rate, found.tuned) == (rate, True)
        assert source in found.source
        assert "not tuned" not in found.source
    assert settings(resolve("bhyt"), PRESETS["374M"]).learning_rate == PRESETS["374M"].learning_rate


def test_another_shape_of_a_preset_is_not_tuned() -> None:
    wider, longer = dataclasses.replace(TINY.shape, blocks=12), dataclasses.replace(TINY.shape, context=64)
    assert settings(resolve("hc"), TINY, longer) == settings(resolve("hc"), TINY)
    found = settings(resolve("hc"), TINY, wider)
    assert found.learning_rate == TABLE["hc"].learning_rate
    assert "not tuned at this size" in found.source
    assert found.points == ()


def test_presets() -> None:
    shapes = {name: (p.blocks, p.heads, p.dim, p.kv_heads, p.hidden) for name, p in PRESETS.items()}
    assert shapes == {
        "tiny": (24, 3, 72, 3, 192),
        "S": (12, 12, 768, 12, 2048),
        "M": (24, 16, 1024, 16, 2752),
        "L": (36, 20, 1280, 20, 3456),
        "374M": (16, 16, 1024, 4, 4096),
        "1B": (16, 32, 2048, 8, 8192),
        "3B": (28, 24, 3072, 8, 8192),
    }
    assert TINY.batch_size == 8
    assert TINY.tokens == 512000
    assert preset_named("TINY") is TINY
    assert preset_named("s") is PRESETS["S"]
    assert TINY.shape == ShapeConfig(dim=72, blocks=24, heads=3, kv_heads=3, head_dim=24, hidden=192, context=128)
    with pytest.raises(UsageError, match=r"tiny, S, M.*Did you mean tiny"):
        preset_named("tinny")
    with pytest.raises(UsageError, match="blocks=0"):
        dataclasses.replace(SMALL, blocks=0)


def test_every_named_design_is_swept_and_the_docs_show_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "designs.md").read_text(encoding="utf-8")
    for name in PARTS:
        row = TABLE.get(resolve(name).expression)
        if name == "plain-init" or not resolve(name).taper.uniform:  # parts for other designs, whose rate they take
            assert row is None
            continue
        assert row is not None
        bits = dict(row.points)
        assert len(bits) >= 3
        assert bits[row.learning_rate] == min(bits.values())
        assert min(bits) < row.learning_rate < max(bits)
        shown = ", ".join(f"{rate:g}: {value:.3f}" for rate, value in row.points)
        assert f"| `{resolve(name).expression}` | {row.learning_rate:g} | {shown} |" in page
