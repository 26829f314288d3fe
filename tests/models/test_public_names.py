"""`import leadline` is quick, and its names are all there."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import leadline


def test_importing_leadline_imports_no_torch() -> None:
    code = "import leadline, sys; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'tyro', 'rich')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", leadline.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(leadline, name) is not None
    assert name in dir(leadline)


def test_names_are_what_type_checkers_are_told() -> None:
    tree = ast.parse(Path(leadline.__file__).read_text(encoding="utf-8"))
    imports = next(node for node in tree.body if isinstance(node, ast.If)).body
    told = {alias.asname or alias.name: (node.module, alias.name) for node in imports for alias in node.names}
    assert {*told, "__version__"} == set(leadline.__all__)
    for name, (home, at_home) in told.items():
        assert getattr(leadline, name) is getattr(importlib.import_module(home), at_home), name


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'MultiGat'"):
        leadline.MultiGat  # noqa: B018
