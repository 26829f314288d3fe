"""The gradient share of a Hugging Face model in a loop of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leadline.errors import UsageError
from leadline.training import Diversity, GradientShare, effective_ranks, load_gradient

transformers = pytest.importorskip("transformers")


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=13,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


def neox() -> nn.Module:
    config = transformers.GPTNeoXConfig(
        vocab_size=13, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2
    )
    torch.manual_seed(0)
    model: nn.Module = transformers.GPTNeoXForCausalLM(config)
    return model


def norm(model: nn.Module, start: str) -> float:
    grads = [p.grad.flatten() for name, p in model.named_parameters() if name.startswith(start) and p.grad is not None]
    return float(torch.cat(grads).norm())


def tokens(seed: int) -> Tensor:
    return torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("make", "start", "blocks"), [(llama, "model.layers", 3), (neox, "gpt_neox.layers", 2)])
def test_a_hugging_face_model(make: Any, start: str, blocks: int, tmp_path: Path) -> None:
    """The lines of the docs; clipping comes after the share is read, so it changes nothing."""
    model = make()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    share, diversity = GradientShare(model), None
    sums = torch.zeros(blocks, dtype=torch.float64)
    for step in range(1, 4):
        model(tokens(step), labels=tokens(step)).loss.backward()
        share.add(share.measure())
        if step == 3:
            diversity = Diversity(share)
            diversity.add()
            share.note({"step": step, "effective_rank": effective_ranks(share), "cosine": diversity.cosines()})
        sums += torch.tensor([norm(model, f"{start}.{block}.") for block in range(blocks)], dtype=torch.float64)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimiser.step()
        optimiser.zero_grad()
    share.save(tmp_path)
    found = load_gradient(tmp_path)
    assert found["share"] == pytest.approx((sums / sums.sum()).tolist(), rel=1e-5)
    assert found["units"]["sublayer"][:2] == ["0.attention", "0.mlp"]
    assert found["parameters_without_gradient"] == []
    sizes = [
        sum(p.numel() for n, p in model.named_parameters() if n.startswith(f"{start}.{b}.")) for b in range(blocks)
    ]
    assert found["parameters"]["block"] == sizes
    (detail,) = found["details"]
    assert all(rank > 1 for rank in detail["effective_rank"])


def test_what_is_no_stack_of_blocks() -> None:
    with pytest.raises(UsageError):
        GradientShare(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
