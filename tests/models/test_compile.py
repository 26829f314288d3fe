"""Two blocks of every design compile without graph breaks, with equal results and gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from leadline.connections import MultiGate
from leadline.designs import PRESETS, resolve
from leadline.models import Decoder, DecoderConfig, RepeatConfig, cut
from leadline.norms import NormConfig

MakeConfig = Callable[..., DecoderConfig]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def check(model: Decoder, tokens: Tensor) -> None:
    parameters = list(model.parameters())
    results = []
    for call in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        logits = call(tokens)
        gradients = torch.autograd.grad(logits.square().sum(), parameters, allow_unused=True)
        results.append([logits, *(g for g in gradients if g is not None)])
    assert len(results[0]) == len(results[1])
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(*results, strict=True))


def test_every_connection(
    make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Callable[..., Decoder]
) -> None:
    check(lively(make_config(blocks=2, connection=connection, tied=False)), tokens)


def test_every_norm(make_config: MakeConfig, norm: NormConfig, tokens: Tensor, lively: Callable[..., Decoder]) -> None:
    check(lively(make_config(blocks=2, norm=norm, tied=False)), tokens)


def test_what_was_cut_and_what_repeats(make_config: MakeConfig, tokens: Tensor, lively: Callable[..., Decoder]) -> None:
    options: dict[str, Any] = {"connection": MultiGate(streams=2, gate_init="prenorm"), "tied": False}
    check(cut(lively(make_config(blocks=3, **options)), {1, 2, 3}), tokens)
    check(lively(make_config(blocks=2, repeat=RepeatConfig(last=1, times=2), **options)), tokens)


def test_exits(make_config: MakeConfig, tokens: Tensor, lively: Callable[..., Decoder]) -> None:
    model = lively(make_config(blocks=2, connection=MultiGate(streams=2, gate_init="prenorm"), tied=False))
    compiled = torch.compile(model.exits, fullgraph=True, backend="aot_eager")
    for found, expected in zip(compiled(tokens, [0, 1], skip=[2]), model.exits(tokens, [0, 1], skip=[2]), strict=True):
        assert torch.allclose(found, expected, atol=1e-9)


def test_blocks_compile_on_their_own(make_config: MakeConfig, tokens: Tensor) -> None:
    model = Decoder(make_config(blocks=2))
    expected = model(tokens)
    for block in model.blocks:
        block.compile(fullgraph=True, backend="aot_eager")
    assert torch.allclose(model(tokens), expected, atol=1e-6)


@pytest.mark.parametrize("design", ["prenorm", "mgr-competitive", "attnres-block"])
def test_other_numbers_of_sequences_and_tokens(design: str) -> None:
    """Sizes that become symbols: nothing in a model may need them as numbers."""
    shape = dataclasses.replace(PRESETS["tiny"].shape, blocks=2, dim=24, heads=2, kv_heads=2, head_dim=12, hidden=32)
    model = Decoder(resolve(design).decoder(shape, 64))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for batch, time in ((2, 8), (3, 9), (4, 11)):
        tokens = torch.randint(64, (batch, time), generator=torch.Generator().manual_seed(time))
        logits = compiled(tokens)
        logits.sum().backward()
        assert torch.allclose(logits, model(tokens), atol=1e-5)
