"""Models: a Llama-like decoder from a list of per-layer configurations, and generation with it."""

from leadline.models.block import Block
from leadline.models.config import (
    AttentionConfig,
    CutConfig,
    DecoderConfig,
    InitConfig,
    LayerConfig,
    MLPConfig,
    RepeatConfig,
)
from leadline.models.decoder import Decoder
from leadline.models.early_exit import EarlyExit, ExitStatistics, stream_early
from leadline.models.fold import fold
from leadline.models.generation import Sampling, generate, stream_tokens
from leadline.models.layers import KVCache
from leadline.models.surgery import cut, cut_config, kept_blocks, sublayers_of

__all__ = [
    "AttentionConfig",
    "Block",
    "CutConfig",
    "Decoder",
    "DecoderConfig",
    "EarlyExit",
    "ExitStatistics",
    "InitConfig",
    "KVCache",
    "LayerConfig",
    "MLPConfig",
    "RepeatConfig",
    "Sampling",
    "cut",
    "cut_config",
    "fold",
    "generate",
    "kept_blocks",
    "stream_early",
    "stream_tokens",
    "sublayers_of",
]
