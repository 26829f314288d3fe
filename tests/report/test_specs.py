"""`report.toml` beside a report's code: everything in it is used, and everything that is asked for is in it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import leadline
from leadline.errors import UsageError
from leadline.report.page import TableRow
from leadline.report.pictures import PictureSpec
from leadline.report.specs import FILE, Specs

SOURCE = Path(leadline.__file__).parent
FOLDERS = sorted(path.parent for path in SOURCE.rglob(FILE))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_what_stands_in_the_file_is_what_the_code_asks_for(folder: Path) -> None:
    specs = Specs(".".join(("leadline", *folder.relative_to(SOURCE).parts)))
    code = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    known = {field.name for field in dataclasses.fields(PictureSpec)}
    for name, entry in specs.content["pictures"].items():
        assert set(entry) < known
        assert f'"{name}"' in code
    for part in ("section", "table"):
        asked = set(re.findall(rf'SPECS\.{part}\(\s*"([^"]+)"', code))
        assert asked == set(specs.content.get(f"{part}s", {}))
    assert set(re.findall(r'SPECS\(\s*"([^"]+)"', code)) <= set(specs.content["pictures"])


def test_changes_and_what_is_not_there() -> None:
    specs = Specs("leadline.experiments.gradient_fan_in")
    assert specs("late").rule == (1.0, "even")
    assert specs("late", rule=None).rule is None
    assert specs.section("learning", [None]).pictures == []
    with pytest.raises(UsageError, match="colour"):
        specs("late", colour="red")
    with pytest.raises(ValueError, match="1 cells for"):
        specs.table("arms", [TableRow(head="a", cells=["1"])])
