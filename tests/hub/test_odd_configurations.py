"""Options in `config.json` that say how to call a model, not what it is, and files that are not the model's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from leadline.cli.main import main
from leadline.hub import open_model


def change(folder: Path, **options: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **options}))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02}.txt").write_text(f"The lead line says {number} fathoms of water below the keel.\n" * 30)
    return folder


@pytest.mark.parametrize(
    "options", [{"return_dict": False}, {"use_cache": False}, {"output_hidden_states": True}], ids=str
)
def test_how_a_model_is_called_changes_nothing(
    hugging_face: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any]
) -> None:
    tokens = torch.arange(12).view(2, 6)
    expected = open_model(hugging_face).stack.logits(tokens).detach()
    change(hugging_face, **options)
    assert torch.equal(open_model(hugging_face).stack.logits(tokens).detach(), expected)
    words = ["--data", str(text), "--evaluate-tokens", "256"]
    assert (
        main(["probe", str(hugging_face), "--data", str(text), "--tokens", "256", "--out", str(tmp_path / "probe")])
        == 0
    ), capsys.readouterr().err
    code = main(["prune", str(hugging_face), "--blocks", "1", *words, "--out", str(tmp_path / "cut")])
    assert code == 0, capsys.readouterr().err


def test_a_configuration_that_can_not_be_saved_is_told_before_anything_is_measured(
    hugging_face: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(hugging_face, output_attentions=True)
    words = ["--data", str(text), "--evaluate-tokens", "256"]
    assert main(["prune", str(hugging_face), "--blocks", "1", *words, "--out", str(tmp_path / "cut")]) == 1
    said = capsys.readouterr()
    assert "transformers does not save this config.json" in said.err
    assert "perplexity" not in said.out + said.err
