"""FLOPs and parameters of decoders from which something was cut, and of those whose last blocks repeat."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from connection_examples import EXAMPLES
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from leadline.connections import Additive, AttentionResiduals, Connection, MultiGate
from leadline.designs.counting import count_flops, count_parameters, depth_flops
from leadline.models import AttentionConfig, Decoder, DecoderConfig, LayerConfig, MLPConfig, RepeatConfig, cut_config
from leadline.norms import RMSNorm

D = 16


def config(connection: Connection | None = None, repeat: RepeatConfig | None = None) -> DecoderConfig:
    layers = tuple(
        LayerConfig(
            attention=AttentionConfig(heads=heads, kv_heads=2, head_dim=8),
            mlp=MLPConfig(hidden=hidden),
            attention_norm=RMSNorm(),
            mlp_norm=RMSNorm(),
        )
        for heads, hidden in ((4, 40), (4, 32), (2, 24), (2, 16))
    )
    return DecoderConfig(
        vocab_size=33,
        dim=D,
        layers=layers,
        connection=connection or Additive(),
        final_norm=RMSNorm(),
        context=12,
        repeat=repeat,
    )


def counted(config: DecoderConfig) -> int:
    """Forward FLOPs per token, as PyTorch counts them."""
    tokens = torch.zeros(2, config.context, dtype=torch.int64)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as flops:
        Decoder(config)(tokens)
    return flops.get_total_flops() // tokens.numel()


@pytest.mark.parametrize("sublayers", [{0, 1}, {2}, {5}, {1, 2, 7}], ids=str)
def test_matrix_products_of_what_is_left(sublayers: set[int]) -> None:
    smaller = cut_config(config(), sublayers)
    assert count_flops(smaller).matmul == counted(smaller) < count_flops(config()).matmul


@pytest.mark.parametrize("repeat", [RepeatConfig(last=1, times=2), RepeatConfig(last=3, times=3)], ids=str)
def test_every_occurrence_costs_and_parameters_count_once(repeat: RepeatConfig) -> None:
    repeating = config(repeat=repeat)
    assert count_flops(repeating).matmul == counted(repeating)
    assert count_parameters(repeating) == count_parameters(config())
    layers = tuple(repeating.layers[layer] for layer in repeating.block_layers)
    unrolled = dataclasses.replace(repeating, layers=layers, repeat=None)
    assert count_flops(repeating) == count_flops(unrolled)
    for name, connection in EXAMPLES.items():
        twice = count_parameters(config(connection, repeat))
        plain = count_parameters(dataclasses.replace(unrolled, connection=connection))
        assert twice.connection == plain.connection, name
        assert (twice.matrices, twice.norms) == (
            count_parameters(config(connection)).matrices,
            count_parameters(config(connection)).norms,
        )


@pytest.mark.parametrize("name", EXAMPLES)
def test_parameters_equal_those_of_the_built_model(name: str) -> None:
    whole = config(EXAMPLES[name])
    smaller = cut_config(whole, {2, 3, 6})
    count = count_parameters(smaller)
    assert count.total == sum(p.numel() for p in Decoder(smaller).parameters())
    assert count.matrices == D * (8 * 2 * (4 + 2) + 3 * 40 + 8 * 2 * (2 + 2) + 3 * 24 + 3 * 16)
    assert count.norms == (5 + 1) * D
    assert 0 < count_flops(smaller).depth < count_flops(whole).depth


def test_depth_operators_by_hand() -> None:
    # Left: places 0 3 4 5 of 8. A read sees what was written before it.
    places = [0, 3, 4, 5]
    assert depth_flops(Additive(), D, places) == 4 * D
    assert depth_flops(Additive(post_norm="rmsnorm", post_norm_blocks=2), D, places) == 4 * D + 2 * 4 * D
    assert depth_flops(AttentionResiduals(), D, places) == 4 * D * (2 + 3 + 4 + 5) + 2 * D * 5
    # Blocks of three: places 0 | 3 4 5. Reads of 1, 2, 3, 3 sources, the readout 3; two additions to a partial sum.
    assert depth_flops(AttentionResiduals(block_size=3), D, places) == 4 * D * (2 + 3 + 3 + 3) + 2 * D + 2 * D * 5
    # An empty block is no source: blocks of two, places 0 | 3 | 4 5.
    assert depth_flops(AttentionResiduals(block_size=2), D, places) == 4 * D * (2 + 3 + 4 + 4) + D + 2 * D * 5
    # Two outputs append; then three streams are gated twice.
    assert depth_flops(MultiGate(streams=3), D, places) == 6 * D * (2 + 3 + 3 + 3) + 5 * D * 3 * 2
    assert depth_flops(MultiGate(streams=3), D, range(8)) == depth_flops(MultiGate(streams=3), D, 8)
