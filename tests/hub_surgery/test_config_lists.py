"""What a configuration holds for fewer layers."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_hub_models import CONFIGS
from transformers import Gemma3Config, Lfm2Config, LlamaConfig, Qwen2Config

from leadline.errors import LeadlineError
from leadline.hub.config_lists import cut_config, value_at

KEPT = (0, 2, 5)


def llama(**values: Any) -> LlamaConfig:
    return LlamaConfig(num_hidden_layers=6, num_attention_heads=4, hidden_size=32, **values)


def test_the_count_is_cut_under_the_name_of_the_class() -> None:
    cut = cut_config(CONFIGS["gpt2"](), 6, KEPT)
    assert cut.config.n_layer == cut.config.num_hidden_layers == 3
    assert cut.changed == {"n_layer": 3}


def test_the_configuration_given_stays() -> None:
    config = CONFIGS["gemma2"]()
    before = config.to_dict()
    cut_config(config, 6, KEPT)
    assert config.to_dict() == before


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("num_heads_per_layer", [1, 2, 3, 4, 5, 6], [1, 3, 6]),
        ("ffn_multipliers", [0.5, 1.0, 1.5, 2.0, 2.5, 3.0], [0.5, 1.5, 3.0]),
        ("block_types", ("a", "b", "c", "d", "e", "f"), ["a", "c", "f"]),
        ("use_cache_of_layer", [True, False, True, False, True, False], [True, True, False]),
        ("mlp_only_layers", [1, 2, 5], [1, 2]),
        ("moe_layers", [5, 2], [2, 1]),
        ("attn_layer_indices", [0, 4], [0]),
        ("layers_block_type", [["x"], "b", ["y"], "d", "e", "f"], [["x"], ["y"], "f"]),
        ("attention_types", [[["g", "l"], 3]], [[["g", "g", "l"], 1]]),
        ("layer_scales", {"0": {"a": 1}, "5": {"a": 2}, "3": {"a": 3}}, {"0": {"a": 1}, "2": {"a": 2}}),
    ],
)
def test_lists_by_name(name: str, value: Any, expected: Any) -> None:
    cut = cut_config(llama(**{name: value}), 6, KEPT)
    assert value_at(cut.config, name) == expected
    assert cut.changed[name] == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eos_token_id", [1, 2, 3, 4, 5, 6]),
        ("lucky_numbers", [1, 2, 3, 4, 5, 6]),
        ("stop_token_ids", [1, 2, 3, 4, 5, 5]),
        ("vision_feature_layers", [-1, -2, -3, -4, -5, -6]),
        ("layer_types_allowed", ["a", "b", "c", "d", "e"]),
        ("tags", {"0": "a", "5": "b"}),
    ],
)
def test_unrelated_lists_of_the_same_length_stay(name: str, value: Any) -> None:
    cut = cut_config(llama(**{name: value}), 6, KEPT)
    assert value_at(cut.config, name) == value
    assert cut.changed == {"num_hidden_layers": 3}


def test_rotary_factors_as_many_as_layers_stay() -> None:
    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 16, "factor": 2.0,
    }  # fmt: skip
    config = LlamaConfig(num_hidden_layers=4, num_attention_heads=4, hidden_size=32, rope_parameters=rope)
    cut = cut_config(config, 4, (0, 3))
    assert cut.config.rope_parameters["short_factor"] == [1.0, 1.1, 1.2, 1.3]


def test_a_period_becomes_the_list_that_the_class_reads() -> None:
    cut = cut_config(CONFIGS["gemma3"](), 6, (0, 1, 3, 5))
    assert cut.config.layer_types == ["sliding_attention"] * 3 + ["full_attention"]
    assert type(cut.config).from_dict(cut.config.to_dict()).layer_types == cut.config.layer_types


def test_counts_from_one_end_are_counted_again() -> None:
    config = Qwen2Config(num_hidden_layers=6, use_sliding_window=True, sliding_window=8, max_window_layers=4)
    assert cut_config(config, 6, (0, 2, 4, 5)).config.max_window_layers == 2
    shared = CONFIGS["gemma3n"](num_kv_shared_layers=2)
    assert cut_config(shared, 6, (0, 1, 2, 3, 5)).config.num_kv_shared_layers == 1


def test_every_nth_layer_sparse_becomes_a_list() -> None:
    config = CONFIGS["qwen3_moe"]()  # step 2, so 0, 2 and 4 are dense, and so is 3 by the list
    cut = cut_config(config, 6, (1, 2, 3, 5))
    assert (cut.config.decoder_sparse_step, cut.config.mlp_only_layers) == (1, [1, 2])


def test_layer_numbers_and_lists_of_the_class() -> None:
    config = Lfm2Config(num_hidden_layers=6, full_attn_idxs=[2, 5])
    cut = cut_config(config, 6, KEPT)
    assert (cut.config.full_attn_idxs, cut.config.layer_types) == ([1, 2], ["conv", "full_attention", "full_attention"])


def test_overrides_by_layer_are_renumbered() -> None:
    config = llama(per_layer_config={1: {"intermediate_size": 16}, 5: {"intermediate_size": 24}})
    cut = cut_config(config, 6, KEPT)
    assert [part.intermediate_size for part in cut.config.per_layer_config] == [11008, 11008, 24]
    assert value_at(cut.config, "per_layer_config") == {"2": {"intermediate_size": 24}}


def test_only_the_language_model_of_a_composite_is_cut() -> None:
    text = {"num_hidden_layers": 6, "sliding_window_pattern": 3, "num_attention_heads": 4, "hidden_size": 32}
    config = Gemma3Config(text_config=text, vision_config={"num_hidden_layers": 6})
    cut = cut_config(config, 6, KEPT)
    assert cut.config.text_config.num_hidden_layers == len(cut.config.text_config.layer_types) == 3
    assert cut.config.vision_config.num_hidden_layers == 6
    assert set(cut.changed) == {"text_config.num_hidden_layers", "text_config.layer_types"}


def test_a_count_that_is_not_known_is_refused() -> None:
    with pytest.raises(LeadlineError, match=r"has 5 blocks.*num_hidden_layers=6.*skipped without saving"):
        cut_config(llama(), 5, (0, 2))
