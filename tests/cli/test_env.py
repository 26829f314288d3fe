"""`leadline env`: what a bug report needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from leadline import __version__
from leadline.cli.env import OPTIONAL, PACKAGES
from leadline.cli.main import main


def test_env(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--json", str(tmp_path / "env.json")]) == 0
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    found = json.loads((tmp_path / "env.json").read_text())
    assert {name: value.strip() for name, value in lines.items()} == {name: str(v) for name, v in found.items()}
    assert found["leadline"] == __version__
    assert found["torch"] == torch.__version__
    assert found["cores"] >= 1
    assert found["memory bytes"] > 1e8
    assert found["cpu capability"]
    assert all(found[name] for name in (*PACKAGES, *OPTIONAL))


def test_where_it_cannot_write(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--json", "/proc/nowhere/env.json"]) == 1
    assert capsys.readouterr().err.startswith("leadline: error: ")
