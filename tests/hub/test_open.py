"""Opening models from folders, and saying why one can't be opened."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import save_file

from leadline.data import load_tokenizer
from leadline.errors import LeadlineError, UsageError
from leadline.hub import kind_of, open_model
from leadline.hub.agreement import logits_of
from leadline.models import Decoder
from leadline.stacks import Unit


@torch.no_grad()
def test_a_hugging_face_folder(hugging_face, tokenizer):
    from transformers import AutoModelForCausalLM

    opened = open_model(hugging_face)
    assert (opened.kind, opened.path, opened.begins) == ("hugging-face", hugging_face, None)
    assert opened.tokenizer.hash == tokenizer.hash
    assert opened.stack.blocks == 3
    assert not opened.stack.model.training
    tokens = torch.arange(12).view(2, 6)
    plain = AutoModelForCausalLM.from_pretrained(hugging_face)
    assert torch.equal(opened.stack.logits(tokens), plain(tokens, use_cache=False).logits)
    assert opened.stack.logits(tokens).dtype == torch.float32
    assert open_model(hugging_face, dtype=torch.bfloat16).stack.logits(tokens).dtype == torch.bfloat16


@pytest.mark.parametrize("model_type", ["strange", "llama"])
def test_code_in_the_folder_isnt_run_whatever_is_answered(hugging_face, monkeypatch, tmp_path, model_type):
    """The library asks on the terminal whether to run it, unless it is told."""
    monkeypatch.setattr("builtins.input", lambda *text: "y")
    ran = tmp_path / "ran"
    (hugging_face / "code.py").write_text(f"open({str(ran)!r}, 'w')\nclass Config: ...\nclass Model: ...\n")
    config = json.loads((hugging_face / "config.json").read_text())
    config |= {
        "model_type": model_type,
        "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    }
    (hugging_face / "config.json").write_text(json.dumps(config))
    if model_type == "llama":
        assert type(open_model(hugging_face).stack.model).__name__ == "LlamaForCausalLM"
    else:
        with pytest.raises(LeadlineError, match=r"names code of its own \(auto_map\), which isn't run here"):
            open_model(hugging_face)
    assert not ran.exists()


def test_a_model_of_another_kind_is_refused_in_a_few_words(hugging_face):
    """The library lists the two hundred configurations that it knows."""
    config = json.loads((hugging_face / "config.json").read_text())
    (hugging_face / "config.json").write_text(json.dumps({**config, "model_type": "t5"}))
    with pytest.raises(LeadlineError, match=r"has no causal language model for T5Config$"):
        open_model(hugging_face)


@pytest.mark.parametrize("said", [None, "auto", "torch.bfloat16"])
def test_weights_keep_the_dtype_they_are_stored_in(hugging_face, said):
    open_model(hugging_face, dtype=torch.bfloat16).stack.model.save_pretrained(hugging_face)
    config = json.loads((hugging_face / "config.json").read_text())
    del config["dtype"]
    (hugging_face / "config.json").write_text(json.dumps(config if said is None else {**config, "dtype": said}))
    assert {p.dtype for p in open_model(hugging_face).stack.model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("sharded", [False, True])
def test_a_file_beside_the_model_does_not_decide_its_dtype(hugging_face, sharded):
    model = open_model(hugging_face, dtype=torch.bfloat16).stack.model
    (hugging_face / "model.safetensors").unlink()
    model.save_pretrained(hugging_face, **({"max_shard_size": "20KB"} if sharded else {}))
    assert (hugging_face / "model.safetensors").exists() != sharded
    config = json.loads((hugging_face / "config.json").read_text())
    del config["dtype"]
    (hugging_face / "config.json").write_text(json.dumps(config))
    state = {name: value.float().clone() for name, value in model.state_dict().items()}
    save_file({**state, "more": torch.zeros(1000, 100)}, hugging_face / "ema.safetensors")
    assert {p.dtype for p in open_model(hugging_face).stack.model.parameters()} == {torch.bfloat16}


def test_how_a_configuration_wants_its_outputs_does_not_matter(hugging_face):
    tokens = torch.arange(6)[None]
    expected = open_model(hugging_face).stack.logits(tokens)
    config = json.loads((hugging_face / "config.json").read_text())
    (hugging_face / "config.json").write_text(json.dumps({**config, "return_dict": False}))
    opened = open_model(hugging_face)
    assert torch.equal(opened.stack.logits(tokens), expected)
    assert torch.equal(logits_of(opened.stack.model, tokens), expected)


def test_a_model_that_reads_what_it_should_predict_is_refused(hugging_face, tmp_path):
    """The library loads BERT as a causal language model, whose every token sees all others."""
    from transformers import AutoModelForCausalLM, BertConfig

    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    for causal in (False, True):
        config = BertConfig(vocab_size=296, max_position_embeddings=64, is_decoder=causal, eos_token_id=0, **shape)
        torch.manual_seed(0)
        folder = tmp_path / f"bert-{causal}"
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        shutil.copy(hugging_face / "tokenizer.json", folder)
        if causal:
            assert open_model(folder).stack.blocks == 2
        else:
            with pytest.raises(UsageError, match=r"BertLMHeadModel is not causal.*depends on the tokens behind it"):
                open_model(folder)


@torch.no_grad()
def test_a_folder_of_our_own(leadline):
    opened = open_model(leadline)
    assert (opened.kind, opened.stack.blocks, opened.begins) == ("leadline", 3, None)
    tokens = torch.arange(12).view(2, 6)
    assert torch.equal(opened.stack.logits(tokens), Decoder.load(leadline).eval()(tokens))
    with opened.stack.skipping([Unit(1)]):
        assert torch.equal(opened.stack.logits(tokens), Decoder.load(leadline).eval()(tokens, skip=[2, 3]))


def test_what_a_folder_is(hugging_face, leadline, tmp_path):
    assert kind_of(hugging_face) == "hugging-face"
    assert kind_of(leadline) == "leadline"
    (leadline / "run.json").write_text("{}")
    assert kind_of(leadline) == "run"
    with pytest.raises(UsageError, match=r"gpt2 is not a folder.*Nothing is downloaded"):
        kind_of("gpt2")
    with pytest.raises(UsageError, match="holds no model"):
        kind_of(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(LeadlineError, match="should hold an object"):
        kind_of(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickled_weights_are_refused(hugging_face, name):
    (hugging_face / "model.safetensors").rename(hugging_face / name)
    with pytest.raises(UsageError, match=rf"pickles \({name}\).*run any code.*safetensors"):
        open_model(hugging_face)
    (hugging_face / name).unlink()
    with pytest.raises(UsageError, match="no weights"):
        open_model(hugging_face)


def test_without_transformers_it_is_told_how_to_get_it(hugging_face, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(LeadlineError, match=r'need the package transformers: pip install "leadline\[hf\]"'):
        open_model(hugging_face)


def test_code_in_the_folder_does_not_run(hugging_face):
    config = json.loads((hugging_face / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    config["model_type"] = "own"
    (hugging_face / "config.json").write_text(json.dumps(config))
    (hugging_face / "own.py").write_text("raise SystemExit('code from the folder ran')")
    with pytest.raises(LeadlineError, match="cannot load it"):
        open_model(hugging_face)


def test_blocks_that_are_missing_or_left_over_are_no_model(hugging_face):
    """Otherwise they would be random, or the model silently another."""
    config = json.loads((hugging_face / "config.json").read_text())
    for blocks, words in ((4, "missing keys"), (2, "unexpected keys")):
        (hugging_face / "config.json").write_text(json.dumps(config | {"num_hidden_layers": blocks}))
        with pytest.raises(LeadlineError, match=words):
            open_model(hugging_face)


def test_pointing_at_the_blocks(hugging_face, leadline):
    assert open_model(hugging_face, layers="model.layers").stack.blocks == 3
    with pytest.raises(UsageError, match=r"no list of blocks at 'model.layer'.*Did you mean model.layers"):
        open_model(hugging_face, layers="model.layer")
    with pytest.raises(UsageError, match="--layers"):
        open_model(leadline, layers="blocks")


def test_a_device_that_is_not_there(hugging_face):
    with pytest.raises(UsageError, match="--device meta can't be used"):
        open_model(hugging_face, "meta")


def test_the_token_that_begins_a_text(hugging_face, beginning):
    assert open_model(hugging_face).begins == beginning


def test_a_tokenizer_that_is_not_the_models(hugging_face):
    content = json.loads((hugging_face / "tokenizer.json").read_text())
    more = [{**content["added_tokens"][0], "id": 290 + n, "content": f"<{n}>"} for n in range(10)]
    content["added_tokens"] += more
    (hugging_face / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="300 tokens and the model 296"):
        open_model(hugging_face)
    (hugging_face / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match="no tokenizer in"):
        open_model(hugging_face)


def test_the_configuration_says_what_ends_a_document(hugging_face):
    """Where the tokenizer's own files don't."""
    content = (hugging_face / "tokenizer.json").read_text().replace("<|endoftext|>", "<stop>")
    (hugging_face / "tokenizer.json").write_text(content)
    (hugging_face / "tokenizer_config.json").unlink()
    with pytest.raises(UsageError):
        load_tokenizer(hugging_face)
    opened = open_model(hugging_face)
    assert opened.tokenizer.content()[1] == "<stop>"


def test_a_tokenizer_in_other_files(hugging_face, tokenizer):
    """GPT-2's vocab.json and merges.txt."""
    model = json.loads((hugging_face / "tokenizer.json").read_text())["model"]
    (hugging_face / "tokenizer.json").unlink()
    (hugging_face / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = (" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"])
    (hugging_face / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    (hugging_face / "tokenizer_config.json").write_text(json.dumps(config))
    opened = open_model(hugging_face)
    assert opened.tokenizer.encode("the lead line").tolist() == tokenizer.encode("the lead line").tolist()
