"""What the README and the docs say can be done as it is written."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path

import page_commands
import pytest

from leadline.cli.main import VERBS
from leadline.cli.options import parse

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every `leadline …` command of any page, as it stands there."""
    found = {command.text for page in PAGES for command in page_commands.commands(page)}
    return sorted(text for text in found if text.startswith("leadline "))


@pytest.mark.parametrize("command", commands())
def test_every_command_parses(command: str) -> None:
    _, verb, *arguments = shlex.split(command, comments=True)
    assert verb in VERBS
    arguments = [argument for argument in arguments if argument not in ("…", "...")]
    module = importlib.import_module(f"leadline.cli.{verb}")
    parse(module.Arguments, arguments, f"leadline {verb}")


def test_there_are_commands() -> None:
    assert any(command.startswith("leadline compare") for command in commands())


def test_the_three_lines_are_those_of_the_example() -> None:
    example = (ROOT / "examples" / "nanogpt.py").read_text(encoding="utf-8")
    code = next(block for block in blocks(ROOT / "README.md", "python") if "ll.fold" in block)
    lines = [line.split("#")[0].strip() for line in code.splitlines() if "#" in line]
    assert len(lines) == 3
    assert all(line in example for line in lines)


@pytest.mark.parametrize(("example", "count"), [("nanogpt_block", 2), ("llama_layer", 1)])
def test_the_classes_on_the_page_are_those_of_the_example(example: str, count: int) -> None:
    """But for docstrings and comments."""
    source = (ROOT / "examples" / f"{example}.py").read_text(encoding="utf-8")
    kept = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    shown = [node for block in blocks(ROOT / "docs" / "own-model.md", "python") for node in ast.parse(block).body]
    found = [node for node in shown if isinstance(node, ast.ClassDef) and node.name in kept]
    assert len(found) == count
    for node in found:
        assert ast.dump(node) == ast.dump(without_docstring(kept[node.name]))


def without_docstring(node: ast.ClassDef) -> ast.ClassDef:
    has_one = isinstance(node.body[0], ast.Expr)
    node.body = node.body[1:] if has_one else node.body
    return node


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def site_pages() -> list[str]:
    """The pages of the documentation, relative to its folder."""
    return [str(page.relative_to(ROOT / "docs")) for page in sorted((ROOT / "docs").rglob("*.md"))]


def test_every_page_is_in_the_navigation() -> None:
    navigation = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(navigation) == site_pages()


def test_every_page_is_linked_from_the_index() -> None:
    linked = re.findall(r"\]\(([^)#\s]+\.md)\)", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert sorted({*linked, "index.md"}) == site_pages()


def test_the_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(
        re.findall(r"(?:`|^)make ([a-z-]+)\b", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    ):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_files_are_short() -> None:
    long = {path.name: n for path in (ROOT / "src").rglob("*.py") if (n := len(path.read_text().splitlines())) > 500}
    assert not long


def test_every_pin_is_one_version() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all("==" in pin or pin.startswith("torch>=") for pin in pins)
