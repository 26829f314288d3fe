"""For every architecture: passing by, cutting, and loading again say the same, with the cache and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from leadline.hub.saving import save_pruned
from leadline.hub.surgery import find_blocks
from leadline.stacks.bypass import bypassing

REMOVED = {"gemma3n": [0]}
"""Gemma 3n's last layers read the cache of earlier ones, so not all of its blocks can go."""


def test_pass_through_surgery_and_reload_agree(model: Any, tokens: Tensor, generate: Any, tmp_path: Path) -> None:
    name = model.config.model_type
    removed = REMOVED.get(name.removesuffix("_text"), [1, 3])
    _, blocks = find_blocks(model)
    before = len(blocks)
    with torch.no_grad():
        whole = model(tokens, use_cache=False).logits
        with bypassing(blocks, removed):
            passed = model(tokens, use_cache=False).logits
    assert not torch.allclose(whole, passed, rtol=1e-2)

    saved = save_pruned(model, removed, tmp_path / "cut", tokens=tokens)

    with torch.no_grad():
        torch.testing.assert_close(model(tokens, use_cache=False).logits, whole, rtol=0, atol=0)
    assert saved.kept == tuple(block for block in range(before) if block not in removed)
    assert saved.parameters < saved.parameters_before
    loaded = AutoModelForCausalLM.from_pretrained(
        tmp_path / "cut", dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    with torch.no_grad():
        fresh = loaded(tokens, use_cache=False).logits
    torch.testing.assert_close(fresh, passed, rtol=0, atol=1e-10 * float(passed.abs().max()))
    stepwise = generate(loaded, tokens)
    torch.testing.assert_close(stepwise, fresh, rtol=0, atol=1e-4 * float(fresh.abs().max()))
    _check_numbers(loaded, len(saved.kept))
    _check_lists(tmp_path / "cut", model.config, saved.kept)


def _check_numbers(model: Any, kept: int) -> None:
    _, blocks = find_blocks(model)
    assert len(blocks) == kept == model.config.num_hidden_layers
    for position, block in enumerate(blocks):
        numbers = {
            vars(part)[key] for part in block.modules() for key in ("layer_idx", "layer_id") if key in vars(part)
        }
        assert numbers <= {position}


def _check_lists(folder: Path, config: Any, kept: tuple[int, ...]) -> None:
    """Every list that was as long as the blocks were many is that of the blocks kept, on disk."""
    written = json.loads((folder / "config.json").read_text())
    names = ("layer_types", "no_rope_layers", "intermediate_size", "activation_sparsity_pattern", "attention_layers")
    for name in names:
        old = getattr(config, name, None)
        if isinstance(old, list):
            assert written[name] == [old[block] for block in kept], name
