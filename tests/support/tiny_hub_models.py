"""Tiny Hugging Face causal language models with large random weights, so that any wrong number shows in the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

VOCAB, BLOCKS = 61, 6

_LLAMA_LIKE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MIXED = ["sliding_attention", "full_attention", "full_attention"] * 2


def build(config: Any, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """A model with normal weights: matrices of size 0.5, norms around one, everything else 0.1."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
            if parameter.dim() >= 2:
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_((1.0 if "norm" in name or "ln_" in name else 0.0) + 0.1 * noise)
    return model


def _config(name: str, base: dict[str, Any] = _LLAMA_LIKE, **changes: Any) -> Callable[..., Any]:
    def make(**more: Any) -> Any:
        import transformers

        return getattr(transformers, name)(**{**base, **changes, **more})

    return make


_GPT2: dict[str, Any] = {
    "vocab_size": VOCAB,
    "n_positions": 128,
    "n_embd": 32,
    "n_layer": BLOCKS,
    "n_head": 4,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

CONFIGS: dict[str, Callable[..., Any]] = {
    "llama": _config("LlamaConfig"),
    "qwen2": _config("Qwen2Config", use_sliding_window=True, sliding_window=8, max_window_layers=3),
    "qwen3": _config("Qwen3Config", head_dim=8, layer_types=_MIXED, use_sliding_window=True, sliding_window=8),
    "gpt2": _config("GPT2Config", _GPT2),
    "gpt_neox": _config("GPTNeoXConfig"),
    "gpt_neo": _config(
        "GPTNeoConfig",
        {key: value for key, value in _LLAMA_LIKE.items() if key not in ("num_hidden_layers", "num_attention_heads")},
        num_layers=BLOCKS,
        num_heads=4,
        window_size=8,
        attention_types=[[["global", "local"], 3]],
    ),
    "gemma2": _config("Gemma2Config", head_dim=8, query_pre_attn_scalar=8, sliding_window=8),
    "gemma3": _config(
        "Gemma3TextConfig", head_dim=8, query_pre_attn_scalar=8, sliding_window=8, sliding_window_pattern=3
    ),
    "mistral": _config("MistralConfig", sliding_window=8),
    "smollm3": _config("SmolLM3Config", no_rope_layer_interval=3),
    "olmo2": _config("Olmo2Config"),
    "olmo3": _config("Olmo3Config", sliding_window=8),
    "cohere2": _config("Cohere2Config", sliding_window=8, sliding_window_pattern=3),
    "lfm2": _config("Lfm2Config", full_attn_idxs=[2, 5], block_auto_adjust_ff_dim=False),
    "phi3": _config("Phi3Config"),
    "qwen3_moe": _config(
        "Qwen3MoeConfig",
        head_dim=8,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
    ),
    "gemma3n": _config(
        "Gemma3nTextConfig",
        head_dim=8,
        sliding_window=8,
        vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=8,
        laurel_rank=4,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 3,
        intermediate_size=[48, 40, 48, 56, 48, 40],
        activation_sparsity_pattern=[0.5, 0.5, 0.0, 0.0, 0.0, 0.0],
    ),
}
