"""A Llama with its own number of heads in every layer, listed in the configuration, as some pruned models have."""

from __future__ import annotations

import copy
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention


class HeadsConfig(LlamaConfig):
    model_type = "heads_per_layer"
    heads_of_layers: list[int] | None = None
    kv_heads: list[int] | None = None
    lucky_numbers: list[int] | None = None


class HeadsForCausalLM(LlamaForCausalLM):
    config_class = HeadsConfig

    def __init__(self, config: HeadsConfig) -> None:
        super().__init__(config)
        for number, layer in enumerate(self.model.layers):
            own: Any = copy.copy(config)
            own.num_attention_heads = config.heads_of_layers[number]
            own.num_key_value_heads = config.kv_heads[number]
            layer.self_attn = LlamaAttention(own, number)
        self.post_init()


def register() -> None:
    """Makes the automatic classes know it."""
    AutoConfig.register("heads_per_layer", HeadsConfig, exist_ok=True)
    AutoModelForCausalLM.register(HeadsConfig, HeadsForCausalLM, exist_ok=True)
