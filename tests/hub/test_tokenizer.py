"""A tokenizer comes along whole, whatever its files are called, and is found the same in the new folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from leadline.errors import LeadlineError
from leadline.hub import tokenizer as tokenizers_of_models
from leadline.hub.saving import load_causal_lm, save_checked
from leadline.hub.tokenizer import read_tokenizer, write_tokenizer


@pytest.fixture
def new(hugging_face, tmp_path):
    """The folder of a model that has no tokenizer yet."""
    (tmp_path / "new").mkdir()
    shutil.copyfile(hugging_face / "config.json", tmp_path / "new" / "config.json")
    return tmp_path / "new"


def other_files(folder: Path) -> None:
    """GPT-2's vocab.json and merges.txt in place of tokenizer.json."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = (" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("files", ["own", "other"])
def test_it_is_the_same_in_the_new_folder(files, hugging_face, new, beginning):
    if files == "other":
        other_files(hugging_face)
    write_tokenizer(hugging_face, new, None)
    (one, begins), (other, begins_too) = (read_tokenizer(folder, None) for folder in (hugging_face, new))
    assert one.hash == other.hash
    assert begins == begins_too == (beginning if files == "own" else None)


def test_files_of_many_names_come_along_and_nothing_else(tmp_path, new):
    source = tmp_path / "source"
    (source / "additional_chat_templates").mkdir(parents=True)
    names = [
        "tekken.json", "tiktoken.model", "qwen.tiktoken", "tokenizer.model.v3", "source.spm", "vocab.bpe", "merges.txt",
        "added_tokens.json", "special_tokens_map.json", "chat_template.jinja", "bpe.codes", "tokenizer.json",
        "additional_chat_templates/tools.jinja",
    ]  # fmt: skip
    strangers = [
        "config.json", "model.safetensors", "tokenizer.py", "tokenizer.bin", "README.md", "notes.txt",
        "generation_config.json", "prune.json", "gradient.json", "model.safetensors.index.json",
    ]  # fmt: skip
    for name in names + strangers:
        (source / name).write_text(f"of {name}")
    before = (new / "config.json").read_text()
    write_tokenizer(source, new, None)  # one that can't be read comes along as it is
    found = sorted(str(path.relative_to(new)) for path in new.rglob("*") if path.is_file())
    assert found == sorted([*names, "config.json"])
    assert (new / "tekken.json").read_text() == "of tekken.json"
    assert (new / "config.json").read_text() == before


def test_files_that_are_not_known_are_an_error_and_leave_nothing_behind(hugging_face, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizers_of_models, "FILES", ("special*",))
    model = load_causal_lm(hugging_face, torch.float32)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(LeadlineError, match=r"tokenizer cannot be read from the new folder.*no tokenizer in --out"):
        save_checked(model, tmp_path / "out", tokenizer=hugging_face)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_another_one_is_an_error(hugging_face, new, monkeypatch):
    """A file that is left behind changes the tokenizer without breaking it."""
    copy = shutil.copyfile

    def changing(source, target):
        copy(source, target)
        if target.name == "tokenizer.json":
            target.write_text(target.read_text().replace('"depth"', '"death"').replace(" ", "  ", 1))

    monkeypatch.setattr(shutil, "copyfile", changing)
    with pytest.raises(LeadlineError, match="the tokenizer comes back as another one"):
        write_tokenizer(hugging_face, new, None)


def test_a_tokenizer_of_the_library(hugging_face, new, monkeypatch):
    from transformers import PreTrainedTokenizerFast

    given = PreTrainedTokenizerFast(tokenizer_file=str(hugging_face / "tokenizer.json"), eos_token="<|endoftext|>")
    write_tokenizer(given, new, None)
    assert read_tokenizer(new, None)[0].encode("the lead").tolist() == given("the lead")["input_ids"]
    save = PreTrainedTokenizerFast.save_pretrained

    def spoilt(self, folder):
        save(self, folder)
        content = json.loads((Path(folder) / "tokenizer.json").read_text())
        content["model"]["merges"] = content["model"]["merges"][:3]
        (Path(folder) / "tokenizer.json").write_text(json.dumps(content))

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", spoilt)
    with pytest.raises(LeadlineError, match="comes back as another one"):
        write_tokenizer(given, new, None)
