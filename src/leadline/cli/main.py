"""`leadline VERB …`: finds the verb, runs it, turns errors into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 bad usage, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import sys
import traceback
import warnings
from collections.abc import Sequence

from leadline import __version__
from leadline.cli.terminal import as_option, make_printable, quiet_libraries
from leadline.errors import LeadlineError, UsageError, did_you_mean
from leadline.files import check_file
from leadline.interrupt import termination_interrupts
from leadline.progress import verbose

VERBS = {
    "compare": "train designs side by side and write one report: the main job",
    "train": "train one model",
    "generate": "write text with a model",
    "probe": "measure what each block of a model does",
    "prune": "cut out the blocks that a model needs least, and check what is left",
    "designs": "list the depth designs, or show one",
    "study": "run a whole experiment that tests a paper's claims",
    "bench": "measure speed and memory, side by side in one run",
    "data": "prepare text for training",
    "env": "what is installed here, for bug reports",
    "completion": "print a script with which a shell completes all this",
}
PLACES = ("--out", "--json")
"""Options that name where something is written. Empty, as from a variable that isn't set, they would be `.`."""
INTERRUPTED = 130
OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
"""How PyTorch says so."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    make_printable()
    try:
        with termination_interrupts():
            code = _run(arguments)
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # where the terminal has gone
            print("leadline: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (LeadlineError, MemoryError, RuntimeError, OSError) as error:
        if os.environ.get("LEADLINE_DEBUG") == "1":
            raise
        if {"-v", "--verbose"} & set(arguments):
            traceback.print_exc()
        if isinstance(error, MemoryError | RuntimeError):
            if isinstance(error, RuntimeError) and not any(words in str(error) for words in OUT_OF_MEMORY):
                raise
            error = LeadlineError("there is too little memory for this; a smaller model or batch needs less")
        return _fail(error)


def _run(arguments: list[str]) -> int:
    if not arguments:
        print(overview(), file=sys.stderr)
        return 2
    verb, *rest = arguments
    level, rest = _verbosity(rest)
    with verbose(level):
        return _run_verb(verb, rest)


def _verbosity(words: list[str]) -> tuple[int, list[str]]:
    """What -q and -v say, and the other words."""
    end = words.index("--") if "--" in words else len(words)
    quiet, loud = ({"-q", "--quiet"} & set(words[:end]), {"-v", "--verbose"} & set(words[:end]))
    if quiet and loud:
        raise UsageError("--quiet and --verbose are opposites; give one of them")
    rest = [word for place, word in enumerate(words) if place >= end or word not in (*quiet, *loud)]
    return (-1 if quiet else 1 if loud else 0), rest


def _run_verb(verb: str, rest: list[str]) -> int:
    if verb in ("-h", "--help", "help"):
        print(overview())
        return 0
    if verb in ("-V", "--version"):
        print(f"leadline {__version__}")
        return 0
    if verb not in VERBS:
        raise UsageError(f"unknown verb {verb!r}; known: {', '.join(VERBS)}.{did_you_mean(verb, VERBS)}")
    for option, value in itertools.pairwise([*rest, "-"]):
        if (option in PLACES and not value) or option in (f"{place}=" for place in PLACES):
            raise UsageError(f"{option.rstrip('=')} is empty; name a place, such as . for the current folder")
    from leadline.cli.options import parse

    module = importlib.import_module(f"leadline.cli.{verb}")
    try:
        parsed = parse(module.Arguments, rest, f"leadline {verb}")
    except SystemExit as stop:
        return int(stop.code or 0) if not isinstance(stop.code, str) else 2
    if (target := getattr(parsed, "json", None)) is not None:
        check_file(target, "--json")
    with warnings.catch_warnings():
        warnings.showwarning = Warnings()
        quiet_libraries()
        try:
            code: int = module.run(parsed)
        except UsageError as error:
            raise as_option(error, parsed) from error
    return code


class Warnings:
    """Prints each warning once and in one line, without the place in the source."""

    def __init__(self) -> None:
        self.said: set[str] = set()

    def __call__(self, message: Warning | str, *place: object, **more: object) -> None:
        """As `warnings.showwarning`."""
        text = str(message)
        if text not in self.said:
            self.said.add(text)
            print(f"leadline: warning: {text}", file=sys.stderr)


def overview() -> str:
    """What `leadline --help` prints."""
    lines = [f"  {verb:<10} {summary}" for verb, summary in VERBS.items()]
    return "\n".join(
        [
            "usage: leadline VERB ...",
            "",
            "Builds, trains, compares and measures the depth of Transformers.",
            "",
            *lines,
            "",
            "-q is quiet: errors and results alone; -v says more, and shows where an error came from.",
            "leadline VERB --help says more. Example: leadline compare --data sotu --preset tiny --out runs/demo",
        ]
    )


def _fail(error: BaseException) -> int:
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    print(f"leadline: error: {text}", file=sys.stderr)
    return 2 if isinstance(error, UsageError) else 1


if __name__ == "__main__":
    sys.exit(main())
