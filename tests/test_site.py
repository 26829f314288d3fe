"""The documentation's site: it builds strictly, and its reference has every public name."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import leadline as ll

ROOT = Path(__file__).parent.parent
PARTS = [part.name for part in pkgutil.iter_modules(ll.__path__) if part.name in ll.__all__]
ZENSICAL = shutil.which("zensical", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Builds what is in the folder, as `make docs` does here."""
    command = [str(ZENSICAL), "build", "--strict", "--clean", "--config-file", "mkdocs.yml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


def copied(folder: Path) -> Path:
    """What a build reads, in a folder of its own."""
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    (folder / "src").symlink_to(ROOT / "src")
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages of the reference by their names, as HTML."""
    if ZENSICAL is None:
        pytest.skip("zensical is not installed")
    folder = copied(tmp_path_factory.mktemp("site"))
    built = build(folder)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "griffe:" not in built.stderr, built.stderr  # a docstring that does not fit its signature
    pages = (folder / "site" / "reference").glob("*/index.html")
    return {page.parent.name: page.read_text(encoding="utf-8") for page in pages}


@pytest.mark.parametrize("part", PARTS)
def test_every_public_name_of_a_part_is_in_the_reference(part: str, reference: dict[str, str]) -> None:
    described = re.findall(rf'id="leadline\.{part}\.([\w.]+)"', reference[part])
    names = {name for path in described for name in (path, path.rpartition(".")[2])}
    assert names >= set(getattr(importlib.import_module(f"leadline.{part}"), "__all__", ["compare", "study"]))


def test_every_name_at_the_top_is_in_the_reference(reference: dict[str, str]) -> None:
    described = set(re.findall(r'id="leadline\.(\w+)"', reference["leadline"]))
    linked = set(re.findall(r'<a [^>]*href="\.\./[^>]*><code>(\w+)</code></a>', reference["leadline"]))
    assert described | linked | {"__version__"} >= set(ll.__all__)


def test_nothing_is_loaded_from_elsewhere(reference: dict[str, str]) -> None:
    for page in reference.values():
        assert not re.findall(
            r'<(?:script|img|link rel="(?:stylesheet|preconnect)")[^>]+(?:src|href)="(?:https?:)?//', page
        )


@pytest.mark.skipif(ZENSICAL is None, reason="zensical is not installed")
@pytest.mark.parametrize(
    "line", ["[a](nowhere.md)", "[a](index.md#nowhere)", "[a][leadline.nothing]", "::: leadline.no"]
)
def test_what_leads_nowhere_ends_the_build(line: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Page\n\n{line}\n")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(settings)
    (tmp_path / "src").symlink_to(ROOT / "src")
    assert build(tmp_path).returncode == 1
