"""`leadline generate --exit-block`: it leaves early, says what came of it, and names the option that can't work."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from leadline.cli.generate import Arguments, run
from leadline.connections import MultiGate
from leadline.data.tokenizers import ByteTokenizer
from leadline.errors import UsageError
from leadline.models import AttentionConfig, Decoder, DecoderConfig, LayerConfig, MLPConfig
from leadline.norms import RMSNorm


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model of four blocks whose text is noise."""
    norm = RMSNorm()
    layer = LayerConfig(
        attention=AttentionConfig(heads=2, kv_heads=2, head_dim=4),
        mlp=MLPConfig(hidden=8),
        attention_norm=norm,
        mlp_norm=norm,
    )
    config = DecoderConfig(
        vocab_size=256,
        dim=8,
        layers=(layer,) * 4,
        connection=MultiGate(streams=2, gate_init="prenorm"),
        final_norm=norm,
        context=32,
    )
    Decoder(config).save(tmp_path / "model")
    ByteTokenizer().save(tmp_path / "model")
    return tmp_path / "model"


def said(folder: Path, **options: Any) -> dict[str, Any]:
    arguments = Arguments(model=folder, prompt="Fellow citizens", tokens="12", seed=3, json=folder / "said.json")
    assert run(dataclasses.replace(arguments, **options)) == 0
    result: dict[str, Any] = json.loads((folder / "said.json").read_text())
    return result


def test_guesses_change_no_token(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = said(folder)
    assert "early_exit" not in plain
    assert capsys.readouterr().err == ""
    found = said(folder, exit_block=2, draft=3)
    assert found["tokens"] == plain["tokens"]
    told = capsys.readouterr().err
    assert "exit after block 1 of blocks 0 to 3: 12 tokens with" in told
    assert "guesses accepted" in told
    assert "cache entries" in told
    assert found["early_exit"]["tokens"] == 12
    assert found["early_exit"]["drafted"] > 0


def test_leaving_when_sure_and_always(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sure = said(folder, exit_block=1, exit_confidence=1.0)
    assert sure["early_exit"]["left_share"] == 0.0
    assert "0 of 12 tokens left early (0\u00a0%), 12 passes through the blocks behind it" in capsys.readouterr().err
    always = said(folder, exit_block=1)
    assert (always["early_exit"]["left"], always["early_exit"]["later_passes"]) == (12, 0)
    assert "12 of 12 tokens left early (100\u00a0%)" in capsys.readouterr().err
    assert sure["early_exit"]["cache"] != always["early_exit"]["cache"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exit_block": 4}, "--exit-block 4: .* 4: 1 to 3 work"),
        ({"exit_block": 0}, "--exit-block 0: .* at least 1"),
        ({"draft": 4}, "--draft needs --exit-block"),
        ({"exit_confidence": 0.9}, "--exit-confidence needs --exit-block"),
        ({"exit_block": 2, "exit_confidence": 2.0}, "--exit-block 2 --exit-confidence 2.0: .* at most 1"),
        ({"exit_block": 2, "draft": 0}, "--exit-block 2 --draft 0: .* at least 1"),
        ({"exit_block": 2, "draft": 2, "exit_confidence": 0.5}, "give one of them"),
    ],
)
def test_bad_options(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        said(folder, **options)
