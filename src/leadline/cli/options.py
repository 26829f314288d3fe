"""How a verb's options are read: tyro, with errors that name the wrong word first and a help without empty defaults."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from leadline.errors import UsageError, did_you_mean

METAVARS: dict[Any, str] = {str: "STR", int: "INT", float: "FLOAT", Path: "PATH"}
SWITCHED = ("true", "false", "yes", "no", "on", "off", "1", "0")
"""What people write behind an option that takes no value."""


def parse(arguments: type, words: Sequence[str], prog: str) -> Any:
    """The words of a command line as an instance of `arguments`, a dataclass.

    Raises:
        UsageError: an option that isn't known, or a value behind one that takes none; before anything that is missing
            is complained of.
        SystemExit: from the parser: help was asked for, or something else is wrong and has been said.
    """
    import tyro

    check(words, dict(_options(arguments)), prog)
    for each in _dataclasses(arguments):
        _without_none(each)
    with _plain() if os.environ.get("NO_COLOR") else contextlib.nullcontext():
        return tyro.cli(arguments, args=list(words), prog=prog, description=arguments.__doc__)


def check(words: Sequence[str], known: Mapping[str, Any], prog: str) -> None:
    """Raises UsageError for an option that isn't known, or a value behind a switch.

    Args:
        known: every option's type by its name, such as "batch-size".
    """
    if "-h" in words or "--help" in words:
        return
    for word, after in itertools.pairwise([*words, ""]):
        if word == "--":
            return
        if not word.startswith("--"):
            continue
        name, equals, value = word.removeprefix("--").replace("_", "-").partition("=")
        switch = known.get(name) is bool or known.get(name.removeprefix("no-")) is bool
        if name not in known and not switch:
            near = did_you_mean(f"--{name}", [f"--{option}" for option in known])
            raise UsageError(f"--{name} is not an option of {prog}.{near} {prog} --help lists them")
        given = value if equals else after
        if switch and (equals or given.lower() in SWITCHED):
            name = name.removeprefix("no-")
            raise UsageError(f"--{name} takes no value, and {given!r} is given; --{name} is on, --no-{name} is off")


def _parts(hint: Any) -> Iterator[Any]:
    """What a hint is made of: its own type, or each of a union."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        yield from _parts(typing.get_args(hint)[0])
    elif origin in (typing.Union, types.UnionType):
        for part in typing.get_args(hint):
            yield from _parts(part)
    else:
        yield hint


def _dataclasses(arguments: type) -> Iterator[type]:
    yield arguments
    for hint in typing.get_type_hints(arguments).values():
        for part in _parts(hint):
            if dataclasses.is_dataclass(part) and isinstance(part, type):
                yield from _dataclasses(part)


def _options(arguments: type) -> Iterator[tuple[str, Any]]:
    for each in _dataclasses(arguments):
        for name, hint in typing.get_type_hints(each).items():
            (first, *_) = (part for part in _parts(hint) if part is not type(None))
            yield name.replace("_", "-"), first


def _without_none(arguments: type) -> None:
    """An option that is None unless given shows neither that default nor None among its values."""
    import tyro

    hints = typing.get_type_hints(arguments, include_extras=True)
    for field in dataclasses.fields(arguments):
        hint = hints[field.name]
        kinds = [part for part in _parts(hint) if part is not type(None)]
        if len(kinds) == len(list(_parts(hint))):
            continue
        shown: dict[str, Any] = {"help_behavior_hint": "", "metavar": _metavar(kinds)}
        if field.default is not None:  # here None is a value of its own
            shown = {"metavar": f"{shown['metavar']}|None"}
        inside = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
        configured = type(tyro.conf.arg())
        own: list[Any] = [each for each in inside[1:] if isinstance(each, configured)]
        for each in own:
            shown |= {name: value for name in shown if (value := getattr(each, name)) is not None}
        others = [each for each in inside[1:] if not isinstance(each, configured)]
        merged = dataclasses.replace(own[0], **shown) if own else tyro.conf.arg(**shown)
        arguments.__annotations__[field.name] = Annotated[(inside[0], *others, merged)]


def _metavar(kinds: Sequence[Any]) -> str | None:
    if typing.get_origin(kinds[0]) is typing.Literal:
        return "{" + ",".join(map(str, typing.get_args(kinds[0]))) + "}"
    return METAVARS.get(kinds[0])


@contextlib.contextmanager
def _plain() -> Iterator[None]:
    """Where the parser writes to something that is no terminal, it writes no colours."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield
    finally:
        sys.stdout.write(out.getvalue())
        sys.stderr.write(err.getvalue())
