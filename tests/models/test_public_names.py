"""`import leadline` is quick, and its names are all there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import leadline


def test_importing_leadline_imports_no_torch() -> None:
    code = "import leadline, sys; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'tyro', 'rich')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", leadline.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(leadline, name) is not None
    assert name in dir(leadline)


def test_homes_and_public_names_agree() -> None:
    assert {*leadline._HOME, *leadline._PARTS, "__version__"} == set(leadline.__all__)


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'MultiGat'"):
        leadline.MultiGat  # noqa: B018
