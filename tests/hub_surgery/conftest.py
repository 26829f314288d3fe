"""Tiny models, one per architecture, and generation checked by hand."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from tiny_hub_models import CONFIGS, build
from torch import Tensor

ARCHITECTURES = sorted(CONFIGS)


@pytest.fixture(params=ARCHITECTURES)
def model(request: pytest.FixtureRequest) -> Any:
    """A tiny model in float64 with large, untied weights."""
    return build(CONFIGS[request.param]())


@pytest.fixture
def tokens() -> Tensor:
    """(2, 20) tokens: longer than the windows of 8."""
    return torch.randint(3, 61, (2, 20), generator=torch.Generator().manual_seed(3))


@pytest.fixture
def generate() -> Any:
    """Feeds tokens one by one into the cache and returns the logits of every step, (B, T, V)."""

    def stepwise(model: Any, tokens: Tensor) -> Tensor:
        name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        cache, logits = None, []
        with torch.no_grad():
            for step in range(tokens.shape[1]):
                output = model(input_ids=tokens[:, step : step + 1], use_cache=True, **{name: cache})
                cache = output[name]
                logits.append(output.logits)
        return torch.cat(logits, dim=1)

    return stepwise
