"""`leadline generate`: text as it comes, and errors that name the option."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from leadline.cli.generate import Arguments, open_model, run, stream_text
from leadline.connections import Additive, AttentionResiduals
from leadline.data.prepare import prepare
from leadline.data.tokenizers import ByteTokenizer
from leadline.errors import UsageError
from leadline.models import AttentionConfig, Decoder, DecoderConfig, LayerConfig, MLPConfig, generate
from leadline.norms import RMSNorm
from leadline.training import RunConfig, train


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model whose text is noise, with its tokenizer."""
    norm = RMSNorm()
    layer = LayerConfig(
        attention=AttentionConfig(heads=2, kv_heads=2, head_dim=4),
        mlp=MLPConfig(hidden=8),
        attention_norm=norm,
        mlp_norm=norm,
    )
    config = DecoderConfig(
        vocab_size=256, dim=8, layers=(layer,), connection=Additive(), final_norm=norm, context=32, tied=False
    )
    Decoder(config).save(tmp_path / "model")
    ByteTokenizer().save(tmp_path / "model")
    return tmp_path / "model"


def test_text_comes_after_the_prompt(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = Arguments(model=folder, prompt="Fellow citizens", tokens="12", seed=3, json=folder / "said.json")
    assert run(arguments) == 0
    said = capsys.readouterr().out
    saved = json.loads((folder / "said.json").read_text())
    assert said == "Fellow citizens" + saved["text"] + "\n"
    prompt = torch.tensor([list(b"Fellow citizens")])
    expected = generate(Decoder.load(folder), prompt, 12, seed=3, stop_token=255)[0, 15:]
    assert saved["tokens"] == expected.tolist()
    assert saved["tokens_per_second"] > 0


def test_without_a_prompt_a_document_begins(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Arguments(model=folder, tokens="5")) == 0
    assert capsys.readouterr().out.endswith("\n")


def test_the_backend_is_the_one_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds while tokens are made, and one that can't run says so before anything is written."""
    asked: list[str] = []
    used = contextlib.contextmanager(lambda backend: iter([asked.append(backend)]))
    monkeypatch.setattr("leadline.ops.use_backend", used)
    assert run(Arguments(model=folder, tokens="3", backend="reference")) == 0
    assert asked == ["reference"]
    capsys.readouterr()
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(UsageError, match="--backend triton can't run here"):
        run(Arguments(model=folder, tokens="3", backend="triton"))
    assert capsys.readouterr().out == ""


def test_two_phases_write_the_same_tokens(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of more than one source, its queries not at zero; with an early exit, too."""
    plain = Decoder.load(folder)
    config = dataclasses.replace(
        plain.config, layers=plain.config.layers * 4, connection=AttentionResiduals(block_size=2), context=64
    )
    model = Decoder(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model.save(tmp_path / "attnres")
    ByteTokenizer().save(tmp_path / "attnres")
    read = []
    right = AttentionResiduals.prefetch
    monkeypatch.setattr(AttentionResiduals, "prefetch", lambda *given: read.append(1) or right(*given))
    for options in ({}, {"temperature": 0.0}, {"exit_block": 2, "draft": 3}):
        found = []
        for two_phase in (False, True):
            read.clear()
            said = tmp_path / "said.json"
            run(Arguments(model=tmp_path / "attnres", tokens="24", two_phase=two_phase, json=said, **options))
            found.append(json.loads(said.read_text())["tokens"])
            assert bool(read) == two_phase
        assert found[0] == found[1]
        assert len(set(found[0])) > 2
    with pytest.raises(UsageError, match=r"--two-phase .* attnres and attnres-block work"):
        run(Arguments(model=folder, tokens="3", two_phase=True))


def test_a_seed_repeats_the_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in (1, 1, 2):
        run(Arguments(model=folder, prompt="a", tokens="30", seed=seed))
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": "many"}, "--tokens 'many'"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 2.0}, "top_p=2.0"),
        ({"device": "abacus"}, "--device abacus .* cpu"),
        ({"model": Path("nowhere")}, "nowhere is no folder"),
    ],
)
def test_bad_options(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(dataclasses.replace(Arguments(model=folder, prompt="a"), **options))


def test_a_tokenizer_of_another_model(folder: Path) -> None:
    data = json.loads((folder / "config.json").read_text())
    Decoder(dataclasses.replace(Decoder.load(folder).config, vocab_size=100)).save(folder)
    assert data["vocab_size"] == 256
    with pytest.raises(UsageError, match="256 tokens and the model 100"):
        open_model(folder, "cpu")


@pytest.mark.parametrize(
    "data",
    [
        "plain",
        "naïve – “déjà vu” 🐳🐳 ¡olé!",
        "日本語" * 60,
        b"\xff\xfe\x80bad\xe2\x82 bytes\xf0\x9f".decode("latin-1"),
    ],
)
def test_characters_come_whole(data: str) -> None:
    tokenizer = ByteTokenizer()
    raw = data.encode("latin-1") if data.startswith("ÿ") else data.encode()
    tokens = [token for token in raw if token != 255]
    pieces = list(stream_text(tokenizer, list(b"prompt"), tokens))
    assert "".join(pieces) == tokenizer.decode(tokens)
    if not data.startswith("ÿ"):
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_runs_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").mkdir()
    for number in range(8):
        (tmp_path / "text" / f"{number}.txt").write_text("Of the people, by the people, for the people. " * 30)
    prepare([str(tmp_path / "text")], tmp_path / "data", heldout_last=2)
    config = RunConfig.of(
        design="mgr-competitive",
        data=str(tmp_path / "data"),
        blocks=3,
        dim=16,
        heads=2,
        kv_heads=2,
        head_dim=8,
        hidden=24,
        tokens=64,
        batch_size=2,
        context=32,
    )
    train(config, tmp_path / "run")
    capsys.readouterr()
    assert run(Arguments(model=tmp_path / "run", prompt="Of the", tokens="8")) == 0
    assert capsys.readouterr().out.startswith("Of the")
