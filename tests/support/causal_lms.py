"""More tiny Hugging Face models, of families that differ in how a block is laid out; see `tiny_hub_models`."""

from __future__ import annotations

from typing import Any

import tiny_hub_models
import torch

BLOCKS = 3

_COMMON: dict[str, Any] = {
    "vocab_size": tiny_hub_models.VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_OWN_NAMES = {
    key: value
    for key, value in _COMMON.items()
    if key not in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
}
_GPTJ = {"n_embd": 32, "n_head": 4, "n_layer": BLOCKS, "n_positions": 64, "rotary_dim": 4}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _COMMON),
    "qwen2": ("Qwen2Config", _COMMON),
    "qwen3": ("Qwen3Config", {**_COMMON, "head_dim": 8}),
    "gpt2": ("GPT2Config", {**_OWN_NAMES, "n_embd": 32, "n_head": 4, "n_layer": BLOCKS, "n_positions": 64}),
    "gpt_neox": ("GPTNeoXConfig", _COMMON),
    "gpt_neox_serial": ("GPTNeoXConfig", {**_COMMON, "use_parallel_residual": False}),
    "gemma": ("GemmaConfig", {**_COMMON, "head_dim": 8}),
    "gemma2": ("Gemma2Config", {**_COMMON, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}),
    "gemma3": (
        "Gemma3TextConfig",
        {**_COMMON, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4, "sliding_window_pattern": 2},
    ),
    "mistral": ("MistralConfig", {**_COMMON, "sliding_window": 4}),
    "opt": ("OPTConfig", {**_COMMON, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "opt_post_norm": (
        "OPTConfig",
        {**_COMMON, "ffn_dim": 48, "word_embed_proj_dim": 16, "do_layer_norm_before": False},
    ),
    "phi": ("PhiConfig", _COMMON),
    "phi3": ("Phi3Config", _COMMON),
    "olmo": ("OlmoConfig", _COMMON),
    "olmo2": ("Olmo2Config", _COMMON),
    "falcon": (
        "FalconConfig",
        {**_COMMON, "multi_query": True, "parallel_attn": True},
    ),
    "falcon_serial": ("FalconConfig", {**_COMMON, "multi_query": True, "parallel_attn": False}),
    "falcon_two_norms": ("FalconConfig", {**_COMMON, "num_kv_heads": 2, "new_decoder_architecture": True}),
    "stablelm": ("StableLmConfig", _COMMON),
    "cohere": ("CohereConfig", {**_COMMON, "logit_scale": 0.25}),
    "granite": (
        "GraniteConfig",
        {**_COMMON, "residual_multiplier": 0.22, "logits_scaling": 8.0, "embedding_multiplier": 3.0},
    ),
    "smollm3": ("SmolLM3Config", _COMMON),
    "bloom": ("BloomConfig", {**_OWN_NAMES, "hidden_size": 32, "n_head": 4, "n_layer": BLOCKS}),
    "mpt": ("MptConfig", {**_OWN_NAMES, "d_model": 32, "n_heads": 4, "n_layers": BLOCKS, "max_seq_len": 64}),
    "gptj": ("GPTJConfig", {**_OWN_NAMES, **_GPTJ}),
    "gpt_bigcode": ("GPTBigCodeConfig", {**_OWN_NAMES, "n_embd": 32, "n_head": 4, "n_layer": BLOCKS}),
    "starcoder2": ("Starcoder2Config", _COMMON),
    "mixtral": ("MixtralConfig", {**_COMMON, "num_local_experts": 4}),
    "granite_moe_shared": (
        "GraniteMoeSharedConfig",
        {**_COMMON, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 16},
    ),
    "glm4": ("Glm4Config", {**_COMMON, "head_dim": 8}),
}


def make(family: str, **changes: Any) -> Any:
    """A model of the family with large, untied, random weights in float64, in evaluation mode."""
    import transformers

    name, options = FAMILIES[family]
    return tiny_hub_models.build(getattr(transformers, name)(**{**options, **changes}))


def tokens(time: int = 10, batch: int = 2) -> torch.Tensor:
    """Tokens (batch, time) int64, away from special ones."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, tiny_hub_models.VOCAB, (batch, time), generator=generator)
