"""The Python in docs/model.md and docs/early-exit.md runs, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def run_page(name: str, blocks: int) -> None:
    names: dict[str, Any] = {}
    found = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(found) == blocks
    for block in found:
        exec(compile(block, name, "exec"), names)


def test_the_models_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("model.md", 8)
    assert (tmp_path / "my-model" / "model.safetensors").is_file()


def test_the_page_on_early_exit(capsys: pytest.CaptureFixture[str]) -> None:
    run_page("early-exit.md", 1)
    assert "fills these blocks' cache entries" in capsys.readouterr().out
