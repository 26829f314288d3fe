"""The commands of Markdown pages, in the order of the page, with sizes for a test.

A command is run as the page has it, but for the options in `SIZES`, which replace or join its own. What else it needs
stands in HTML comments right before its block, which no reader of the rendered page sees:

    <!-- commands: setup
    run_folder("runs/prenorm")
    -->                                     Python that runs before the block, with the names of `page_setup`
    <!-- commands: with --blocks 3 -->      options for every command of the block, instead of those in `SIZES`
    <!-- commands: without --compile, REASON -->   options of the block that are left out
    <!-- commands: not run, REASON -->      none of the block is run
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
from pathlib import Path

_RUN = "--blocks 8 --dim 24 --heads 3 --context 16 --batch-size 2 --tokens 128 --evaluate-tokens 64 --device cpu"
_EXPERIMENT = f"{_RUN} --seeds 1 --evaluations 2 --jobs 1 --threads 1"
_BENCH = "--rounds 2 --dim 64 --threads 1 --backend lean"
SIZES = {
    "bench decode": f"{_BENCH} --blocks 2 --heads 2 --prompt 4 --group 2",
    "bench models": f"{_BENCH} --blocks 2 --heads 2 --context 16 --batch 1",
    "bench ops": f"{_BENCH} --tokens 16 --no-peers",
    "bench pipeline": "--preset tiny --blocks 8 --ranks 2 --virtual 2 --vocab 64",
    "compare": f"{_EXPERIMENT} --measure-tokens 64 --speed-rounds 1",
    "data prepare": "",
    "designs": "",
    "generate": "--tokens 8",
    "probe": "--tokens 128 --ablation-tokens 64 --context 16",
    "prune": "--calibration-tokens 64 --evaluate-tokens 128 --context 16",
    "study cascade": f"{_EXPERIMENT} --tokens 1.5k --designs cascade-a2 --speed-rounds 1 --speed-batch 2",
    "study gfa": f"{_EXPERIMENT} --ablation-tokens 64 --details 1",
    "study pruning": f"{_EXPERIMENT} --seeds 2 --calibration-tokens 64",
    "train": f"{_RUN} --record-every 2",
}
"""The options of each verb that make it small."""
_SAME = {"--steps": "--tokens", "--flops": "--tokens"}
"""Options that say the same as another in their own way, so that a size replaces both."""

_BLOCK = re.compile(
    r"((?:<!-- commands: (?:(?!-->).)*-->\s*)*)^```(?:|sh|bash|console|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_OTHER = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"<!-- commands: (setup|without|with|not run)[ ,\n]?((?:(?!-->).)*?)\s*-->", re.DOTALL)
_COMMAND = re.compile(r"(?:\$ )?((?:[A-Z_]+=\S+ )*(?:\S*/)?(?:leadline|python3?|make|pip) \S.*)")


@dataclasses.dataclass(frozen=True)
class Command:
    """One command, or the Python before a block of them.

    Attributes:
        line: of the page, where the block begins.
        text: as the page has it.
        words: what `leadline.cli.main.main` is given; None where it isn't a command to run.
        setup: Python to run.
        reason: why it isn't run.
    """

    page: Path
    line: int
    text: str
    words: list[str] | None = None
    setup: str = ""
    reason: str = ""


def commands(page: Path) -> list[Command]:
    """The commands of a page and what stands before them.

    Raises:
        ValueError: a comment can't be read, or a command that is run is not Leadline's.
    """
    text = page.read_text(encoding="utf-8")
    found: list[Command] = []
    # What stands in other blocks is no comment and opens no block.
    text = _OTHER.sub(lambda block: block[0] if _BLOCK.match(block[0]) else re.sub(r"[^\n]", " ", block[0]), text)
    for block in _BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(2)) + 1
        directives = {each[1]: each[2].strip() for each in _DIRECTIVE.finditer(block[1])}
        if len(directives) != block[1].count("<!--") or not all(directives.values()):
            raise ValueError(f"{page.name}:{line}: {block[1]}")
        lines = [m[1] for each in block[2].replace("\\\n", " ").splitlines() if (m := _COMMAND.match(each))]
        reason = directives.get("not run", "")
        more = shlex.split(directives.get("with", ""))
        left_out = directives.get("without", "").partition(", ")[0].split()
        if directives and not lines:
            raise ValueError(f"{page.name}:{line}: a comment before a block without commands")
        if "setup" in directives:
            found.append(Command(page, line, "", setup=directives["setup"]))
        for each in lines:
            words = shlex.split(each, comments=True)
            if reason:
                found.append(Command(page, line, each, reason=reason))
            elif words[0] == "leadline":
                found.append(Command(page, line, each, words=small(without(words[1:], left_out), more)))
            else:
                raise ValueError(f"{page.name}:{line}: {each!r} is not Leadline's; say why it isn't run")
    return found


def small(words: list[str], more: list[str]) -> list[str]:
    """A command's words with the verb's sizes and those of the page.

    Raises:
        ValueError: the verb has no sizes.
    """
    verb = next((verb for verb in (" ".join(words[:2]), words[0]) if verb in SIZES), None)
    if verb is None:
        raise ValueError(f"{words[0]!r} has no sizes")
    sizes = dict(options(SIZES[verb].split())) | dict(options(more))
    kept = words
    for name in sizes:
        kept = without(kept, [name, *(each for each, same in _SAME.items() if same == name)])
    return [*kept, *(word for name, values in sizes.items() for word in (name, *values))]


def options(words: list[str]) -> list[tuple[str, list[str]]]:
    """Every option with its values."""
    starts = [place for place, word in enumerate(words) if word.startswith("--")]
    return [(words[at], words[at + 1 : end]) for at, end in itertools.pairwise([*starts, len(words)])]


def without(words: list[str], names: list[str]) -> list[str]:
    """The words without these options and their values."""
    start = next((place for place, word in enumerate(words) if word.startswith("--")), len(words))
    kept = [word for name, values in options(words) if name not in names for word in (name, *values)]
    return [*words[:start], *kept]
