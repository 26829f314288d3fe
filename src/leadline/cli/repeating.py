"""The command that repeats what was asked, for reports."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Sequence
from typing import Any


def repeating(verb: Sequence[str], arguments: Any, *, without: Collection[str] = ()) -> str:
    """`leadline VERB …` with all options that are not at their default, quoted for a shell; --out stands last.

    Args:
        verb: the words after `leadline`, with those that have no option's name.
        arguments: a dataclass of a verb. A flag is written without a value, a tuple as several words.
        without: fields that are left out, as they stand in `verb` or decide nothing.
    """
    words = ["leadline", *verb]
    given = {field.name: (getattr(arguments, field.name), field.default) for field in dataclasses.fields(arguments)}
    for name in sorted(given, key=lambda name: name == "out"):
        value, default = given[name]
        if name in without or (value == default and name != "out") or value is None:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words += map(str, value) if isinstance(value, tuple) else [str(value)]
    return shlex.join(words)
