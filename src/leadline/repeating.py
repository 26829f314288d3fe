"""The command that repeats what was asked, for reports."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from leadline.counts import format_count, parse_count
from leadline.sections import Checked, option


def repeating(
    verb: Sequence[str], arguments: Any, *, without: Collection[str] = (), out: Path | str | None = None
) -> str:
    """`leadline VERB …` with all options that are not at their default, quoted for a shell; --out stands last.

    Args:
        verb: the words after `leadline`, with those that have no option's name.
        arguments: a dataclass of a verb. A flag is written without a value, a tuple as several words.
        without: fields that are left out, as they stand in `verb` or decide nothing.
        out: the folder, where the dataclass has none.
    """
    words = ["leadline", *verb]
    given = [each for each in _given(arguments, type(arguments)) if each[0] not in without]
    for name, value in sorted(given, key=lambda each: each[0] == "out"):
        words.append(option(name) if value is not False else f"--no-{name.replace('_', '-')}")
        if not isinstance(value, bool):
            words += map(_word, value if isinstance(value, tuple) else [value])
    return shlex.join([*words, "--out", str(out)] if out is not None else words)


def _given(arguments: Any, default: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of the fields, those of sections too, that are not at their default; `out` always."""
    for field in dataclasses.fields(arguments):
        value, usual = getattr(arguments, field.name), getattr(default, field.name, dataclasses.MISSING)
        if isinstance(value, Checked):
            yield from _given(value, usual)
        elif value != usual or field.name == "out":
            yield field.name, value


def _word(value: Any) -> str:
    """A value as it is typed: a count in short where that is exact."""
    short = format_count(value) if isinstance(value, int) and value > 0 else str(value)
    return short if not isinstance(value, int) or value <= 0 or parse_count(short) == value else str(value)
