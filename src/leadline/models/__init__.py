"""Models: a Llama-like decoder from a list of per-layer configurations, and generation with it."""

from leadline.models.block import Block
from leadline.models.cache import KVCache
from leadline.models.config import AttentionConfig, DecoderConfig, InitConfig, LayerConfig, MLPConfig
from leadline.models.decoder import Decoder
from leadline.models.fold import fold
from leadline.models.generation import Sampling, generate, stream_tokens

__all__ = [
    "AttentionConfig",
    "Block",
    "Decoder",
    "DecoderConfig",
    "InitConfig",
    "KVCache",
    "LayerConfig",
    "MLPConfig",
    "Sampling",
    "fold",
    "generate",
    "stream_tokens",
]
