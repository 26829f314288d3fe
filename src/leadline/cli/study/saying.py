"""What the studies have in common on the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from leadline.cli.repeating import repeating


def command_line(study: str, asked: Any) -> str:
    """The command that repeats these options, quoted for a shell, without what is at its default."""
    return repeating(["study", study], asked)


def say(text: str) -> None:
    """Progress, on standard error: one line that is drawn anew on a terminal, lines elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def print_findings(results: dict[str, Any], out: Path) -> None:
    """The finding, the claims and what else is to be said, on standard output."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    print(results["headline"])
    for judgement in results["judgements"]:
        print(f"  {judgement['claim']}: {judgement['outcome'].upper()}. {judgement['evidence']}")
    for sentence in results["sentences"]:
        print(f"  {sentence}")
    print(f"report: {out / 'report.html'}")
    sys.stdout.flush()


def check_workers(jobs: int | None, threads: int | None) -> None:
    """Raises UsageError where there would be no worker, or no thread."""
    from leadline.errors import UsageError

    for option, value in (("--jobs", jobs), ("--threads", threads)):
        if value is not None and value < 1:
            raise UsageError(f"{option} {value} is too small; 1 or more work")
