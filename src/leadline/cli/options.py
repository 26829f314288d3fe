"""How a verb's options are read: tyro, with errors that name the wrong word first and a help without empty defaults.

Whole numbers are counts (1.2M, 20k); a configuration's sections are groups of the help. `--config FILE` gives defaults.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import itertools
import json
import os
import shutil
import sys
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from leadline.cli.terminal import as_option
from leadline.config import from_dict, to_dict
from leadline.counts import MOST_FLOPS, parse_count
from leadline.errors import UsageError, did_you_mean
from leadline.sections import Checked, check_all, field_names, nested, unchecked

METAVARS: dict[Any, str] = {str: "STR", int: "INT", float: "FLOAT", Path: "PATH"}
SWITCHED = ("true", "false", "yes", "no", "on", "off", "1", "0")
"""What people write behind an option that takes no value."""


ONE_COLUMN = 129
"""Characters, the most at which the parser's help has one column."""
RENAMED = {"recompute": "activation-checkpointing", "accumulation": "grad-accumulation"}
"""Spellings that work for one more version."""


class _CountError(Exception):
    """Not a ValueError, which the parser would put into a box."""


def parse(arguments: type, words: Sequence[str], prog: str) -> Any:
    """The words of a command line as an instance of `arguments`, a dataclass.

    Raises:
        UsageError: an option that isn't known, or a value behind one that takes none, before anything that is missing
            is complained of; or a value that does not work.
        SystemExit: from the parser: help was asked for, or something else is wrong and has been said.
    """
    import tyro

    for name, field, kind in _subcommands(arguments):
        if [name] == list(words[:1]):
            return arguments(**{field: parse(kind, words[1:], f"{prog} {name}")})
    words = [_without_section(word, arguments) for word in words]
    words = [word for pair in itertools.pairwise([*words, ""]) if (word := _renamed(*pair)) is not None]
    check(words, dict(_options(arguments)), prog)
    words, file = _config_file(arguments, words)
    for each in each_dataclass(arguments):
        without_none(each)
    plain = _plain() if os.environ.get("NO_COLOR") else contextlib.nullcontext()
    with plain, _one_column(), unchecked():
        default = {} if file is None else {"default": from_file(arguments, file)}
        try:
            found = tyro.cli(
                arguments,
                args=words,
                prog=prog,
                description=_description(arguments),
                registry=_counts(),
                config=(tyro.conf.OmitArgPrefixes,),
                **default,
            )
        except _CountError as error:
            text = str(error)
            pairs = itertools.pairwise([*words, ""])
            option = next((word for word, after in pairs if text in (after, word.partition("=")[2])), "")
            parse_count(text, option.partition("=")[0])
            raise
    try:
        check_all(found)
    except UsageError as error:
        raise as_option(error, found) from error
    return found


def from_file(arguments: type, path: Path) -> Any:
    """The arguments' defaults from a TOML or JSON file, or from a run's or an experiment's folder; the rest as it is.

    Raises:
        UsageError: no such file, or an option in it that isn't known or doesn't work.
    """
    import tyro

    known = field_names(arguments)
    given = {
        name: value for name, value in read_config(path).items() if name in known or name not in ("design", "seed")
    }
    content = nested(arguments, given)
    hints = typing.get_type_hints(arguments)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(arguments):
        if field.name in content:
            value = content[field.name]
            if isinstance(field.default, Checked):
                value = {**to_dict(field.default), **value}
            values[field.name] = from_dict(hints[field.name], value, field.name)
        elif field.default is field.default_factory is dataclasses.MISSING:
            values[field.name] = tyro.MISSING
    return arguments(**values)


def read_config(path: Path) -> dict[str, Any]:
    """The options in a file, TOML or JSON, with or without sections; of a run's or an experiment's its `config`."""
    from leadline.training.config import options_of_run

    for name in ("run.json", "experiment.json"):
        if (path / name).is_file():
            path = path / name
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise UsageError(f"--config {path} can't be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"--config {path} is neither TOML (.toml) nor JSON: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"--config {path} should hold options by name")
    found = content.get("config", content)
    return options_of_run(found) if "design" in found else dict(found)


def _config_file(arguments: type, words: Sequence[str]) -> tuple[list[str], Path | None]:
    """The words without `--config FILE`, and that file; verbs without a configuration have no such option.

    With --extend it is the run in --out, unless another is named.
    """
    if not issubclass(arguments, Checked):
        return list(words), None
    kept: list[str] = []
    named: dict[str, str] = {}
    before = ""
    for word, after in itertools.pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        named[name] = value if equals else after
        if name != "--config" and before != "--config":
            kept.append(word)
        before = word
    out = Path(named.get("--out", ""))
    own = {"--config": out} if "--extend" in named and (out / "run.json").is_file() else {}
    file = (own | named).get("--config")
    return kept, None if file is None else Path(file)


def _without_section(word: str, arguments: type) -> str:
    """`--optimizer.lr` is `--lr`: no two sections have an option of the same name."""
    section, dot, name = word.removeprefix("--").partition(".")
    inside = {field.name.replace("_", "-") for field in dataclasses.fields(arguments)}
    known = word.startswith("--") and dot and section.replace("_", "-") in inside
    return f"--{name}" if known and section != "out" else word


def _renamed(word: str, after: str) -> str | None:
    """An option in its present spelling, None for one that changes nothing; warns of one that has changed."""
    name, equals, value = word.removeprefix("--").partition("=")
    bare = name.removeprefix("no-")
    new = RENAMED.get(bare, bare)
    if bare == "lr" and not (value if equals else after).replace(".", "").replace("-", "").isalnum():
        new = "rates"  # design=rate, which --lr took as well
    if word in ("--tensorboard", "--no-tensorboard"):
        _warn_renamed(word, "--log-to tensorboard")
        return None if word.startswith("--no-") else "--log-to=tensorboard"
    if not word.startswith("--") or new == bare:
        return word
    new = name.replace(bare, new)
    _warn_renamed(f"--{name}", f"--{new}")
    return f"--{new}{equals}{value}"


def _warn_renamed(old: str, new: str) -> None:
    print(f"leadline: warning: {old} is now {new}; the old name goes in the next version", file=sys.stderr)


def _counts() -> Any:
    """The parser's rule for whole numbers: 500, 20k, 1.2M."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

    registry = ConstructorRegistry()

    def number(words: list[str]) -> int:
        try:
            return int(words[0])
        except ValueError:
            pass
        try:
            return parse_count(words[0], most=MOST_FLOPS)
        except UsageError as error:
            raise _CountError(words[0]) from error

    @registry.primitive_rule
    def rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
        if info.type is not int:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT",
            instance_from_str=number,
            is_instance=lambda value: isinstance(value, int),
            str_from_instance=lambda value: [str(value)],
        )

    return registry


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


def each_dataclass(arguments: type) -> Iterator[type]:
    """The class, and those of its sections and of the verbs below it."""
    yield arguments
    for hint in typing.get_type_hints(arguments).values():
        for part in _parts(hint):
            if dataclasses.is_dataclass(part) and isinstance(part, type):
                yield from each_dataclass(part)


def _subcommands(arguments: type) -> Iterator[tuple[str, str, type]]:
    """The words that a verb such as `study` takes first: each with the field that it fills, and that field's type."""
    import tyro

    named: Any = type(tyro.conf.subcommand(""))
    for field, hint in typing.get_type_hints(arguments, include_extras=True).items():
        inside = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
        for part in typing.get_args(inside):
            for mark in getattr(part, "__metadata__", ()):
                if isinstance(mark, named):
                    yield str(mark.name), field, typing.get_args(part)[0]


def _options(arguments: type) -> Iterator[tuple[str, Any]]:
    if issubclass(arguments, Checked):
        yield "config", Path
    for each in each_dataclass(arguments):
        for name, hint in typing.get_type_hints(each).items():
            (first, *_) = (part for part in _parts(hint) if part is not type(None))
            yield name.replace("_", "-"), first


def without_none(arguments: type) -> None:
    """An option that is None, or off, unless given shows neither that default nor None among its values."""
    import tyro

    hints = typing.get_type_hints(arguments, include_extras=True)
    for field in dataclasses.fields(arguments):
        hint = hints[field.name]
        kinds = [part for part in _parts(hint) if part is not type(None)]
        shown: dict[str, Any] = {"help_behavior_hint": ""}
        if len(kinds) < len(list(_parts(hint))):
            shown["metavar"] = _metavar(kinds)
            if field.default is not None:  # here None is a value of its own
                shown = {"metavar": f"{shown['metavar']}|None"}
        elif kinds != [bool] or field.default is not False:
            continue
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


def _description(arguments: type) -> str:
    text = inspect.cleandoc(arguments.__doc__ or "")
    if issubclass(arguments, Checked):
        text += "\n\nOptions can stand in a file: --config FILE (TOML or JSON), or another run's folder."
    return text


@contextlib.contextmanager
def _one_column() -> Iterator[None]:
    """The parser puts its help into two columns on wide terminals, where hardly an option fits on one line."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(min(shutil.get_terminal_size().columns, ONE_COLUMN))
    try:
        yield
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before


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
