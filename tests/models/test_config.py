"""A decoder's configuration: errors that name layer and option, and data there and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from leadline.config import from_dict, to_dict
from leadline.errors import UsageError
from leadline.models import AttentionConfig, Decoder, DecoderConfig, InitConfig, MLPConfig
from leadline.norms import NormConfig


def test_there_and_back_as_json(make_config: Callable[..., DecoderConfig], connection: Any, norm: NormConfig) -> None:
    config = make_config(
        connection=connection,
        norm=norm,
        layer={"attention_output_norm": norm, "mlp_output_norm": norm, "norm_scale": 0.5},
        embedding_norm=norm,
        init=InitConfig(std=0.1, output_scale="none", deepnorm=True),
    )
    assert from_dict(DecoderConfig, json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"attention": AttentionConfig(heads=6, kv_heads=4, head_dim=8)}, r"layers\[0\]\.attention\.kv_heads=4.*6"),
        ({"attention": AttentionConfig(heads=6, kv_heads=0, head_dim=8)}, r"layers\[0\]\.attention\.kv_heads=0"),
        ({"attention": AttentionConfig(heads=2, kv_heads=2, head_dim=9)}, r"head_dim=9 is odd.*8 and 10 work"),
        ({"attention": AttentionConfig(heads=2, kv_heads=2, head_dim=1)}, r"head_dim=1 is odd.*2 and 4 work"),
        ({"mlp": MLPConfig(hidden=0)}, r"layers\[0\]\.mlp\.hidden=0 must be at least 1"),
        ({"norm_scale": 0.0}, r"layers\[0\]\.norm_scale=0.0"),
        ({"norm_scale": float("nan")}, r"layers\[0\]\.norm_scale=nan"),
    ],
)
def test_a_wrong_layer_is_named(make_config: Callable[..., DecoderConfig], layer: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_config(layer=layer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"dim": 0}, "dim=0"),
        ({"context": 0}, "context=0"),
        ({"rope_theta": -1.0}, "rope_theta=-1.0"),
        ({"layers": (MLPConfig(hidden=3),)}, r"layers\[0\] should be a LayerConfig"),
    ],
)
def test_a_wrong_option_is_named(
    make_config: Callable[..., DecoderConfig], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        make_config(**options)


@pytest.mark.parametrize("std", [-0.1, float("inf"), float("nan")])
def test_a_wrong_deviation_is_named(std: float) -> None:
    with pytest.raises(UsageError, match="std="):
        InitConfig(std=std)


def test_a_wrong_layer_is_named_from_data_too(make_config: Callable[..., DecoderConfig]) -> None:
    data = to_dict(make_config(blocks=2))
    data["layers"][1]["attention"]["kv_heads"] = 3
    with pytest.raises(UsageError, match=r"layers\[1\]\.attention\.kv_heads=3"):
        from_dict(DecoderConfig, data)


def test_unknown_keys_are_errors(make_config: Callable[..., DecoderConfig]) -> None:
    data = to_dict(make_config())
    data["layers"][2]["atention_norm"] = None
    with pytest.raises(UsageError, match="attention_norm"):
        from_dict(DecoderConfig, data)


def test_layers_may_differ(make_config: Callable[..., DecoderConfig], tokens: Any) -> None:
    wide, thin = make_config(blocks=1).layers[0], make_config(layer={"mlp": MLPConfig(hidden=4)}).layers[0]
    other = make_config(layer={"attention": AttentionConfig(heads=3, kv_heads=1, head_dim=4, qk_norm=True)}).layers[0]
    model = Decoder(make_config(layers=(wide, thin, other)))
    assert model(tokens).shape == (2, 13, model.config.vocab_size)


def test_no_layers_at_all(make_config: Callable[..., DecoderConfig], tokens: Any) -> None:
    assert Decoder(make_config(blocks=0))(tokens).shape == (2, 13, 61)
