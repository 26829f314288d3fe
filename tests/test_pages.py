"""Every Python block of the README and the docs runs, each in a process of its own; see `page_programs`."""

from __future__ import annotations

import importlib.util
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest
from page_programs import Program, programs, run

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = [program for page in PAGES for program in programs(page)]

Runner = Callable[[Program, Path], str]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Runs a program in a new process, forked from one that has others' libraries and nothing of Leadline."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "numpy", "scipy.stats", "transformers.models.llama.modeling_llama"])
    cache = tmp_path_factory.mktemp("cache")

    def in_new_process(program: Program, folder: Path) -> str:
        process = context.Process(target=run, args=(program, folder, cache))
        process.start()
        process.join(timeout=240)
        process.kill()
        printed = (folder / "printed.txt").read_text(encoding="utf-8")
        assert process.exitcode == 0, f"{program.page.name}:{program.line}, exit {process.exitcode}\n{printed}"
        return printed

    return in_new_process


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"{program.page.name}:{program.line}")
def test_every_program_runs(program: Program, runner: Runner, tmp_path: Path) -> None:
    for module in program.needs:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    runner(program, tmp_path)


def test_every_python_block_is_seen() -> None:
    """Indented or oddly fenced ones too."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fences = sum(line.strip().lower().startswith(("```py", "~~~py")) for line in text.splitlines())
        fragments = text.count("<!-- python: fragment")
        continued = text.count("<!-- python: continues")
        assert len(programs(page)) == fences - fragments - continued, page.name


def test_fragments_are_few() -> None:
    assert sum(page.read_text(encoding="utf-8").count("<!-- python: fragment") for page in PAGES) <= 2


def page_of(tmp_path: Path, text: str) -> list[Program]:
    page = tmp_path / "page.md"
    page.write_text(text)
    return programs(page)


def test_comments_before_a_block(tmp_path: Path, runner: Runner) -> None:
    (one, two) = page_of(
        tmp_path,
        "text\n<!-- python: setup\nx = 2\n-->\n<!-- python: replace 100 with 3 -->\n\n"
        "```python\nprint(x * 100)\n```\n<!-- python: continues -->\n```python\nprint(x + 100)\n```\n"
        "<!-- python: fragment, because -->\n```python\nnonsense here\n```\n"
        "<!-- python: needs torch -->\n```python\nprint('x' in globals(), __name__)\n```\n",
    )
    assert runner(one, tmp_path) == "6\n102\n"
    assert runner(two, tmp_path) == "False __main__\n"
    assert (one.needs, two.needs) == ([], ["torch"])


@pytest.mark.parametrize(
    "text",
    ["text\n\n```python\nx = 1\nx.sides\n```\n", "\n\n<!-- python: setup\nx = 1\nx.sides\n-->\n```python\n```\n"],
    ids=["block", "setup"],
)
def test_a_program_that_fails_is_shown_with_the_line_of_the_page(tmp_path: Path, runner: Runner, text: str) -> None:
    (program,) = page_of(tmp_path, text)
    with pytest.raises(AssertionError, match=r"page\.md:\d, exit 1[^$]*line 5[^$]*no attribute 'sides'"):
        runner(program, tmp_path)


def test_nothing_of_leadline_is_imported_before(tmp_path: Path, runner: Runner) -> None:
    (program,) = page_of(tmp_path, "```python\nimport sys\nassert 'leadline' not in sys.modules\n```\n")
    runner(program, tmp_path)


@pytest.mark.parametrize("comment", ["setpu\nx\n", "replace nothing with b ", "replace pass ", ""])
def test_a_comment_that_says_nothing_is_an_error(tmp_path: Path, comment: str) -> None:
    with pytest.raises(ValueError, match=r"page\.md"):
        page_of(tmp_path, f"<!-- python: {comment}-->\n```python\npass\n```\n")
