"""When the MLP's norm takes attention's second moment, and when it must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from leadline.connections import Additive
from leadline.models import Decoder, DecoderConfig
from leadline.models.block import is_plain
from leadline.norms import BHyT, RMSNorm
from leadline.ops import attention_gain

MakeConfig = Callable[..., DecoderConfig]


def exact_calls(model: Decoder, tokens: Tensor, **options: Any) -> list[int]:
    """The blocks whose MLP norm ran in its exact form."""
    called: list[int] = []
    for index, block in enumerate(model.blocks):
        block.mlp_norm.register_forward_hook(lambda *_, index=index: called.append(index))
    model(tokens, **options)
    return called


def test_plain_prenorm_reuses(make_config: MakeConfig, tokens: Tensor) -> None:
    assert exact_calls(Decoder(make_config(norm=BHyT())), tokens) == []


def test_a_skipped_attention_makes_it_exact(make_config: MakeConfig, tokens: Tensor) -> None:
    assert exact_calls(Decoder(make_config(norm=BHyT())), tokens, skip={2}) == [1]


def test_other_connections_are_exact(make_config: MakeConfig, connection: Any, tokens: Tensor) -> None:
    model = Decoder(make_config(norm=BHyT(), connection=connection))
    assert exact_calls(model, tokens) == ([] if is_plain(connection) else [0, 1, 2])


@pytest.mark.parametrize(
    "layer", [{"attention_output_norm": RMSNorm()}, {"norm_scale": 0.5}, {"attention_norm": RMSNorm()}]
)
def test_other_placements_are_exact(make_config: MakeConfig, tokens: Tensor, layer: dict[str, Any]) -> None:
    assert exact_calls(Decoder(make_config(norm=BHyT(), layer=layer)), tokens) == [0, 1, 2]


def test_plain_means_nothing_but_an_addition() -> None:
    assert is_plain(Additive())
    assert is_plain(Additive(state_dtype="float32"))
    assert not is_plain(Additive(branch="rezero"))
    assert not is_plain(Additive(post_norm="rmsnorm"))


def test_the_constant_comes_from_the_weights_and_the_training_length(make_config: MakeConfig, tokens: Tensor) -> None:
    model = Decoder(make_config(norm=BHyT(), context=32))

    def expected(block: Any) -> Tensor:
        attention = block.attention
        return attention_gain(attention.value_weight, attention.output.weight, 4, 2, 32)

    assert all(torch.allclose(b.mlp_norm.c, expected(b)) and b.mlp_norm.c > 0 for b in model.blocks)
    before = [b.mlp_norm.c.clone() for b in model.blocks]
    with torch.no_grad():
        for block in model.blocks:
            block.attention.output.weight.mul_(2.0)
    model(tokens[:, :5])
    assert all(torch.equal(b.mlp_norm.c, c) for b, c in zip(model.blocks, before, strict=True))
    model.refresh_statistics()
    assert all(torch.allclose(b.mlp_norm.c, 4.0 * c) for b, c in zip(model.blocks, before, strict=True))
    assert all(int(b.mlp_norm.length) == 32 for b in model.blocks)


def test_positions_reach_the_norm(make_config: MakeConfig, tokens: Tensor, lively: Callable[..., Decoder]) -> None:
    model = lively(make_config(norm=BHyT(position_aware=True), tied=False))
    plain = lively(make_config(norm=BHyT(), tied=False))
    assert not torch.allclose(model(tokens), plain(tokens))
