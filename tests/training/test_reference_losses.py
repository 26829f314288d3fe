"""Every named design still computes what it did when its losses were written down.

In float64, so that processors may differ in rounding and the numbers agree to six digits. Where a change is meant to
change them: `python tests/training/make_reference_losses.py`.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).with_name("make_reference_losses.py")


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference_losses", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = load_script()
REFERENCE: dict[str, list[float]] = json.loads(make.FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make.prepare_text(tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize("design", REFERENCE)
def test_losses(design: str, data: Path, tmp_path: Path) -> None:
    assert make.losses(design, data, tmp_path / "run") == pytest.approx(REFERENCE[design], abs=1e-6)


def test_every_design_has_its_losses() -> None:
    assert list(REFERENCE) == make.DESIGNS
    assert all(len(row) == make.STEPS + 1 and min(row) > 0 for row in REFERENCE.values())


def test_designs_differ() -> None:
    """Two designs with the same losses would mean that one of them does nothing."""
    # A stack of five blocks is too short for blocks of more than one sublayer.
    same = {"rmsnorm": "prenorm", "mgr": "mgr-competitive", "attnres-block": "attnres", "taper": "prenorm"}
    same |= {"reverse": "cascade-reverse", "middle": "cascade-middle"}
    for name, other in same.items():
        assert REFERENCE[name] == REFERENCE[other]
    rows = [tuple(row) for name, row in REFERENCE.items() if name not in same]
    assert len(set(rows)) == len(rows)
