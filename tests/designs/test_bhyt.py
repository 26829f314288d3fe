"""BHyT inside a model: its constant is saved, prompts of any length agree, and a skipped attention makes it exact."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leadline.designs import ShapeConfig, resolve
from leadline.models import Decoder, KVCache

SHAPE = ShapeConfig(dim=16, blocks=2, heads=4, kv_heads=2, head_dim=6, hidden=24, context=12)
NAMES = ["bhyt", "bhyt-unit", "bhyt(position_aware=true)", "bhyt-exact", "bhyt-exact(with_mean=false)"]


def model_of(expression: str) -> Decoder:
    model = Decoder(resolve(expression).decoder(SHAPE, 33), seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.1)
    model.refresh_statistics()
    return model


@pytest.mark.parametrize("expression", NAMES)
def test_a_reload_gives_the_same_logits_for_a_prompt_of_any_length(expression: str, tmp_path: Path) -> None:
    model = model_of(expression)
    model.save(tmp_path)
    loaded = Decoder.load(tmp_path)
    tokens = torch.arange(7).unsqueeze(0)
    for length in (1, 3, 7):
        torch.testing.assert_close(loaded(tokens[:, :length]), model(tokens[:, :length]), rtol=0, atol=0)
    torch.testing.assert_close(loaded(tokens)[:, :3], loaded(tokens[:, :3]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("expression", NAMES)
def test_token_by_token_equals_in_one_go(expression: str) -> None:
    model = model_of(expression)
    tokens = torch.arange(8).unsqueeze(0)
    whole = model(tokens)
    cache = KVCache(len(model.blocks))
    steps = torch.cat([model(tokens[:, t : t + 1], cache=cache) for t in range(8)], dim=1)
    torch.testing.assert_close(steps, whole, rtol=1e-5, atol=1e-5)


def test_only_the_approximate_form_keeps_a_constant_and_a_forward_pass_leaves_it() -> None:
    model = model_of("bhyt")
    before = {k: v.clone() for k, v in model.state_dict().items() if k.endswith((".c", ".length"))}
    assert len(before) == 2 * SHAPE.blocks
    assert all(v.item() > 0 for v in before.values())
    assert {v.item() for k, v in before.items() if k.endswith(".length")} == {SHAPE.context}
    model(torch.arange(5).unsqueeze(0))
    for name, value in before.items():
        assert torch.equal(model.state_dict()[name], value)
    assert not [k for k in model_of("bhyt + mgr(streams=2)").state_dict() if k.endswith((".c", ".length"))]


def test_a_skipped_attention_makes_the_second_norm_exact() -> None:
    approximate, exact = model_of("bhyt"), Decoder(resolve("bhyt-exact(with_mean=false)").decoder(SHAPE, 33))
    state = {k: v for k, v in approximate.state_dict().items() if not k.endswith((".c", ".length"))}
    exact.load_state_dict(state)
    tokens = torch.arange(6).unsqueeze(0)
    assert not torch.allclose(approximate(tokens), exact(tokens))
    torch.testing.assert_close(approximate(tokens, skip=[0, 2]), exact(tokens, skip=[0, 2]))
