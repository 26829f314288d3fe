"""SmolLM2-135M, a trained model: probed, pruned by every criterion that reads data, loaded again, and generating.

LEADLINE_REAL=1 or LEADLINE_SMOLLM2=FOLDER runs it; LEADLINE_REAL_SHORT=1 takes one criterion and few tokens.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from leadline.data import load_tokenizer
from leadline.hub import training_batches
from leadline.hub.agreement import logits_of
from leadline.hub.surgery import find_blocks
from leadline.probes.measure_stack import measure_stack
from leadline.pruning import Amount, EvaluationSettings, PruneConfig, dataset_for, open_model, prune
from leadline.pruning.cutting import parameters_of
from leadline.stacks.bypass import bypassing

pytestmark = pytest.mark.real

SHORT = os.environ.get("LEADLINE_REAL_SHORT") == "1"
CRITERIA = ("similarity",) if SHORT else ("similarity", "angular", "taylor", "magnitude", "ablation", "random")
CONTEXT = 128
CALIBRATION, HELDOUT = (256, 512) if SHORT else (512, 2048)
READING = EvaluationSettings(context=CONTEXT, stride=CONTEXT, tokens=HELDOUT, batch_size=4)
REMOVED = 3
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def opened(smollm2: Path) -> Any:
    return open_model(smollm2)


@pytest.fixture(scope="module")
def data(opened: Any) -> Any:
    return dataset_for(opened, "sotu")


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, use_safetensors=True, dtype=torch.float32
    ).eval()


def say_on(folder: Path, model: Any) -> str:
    """What the model makes of the prompt, greedily."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    asked = tokenizer(PROMPT, return_tensors="pt")
    answer = model.generate(**asked, max_new_tokens=8, do_sample=False)
    return tokenizer.decode(answer[0, asked["input_ids"].shape[1] :])


def test_it_is_the_trained_model(smollm2: Path, opened: Any) -> None:
    assert opened.stack.blocks == 30
    assert parameters_of(opened.stack) == 134_515_008
    assert "Paris" in say_on(smollm2, opened.stack.model)


def test_probes(opened: Any, data: Any) -> None:
    batches = training_batches(
        opened, data, context=READING.context, tokens=CONTEXT, batch_size=READING.batch_size, seed=0
    )
    found = measure_stack(opened.stack, batches, parts=["activations", "similarity", "lens"])
    assert len(found["similarity"]["block_influence"]) == 30
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_pruned_by(criterion: str, smollm2: Path, opened: Any, data: Any, tmp_path: Path) -> None:
    wish = PruneConfig(
        criterion=criterion,
        amount=Amount(count=REMOVED, protect_first=1, protect_last=1),
        evaluation=READING,
        calibration_tokens=CALIBRATION,
    )
    record = prune(opened, data, wish, tmp_path / "cut")
    removed = [int(unit) for unit in record["cut"]]
    assert len(removed) == REMOVED
    print(f"{criterion}: blocks {removed}, {record['before']['perplexity']:.2f} → {record['after']['perplexity']:.2f}")

    loaded = load(tmp_path / "cut")
    assert loaded.config.num_hidden_layers == len(find_blocks(loaded)[1]) == 30 - REMOVED
    assert [layer.self_attn.layer_idx for layer in loaded.model.layers] == list(range(30 - REMOVED))
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    tokens = torch.from_numpy(load_tokenizer(smollm2).encode(PROMPT))[None].long()
    whole = opened.stack.model
    with bypassing(find_blocks(whole)[1], removed):
        expected = logits_of(whole, tokens)
    torch.testing.assert_close(logits_of(loaded, tokens), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert say_on(tmp_path / "cut", loaded)
