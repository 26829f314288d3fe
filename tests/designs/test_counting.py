"""Parameters against the built model, FLOPs against PyTorch's counter, and the budget solver."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from leadline.designs import (
    PARTS,
    PRESETS,
    ShapeConfig,
    count_flops,
    count_parameters,
    equal_flops,
    resolve,
    tokens_for,
)
from leadline.errors import UsageError
from leadline.models import Decoder
from leadline.models.config import AttentionConfig, DecoderConfig, MLPConfig

SMALL = ShapeConfig(dim=16, blocks=4, heads=4, kv_heads=2, head_dim=8, hidden=40, context=12)
SIX_HEADS = dataclasses.replace(SMALL, heads=6, kv_heads=3)
"""A shape that every taper fits."""


def counted(config: DecoderConfig) -> tuple[int, int]:
    """Forward FLOPs per token, and those of forward and backward, as PyTorch counts them."""
    model = Decoder(config)
    tokens = torch.zeros(2, config.context, dtype=torch.int64)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        logits = model(tokens)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as both:
        model(tokens).sum().backward()
    assert logits.shape == (2, config.context, config.vocab_size)
    return forward.get_total_flops() // tokens.numel(), both.get_total_flops() // tokens.numel()


def tapered(config: DecoderConfig) -> DecoderConfig:
    layers = [
        dataclasses.replace(
            layer,
            attention=AttentionConfig(heads=4 - i % 2 * 2, kv_heads=2, head_dim=6),
            mlp=MLPConfig(hidden=40 - 8 * i),
        )
        for i, layer in enumerate(config.layers)
    ]
    return dataclasses.replace(config, layers=tuple(layers), tied=False)


@pytest.mark.parametrize("name", ["cascade-a1", "cascade-af", "cascade-middle", "taper(heads=1:1/6, mlp=1/3~1)"])
def test_matrix_products_of_tapers(name: str) -> None:
    config = resolve(name).decoder(SIX_HEADS, 33)
    flops = count_flops(config)
    assert counted(config) == (flops.matmul, flops.training)


@pytest.mark.parametrize("expression", ["prenorm", "lns", "bhyt", "peri-ln", "dyt", "qk-norm", "post-ln"])
@pytest.mark.parametrize("taper", [False, True])
def test_matrix_products_equal_what_pytorch_counts(expression: str, taper: bool) -> None:
    config = resolve(expression).decoder(SMALL, 33)
    config = tapered(config) if taper else config
    flops = count_flops(config)
    assert counted(config) == (flops.matmul, flops.training)


@pytest.mark.parametrize("name", PARTS)
def test_parameters_equal_those_of_the_built_model(name: str) -> None:
    design = resolve(name)
    own = design.decoder(SMALL if design.taper.uniform else SIX_HEADS, 33)
    for config in (own, tapered(own)):
        count = count_parameters(config)
        assert count.total == sum(p.numel() for p in Decoder(config).parameters())
        assert count.matrices == sum(
            layer.attention.head_dim * 2 * (layer.attention.heads + layer.attention.kv_heads) * 16
            + 3 * 16 * layer.mlp.hidden
            for layer in config.layers
        )
        assert count.embedding == 33 * 16 * (1 if config.tied else 2) + (1 if config.embedding_scale else 0)


def test_connection_parameters_of_attention_residuals() -> None:
    count = count_parameters(resolve("attnres").decoder(SMALL, 33))
    assert count.connection == (2 * SMALL.blocks - 1 + 1) * 2 * SMALL.dim
    assert count.norms == (2 * SMALL.blocks + 1) * SMALL.dim


def test_presets_have_the_sizes_that_they_are_named_after() -> None:
    millions = {
        name: count_parameters(resolve("prenorm").decoder(preset, preset.vocab_size)).total / 1e6
        for name, preset in PRESETS.items()
    }
    assert millions["S"] == pytest.approx(124, rel=0.02)
    assert millions["M"] == pytest.approx(354, rel=0.02)
    assert millions["L"] == pytest.approx(774, rel=0.02)
    assert millions["374M"] == pytest.approx(374, rel=0.005)
    assert millions["1B"] == pytest.approx(1236, rel=0.005)
    assert millions["3B"] == pytest.approx(3213, rel=0.005)


def depth(expression: str, shape: ShapeConfig = SMALL) -> int:
    return count_flops(resolve(expression).decoder(shape, 33)).depth


def test_depth_operators_by_hand() -> None:
    d, n = SMALL.dim, 2 * SMALL.blocks
    assert depth("prenorm") == n * d
    # a score and a share for every source read, and one mean square for every source written
    assert depth("attnres") == 4 * d * sum(range(2, n + 2)) + 2 * d * (n + 1)
    assert depth("attnres(block_size=1)") == depth("attnres")
    # S=4: reads of 1, 2, 2, 2, then 2, 3, 3, 3 sources, the readout 3; three additions to a partial sum per block
    assert depth("attnres(block_size=4)") == 4 * d * (2 + 2 + 2 + 2 + 3 + 3 + 3 + 3) + 6 * d + 2 * d * (n + 1)
    # n=2: one site appends, seven gate two streams; reads of 2 streams at seven sites and the readout
    assert depth("mgr(streams=2)") == 6 * d * 2 * 8 + 5 * d * 2 * 7
    assert depth("attnres(window=2)") < depth("attnres")
    assert depth("attnres(weights=static)") < depth("attnres(key_norm=false)") < depth("attnres")


@pytest.mark.parametrize("name", [n for n, part in PARTS.items() if "connection" in part.slots])
def test_depth_operators_are_small_beside_matrix_products(name: str) -> None:
    preset = PRESETS["S"]
    flops = count_flops(resolve(name).decoder(preset, preset.vocab_size))
    assert 0 < flops.depth < 0.05 * flops.matmul
    assert flops.training_total == 3 * (flops.matmul + flops.depth)


def test_tokens_for_a_budget_are_whole_steps_within_it() -> None:
    config = resolve("attnres").decoder(PRESETS["tiny"], 257)
    per_token = count_flops(config).training_total
    tokens = tokens_for(3e14, config, 1024)
    assert tokens % 1024 == 0
    assert tokens * per_token <= 3e14 < (tokens + 1024) * per_token
    with pytest.raises(UsageError, match="does not buy one step"):
        tokens_for(1e6, config, 1024)
    with pytest.raises(UsageError, match="batch_tokens=0"):
        tokens_for(1e6, config, 0)


def test_equal_flops_gives_the_dearer_design_fewer_tokens() -> None:
    configs = {name: resolve(name).decoder(PRESETS["tiny"], 257) for name in ("prenorm", "attnres")}
    tokens = equal_flops(3e14, configs, 1024)
    assert tokens["attnres"] < tokens["prenorm"]
    spent = {name: tokens[name] * count_flops(config).training_total for name, config in configs.items()}
    for name, value in spent.items():
        assert 0 <= 3e14 - value < 1024 * count_flops(configs[name]).training_total


def test_context_is_checked() -> None:
    config = resolve("prenorm").decoder(SMALL, 33)
    assert count_flops(config, 24).scores == 2 * count_flops(config, 12).scores
    with pytest.raises(UsageError, match="context=0"):
        count_flops(config, 0)


def test_depth_flops_follow_the_window_and_the_sinkhorn_iterations() -> None:
    from leadline.connections import AttentionResiduals, ManifoldHyperConnections
    from leadline.designs.counting import depth_flops

    # 15 reads of 2 sources beside the first of one, the readout's too; 12 additions to partial sums.
    assert depth_flops(AttentionResiduals(block_size=4, window=1), 64, 16) == 16 * 2 * 4 * 64 + 17 * 2 * 64 + 12 * 64
    many, few = (depth_flops(ManifoldHyperConnections(sinkhorn_iterations=i), 64, 8) for i in (20, 5))
    assert many - few == 8 * 15 * 4 * 16
