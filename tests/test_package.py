"""`import leadline as ll`: quick, and every part within reach in a fresh process."""

from __future__ import annotations

import subprocess
import sys

import pytest

import leadline as ll


def fresh(code: str) -> str:
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_nothing_heavy_is_imported() -> None:
    assert fresh("import leadline, sys; print('torch' in sys.modules, 'numpy' in sys.modules)") == "False False"


@pytest.mark.parametrize(
    "name", ["ops.use_backend", "probes.record", "training.GradientShare", "pruning", "hub", "data"]
)
def test_parts_are_attributes(name: str) -> None:
    assert fresh(f"import leadline as ll; print(ll.{name} is not None)") == "True"


def test_only_public_names_are_listed_and_all_are_there() -> None:
    assert dir(ll) == sorted(ll.__all__)
    assert all(getattr(ll, name) is not None for name in ll.__all__)
    assert all(name == "__version__" or not name.startswith("_") for name in dir(ll))
