"""Exits after any block in one forward pass: what the head would read of a model that ends there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from leadline.errors import UsageError
from leadline.models import Decoder, DecoderConfig, RepeatConfig, cut, sublayers_of
from leadline.norms import NormConfig, RMSNorm

MakeConfig = Callable[..., DecoderConfig]
Lively = Callable[..., Decoder]


def grads(model: Decoder, outputs: list[Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    torch.stack([x.square().sum() * (place + 1) for place, x in enumerate(outputs)]).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_every_exit_is_a_model_that_ends_there(
    make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively
) -> None:
    model = lively(make_config(blocks=4, connection=connection, norm=RMSNorm(eps=0.05), tied=False))
    found = model.exits(tokens, [3, 0, 2, 0])
    assert torch.equal(found[0], model.hidden(tokens))
    for block, hidden in zip((3, 0, 2, 0), found, strict=True):
        behind = sublayers_of(model.config, range(block + 1, 4))
        assert torch.equal(hidden, model.hidden(tokens, skip=behind))
        assert torch.equal(hidden, cut(model, behind).hidden(tokens))
    skipped = model.exits(tokens, [1, 3], skip={2, 5})
    assert torch.equal(skipped[0], model.hidden(tokens, skip={2, 4, 5, 6, 7}))
    assert torch.equal(skipped[1], model.hidden(tokens, skip={2, 5}))


def test_gradients_flow_from_all_exits(
    make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively
) -> None:
    """With recomputation too, and with streams that are computed backwards (memory="invert")."""
    model = lively(make_config(blocks=4, connection=connection, tied=False))
    blocks = [0, 2, 3]
    apart = [model.hidden(tokens, skip=sublayers_of(model.config, range(block + 1, 4))) for block in blocks]
    expected = grads(model, apart)
    for recompute in (False, True):
        model.recompute = recompute
        found = grads(model, model.exits(tokens, blocks))
        assert found.keys() == expected.keys()
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-9)
    model.recompute = False
    found = grads(model, model.exits(tokens, blocks)[1:2])
    expected = grads(model, apart_of(model, tokens, 2))
    assert all(torch.allclose(found[name], expected[name], rtol=1e-9, atol=1e-9) for name in expected)


def apart_of(model: Decoder, tokens: Tensor, block: int) -> list[Tensor]:
    behind = sublayers_of(model.config, range(block + 1, len(model.blocks)))
    return [model.hidden(tokens, skip=behind)]


def test_every_norm(make_config: MakeConfig, norm: NormConfig, tokens: Tensor, lively: Lively) -> None:
    model = lively(make_config(norm=norm, tied=False))
    assert torch.equal(model.exits(tokens, [1])[0], apart_of(model, tokens, 1)[0])


def test_exits_of_blocks_that_repeat(make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively) -> None:
    model = lively(make_config(connection=connection, repeat=RepeatConfig(last=1, times=3), tied=False))
    found = model.exits(tokens, range(5))
    assert torch.equal(found[-1], model.hidden(tokens))
    assert torch.equal(found[2], model.hidden(tokens, skip=range(6, 10)))


def test_reading_ahead_past_an_exit(make_config: MakeConfig, tokens: Tensor, lively: Lively) -> None:
    from leadline.connections import AttentionResiduals

    for size in (1, 3, 4):
        model = lively(make_config(connection=AttentionResiduals(block_size=size), tied=False))
        expected = model.exits(tokens, [0, 1, 2])
        model.prefetch = True
        for ahead, plain in zip(model.exits(tokens, [0, 1, 2]), expected, strict=True):
            assert torch.allclose(ahead, plain, atol=1e-10)


def test_exits_that_are_not_there(make_config: MakeConfig, tokens: Tensor) -> None:
    model = Decoder(make_config())
    assert model.exits(tokens, []) == []
    for block in (3, -1):
        with pytest.raises(UsageError, match=f"block {block} is not an exit; this model has blocks 0 to 2"):
            model.exits(tokens, [0, block])
    with pytest.raises(UsageError, match="skip=6"):
        model.exits(tokens, [2], skip=[6])
