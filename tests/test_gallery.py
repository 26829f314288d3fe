"""The gallery has a page and a picture of every report that its recipe makes, and no path of the machine."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def recipe() -> Any:
    spec = importlib.util.spec_from_file_location("gallery_recipe", ROOT / "recipes" / "gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_report_is_there() -> None:
    names = set(recipe().COMMANDS)
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    for ending in ("html", "png"):
        assert {path.stem for path in recipe().PAGES.glob(f"*.{ending}")} == names
        assert set(re.findall(rf"gallery/([\w-]+)\.{ending}", page)) == names


def test_no_report_names_its_machine() -> None:
    for path in recipe().PAGES.glob("*.html"):
        assert not re.search(r"--out\s+/|/(home|root|Users)/", path.read_text(encoding="utf-8")), path


def test_a_command_becomes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report goes in whole; one that is too large is refused."""
    gallery = recipe()
    monkeypatch.setattr(gallery, "PAGES", tmp_path / "pages")
    monkeypatch.setattr(gallery.shutil, "which", lambda name: None)
    report = tmp_path / "report.html"
    report.write_text("<p>a report</p>")
    gallery.show("demo", report)
    assert (tmp_path / "pages" / "demo.html").read_text() == "<p>a report</p>"
    monkeypatch.setattr(gallery, "MOST_BYTES", 3)
    with pytest.raises(SystemExit, match="the gallery takes 3 of each"):
        gallery.show("demo", report)
