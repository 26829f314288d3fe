"""Blocks of one shape share compiled code: as many compilations as there are kinds of layers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from leadline.designs import ShapeConfig, resolve
from leadline.models import Decoder, KVCache, RepeatConfig
from leadline.models.compiling import compile_blocks

SHAPE = ShapeConfig(dim=24, blocks=12, heads=6, kv_heads=6, head_dim=4, hidden=96, context=8)
TOKENS = torch.arange(16).remainder(17).view(2, 8)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counting:
    """A backend that compiles nothing and counts how often it is asked to."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.count += 1
        return graph.forward


def built(design: str) -> Decoder:
    return Decoder(resolve(design).decoder(SHAPE, 17))


@pytest.mark.parametrize(
    ("design", "shapes"),
    [
        ("prenorm", 1),
        ("cascade-a1", 2),
        ("cascade-a2", 3),
        ("cascade-middle", 3),
        ("cascade-a2 + bhyt", 3),
        ("cascade-f1", 7),
        ("taper(mlp=1:8:7:6:5:4:3:2:1/2:1/4:1/3:1/6)", 12),
    ],
)
def test_as_many_compilations_as_distinct_layer_shapes(design: str, shapes: int) -> None:
    """More than the eight recompilations that one function is allowed, too."""
    model, backend = built(design), Counting()
    expected = model(TOKENS)
    assert len({(layer.attention, layer.mlp) for layer in model.config.layers}) == shapes
    assert compile_blocks(model, backend=backend) == shapes
    assert torch.allclose(model(TOKENS), expected, atol=1e-5)
    model(TOKENS).sum().backward()
    assert backend.count == shapes


def test_factors_of_layer_norm_scaling_share_code() -> None:
    model, backend = built("lns"), Counting()
    expected = model(TOKENS)
    compile_blocks(model, backend=backend)
    assert torch.allclose(model(TOKENS), expected, atol=1e-5)
    # Once for the first block, and once more with the factor as a variable.
    assert backend.count == 2


def test_gradients_hooks_copies_and_generation() -> None:
    model = built("cascade-a2")
    parameters = list(model.parameters())
    expected = torch.autograd.grad(model(TOKENS).square().sum(), parameters)
    backend = Counting()
    compile_blocks(model, backend=backend)
    found = torch.autograd.grad(model(TOKENS).square().sum(), parameters)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, expected, strict=True))
    seen: list[int] = []
    model.blocks[3].register_forward_hook(lambda *_: seen.append(3))
    before = backend.count
    cache = KVCache()
    cached = [model(token, cache=cache) for token in TOKENS.split(1, dim=1)]
    assert torch.allclose(torch.cat(cached, dim=1), model(TOKENS), atol=1e-5)
    assert backend.count == before
    assert seen == [3] * 9
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.blocks[0].mlp.down.weight.zero_()
    assert not torch.allclose(twin(TOKENS), model(TOKENS), atol=1e-5)
    assert set(model.state_dict()) == set(built("cascade-a2").state_dict())


def test_each_number_of_sources_has_code_of_its_own() -> None:
    """More numbers than the eight recompilations that one function is allowed: layer dropout makes as many."""
    shape = dataclasses.replace(SHAPE, dim=8, blocks=10, heads=2, kv_heads=2, hidden=8)
    model, backend = Decoder(resolve("attnres").decoder(shape, 17)), Counting()
    choices = [range(2 * dropped) for dropped in range(10)]
    expected = [model(TOKENS, skip=skip) for skip in choices]
    compile_blocks(model, backend=backend)
    for block in model.blocks[:-1]:
        del block.forward
    for skip, logits in zip(choices, expected, strict=True):
        assert torch.allclose(model(TOKENS, skip=skip), logits, atol=1e-5)
    assert backend.count == len(choices)
    # A block that is left out has nothing to compile.
    model(TOKENS, skip=[18, 19])
    assert backend.count == len(choices)


def test_blocks_that_repeat_others_of_unlike_widths_are_unlike() -> None:
    config = resolve("cascade-a2").decoder(dataclasses.replace(SHAPE, blocks=3), 17)
    model, backend = Decoder(dataclasses.replace(config, repeat=RepeatConfig(last=2, times=2))), Counting()
    expected = model(TOKENS)
    kinds = compile_blocks(model, backend=backend)
    assert torch.equal(model(TOKENS), expected)
    assert backend.count == kinds == 5
