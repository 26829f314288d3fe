"""Folders with models: a tiny Llama with a tokenizer of its own, and one of Leadline's decoders."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import causal_lms
import pytest

from leadline.data import Documents, train_bpe
from leadline.designs import preset_named, resolve
from leadline.models import Decoder

TEXT = "".join(
    f"The {word} of the sea is {n} fathoms, and the lead line says {n * 7 % 90}.\n"
    for n in range(150)
    for word in ("depth", "width")
)
VOCAB = 290


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Prepared text goes here."""
    monkeypatch.setenv("LEADLINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def tokenizer():
    return train_bpe(Documents(lambda: [TEXT]), VOCAB)


@pytest.fixture(scope="session")
def _hugging_face(tmp_path_factory, tokenizer):
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("hub") / "llama"
    causal_lms.make("llama", vocab_size=VOCAB + 6, eos_token_id=tokenizer.separator).float().save_pretrained(folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture
def hugging_face(_hugging_face, tmp_path):
    """A copy of a folder with a tiny Llama."""
    return Path(shutil.copytree(_hugging_face, tmp_path / "llama"))


@pytest.fixture
def beginning(hugging_face):
    """Puts a token before every text, as Llama's and Gemma's tokenizers do; gives its number."""
    content = json.loads((hugging_face / "tokenizer.json").read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": VOCAB, "content": "<bos>"})
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [VOCAB], "tokens": ["<bos>"]}},
    }
    (hugging_face / "tokenizer.json").write_text(json.dumps(content))
    return VOCAB


@pytest.fixture
def leadline(tmp_path, tokenizer):
    """A folder with a decoder and its tokenizer."""
    shape = dataclasses.replace(preset_named("tiny"), dim=24, blocks=3, heads=3, kv_heads=3, head_dim=8, context=16)
    folder = tmp_path / "own"
    Decoder(resolve("mgr").decoder(shape, VOCAB)).save(folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture
def speech(tmp_path):
    """A text file."""
    path = tmp_path / "speech.txt"
    path.write_text(TEXT)
    return path
