"""Small decoders of every connection and every norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled import IN_MODELS
from connection_examples import EXAMPLES
from torch import Tensor

from leadline import norms
from leadline.connections import Additive
from leadline.models import AttentionConfig, Decoder, DecoderConfig, LayerConfig, MLPConfig

NORMS = {
    "rmsnorm": norms.RMSNorm(),
    "layernorm": norms.LayerNorm(),
    "dyt": norms.DyT(),
    "derf": norms.Derf(),
    "bhyt": norms.BHyT(),
    "bhyt-exact": norms.BHyT(approximate=False),
    "bhyt-unit": norms.BHyT(gain_init="unit"),
    "bhyt-position-aware": norms.BHyT(position_aware=True),
}

WITH_EVERY_NORM = ("additive", "attnres-block", "mgr-competitive")
"""Each other connection meets two norms, and each norm six or more connections."""
VOCAB_SIZE = 61
RMS_NORM = norms.RMSNorm()

MakeConfig = Callable[..., DecoderConfig]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    compiled = metafunc.module.__name__.endswith("test_compile")
    examples = {name: EXAMPLES[name] for name in IN_MODELS} if compiled else EXAMPLES
    if {"connection", "norm"} <= set(metafunc.fixturenames):
        pairs = {
            f"{connection}-{norm}": (examples[connection], NORMS[norm])
            for i, connection in enumerate(examples)
            for j, norm in enumerate(NORMS)
            if connection in WITH_EVERY_NORM or (i + j) % 4 == 0
        }
        metafunc.parametrize(("connection", "norm"), list(pairs.values()), ids=list(pairs))
        return
    for name, values in (("connection", examples), ("norm", NORMS)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, list(values.values()), ids=list(values))


@pytest.fixture
def make_config() -> MakeConfig:
    """`make_config(blocks=3, norm=..., layer={...}, **decoder options)`."""

    def make(
        *, blocks: int = 3, norm: Any = RMS_NORM, layer: dict[str, Any] | None = None, **options: Any
    ) -> DecoderConfig:
        settings: dict[str, Any] = {
            "attention": AttentionConfig(heads=4, kv_heads=2, head_dim=6),
            "mlp": MLPConfig(hidden=20),
            "attention_norm": norm,
            "mlp_norm": norm,
        }
        block = LayerConfig(**settings | (layer or {}))
        defaults: dict[str, Any] = {
            "vocab_size": VOCAB_SIZE,
            "dim": 18,
            "layers": (block,) * blocks,
            "connection": Additive(),
            "final_norm": norm,
            "context": 32,
        }
        return DecoderConfig(**defaults | options)

    return make


@pytest.fixture
def tokens() -> Tensor:
    """(2, 13) tokens."""
    return torch.randint(VOCAB_SIZE, (2, 13), generator=torch.Generator().manual_seed(3))


@pytest.fixture
def lively() -> Callable[..., Decoder]:
    """A decoder with large, untied random weights everywhere, so that nothing is at its start and every path counts."""

    def make(config: DecoderConfig, dtype: torch.dtype = torch.float64) -> Decoder:
        assert not config.tied
        model = Decoder(config, dtype=dtype)
        generator = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(0.3 * noise.to(parameter.dtype))
        model.refresh_statistics()
        return model

    return make
