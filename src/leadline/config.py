"""Frozen dataclasses and typed dictionaries to and from plain data. Unknown keys of a dataclass are errors.

A class that can stand where a base class is expected (a connection, a norm, a placement) carries a
`kind`, which the plain data keeps; everything else is found from the annotations.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from leadline.errors import UsageError, did_you_mean

T = TypeVar("T")

_KINDS: dict[str, type] = {}
_MOST = 2**64
"""What a whole number stays below; more can't be computed with as a float or written again."""


def kind(name: str) -> Callable[[type[T]], type[T]]:
    """Class decorator: registers a dataclass under the name that plain data uses for it."""

    def register(cls: type[T]) -> type[T]:
        if name in _KINDS:
            raise RuntimeError(f"two configuration classes are called {name!r}")
        _KINDS[name] = cls
        type.__setattr__(cls, "kind", name)
        return cls

    return register


def check_choices(config: Any, said: str = "is not known") -> None:
    """Raises UsageError where a field of a dataclass is none of the values of its `Literal`."""
    for name, choices in _choices(cast(Any, type(config))).items():
        value = getattr(config, name)
        if value not in choices:
            raise UsageError(f"{name}={value!r} {said}; {', '.join(choices[:-1])} and {choices[-1]} work")


def check_numbers(config: Any, *, positive: Sequence[str] = (), not_negative: Sequence[str] = ()) -> None:
    """Raises UsageError where a field of a dataclass is less than 1, or than 0; None is neither."""
    bounds = [(name, 1, "be at least 1") for name in positive] + [(name, 0, "not be negative") for name in not_negative]
    for name, least, said in bounds:
        value = getattr(config, name)
        if value is not None and not value >= least:
            raise UsageError(f"{name}={value} must {said}")


@functools.cache
def _choices(cls: Any) -> dict[str, tuple[str, ...]]:
    hints = typing.get_type_hints(cls)
    return {name: typing.get_args(hint) for name, hint in hints.items() if typing.get_origin(hint) is typing.Literal}


def to_dict(value: Any) -> Any:
    """A dataclass (or a tuple, dict or scalar in one) as data that JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
        name = getattr(type(value), "kind", None)
        return {"kind": name, **fields} if name else fields
    if isinstance(value, tuple | list | frozenset | set):
        return [to_dict(v) for v in value]
    if isinstance(value, dict):
        return {str(k): to_dict(v) for k, v in value.items()}
    return str(value) if isinstance(value, Path) else value


def differing(
    before: Mapping[str, Any], now: Mapping[str, Any], places: tuple[str, str] = ("there", "here")
) -> list[str]:
    """What two plain data differ in, as `model dim is 8 there and 16 here`; nothing where they are equal.

    Args:
        places: what the first and the second are called.
    """
    old, new = dict(_flat(before)), dict(_flat(now))
    return [
        f"{name.replace('_', ' ')} is {_said(old.get(name, 'unset'))} {places[0]} "
        f"and {_said(new.get(name, 'unset'))} {places[1]}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]


def _flat(content: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with the words that lead to it; entries of lists are counted from 1."""
    entries = content.items() if isinstance(content, Mapping) else enumerate(content, start=1)
    for key, value in entries:
        place = f"{where} {key}".strip()
        if isinstance(value, Mapping | list):
            yield from _flat(value, place)
        else:
            yield place, value


def _said(value: Any) -> str:
    """A value in words; of a hash its beginning."""
    text = str(value).removesuffix(",")
    return f"{text[:12]}…" if re.fullmatch("[0-9a-f]{64}", text) else text


def from_dict(cls: type[T], data: Any, where: str = "configuration") -> T:
    """The inverse of `to_dict`.

    Args:
        cls: a dataclass, or a TypedDict, whose other keys stay as they are.
        where: how errors call the data; "it" leaves entries without a prefix.

    Raises:
        UsageError: an unknown kind or key, or a value of the wrong type, named with its place.
    """
    return cast(T, _read(cls, data, where))


def _read(hint: Any, data: Any, where: str) -> Any:
    if hint is Any:
        return data
    if hint is Path:
        return Path(_read_scalar(str, data, where))
    if hint in (int, float, str, bool):  # most of what is read, and quickly found
        return _read_scalar(hint, data, where)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        choices = typing.get_args(hint)
        absent = data is None and type(None) in choices
        return None if absent else read_first(choices, lambda choice: _read(choice, data, where))
    if origin is typing.Literal:
        choices = typing.get_args(hint)
        if data not in choices:
            raise UsageError(f"{where} is {data!r}; it can be {_listed(choices)}")
        return data
    if origin in (tuple, list):
        items = typing.get_args(hint)
        if not isinstance(data, list | tuple):
            raise UsageError(f"{where} should be a list, not {type(data).__name__}")
        if origin is list or items[1:] == (...,):
            items = (items[0],) * len(data)
        if len(items) != len(data):
            raise UsageError(f"{where} should have {len(items)} entries, not {len(data)}")
        return origin(_read(item, v, f"{where}[{i}]") for i, (item, v) in enumerate(zip(items, data, strict=True)))
    if origin is dict:
        return {str(k): _read(typing.get_args(hint)[1], v, _entry(where, k)) for k, v in _mapping(data, where).items()}
    if typing.is_typeddict(hint):
        return _read_typed_dict(hint, data, where)
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or "kind" in getattr(data, "keys", list)()):
        return _read_dataclass(hint, data, where)
    return _read_scalar(hint, data, where)


def read_first(choices: tuple[Any, ...], read: Callable[[Any], Any]) -> Any:
    """What `read` makes of the first of the types that it accepts; None among them is passed over.

    Raises:
        UsageError: it accepts none; the error is that of the first.
    """
    errors = []
    for choice in (choice for choice in choices if choice is not type(None)):
        try:
            return read(choice)
        except UsageError as error:
            errors.append(error)
    raise errors[0]


def _mapping(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise UsageError(f"{where} should be a mapping, not {type(data).__name__}")
    return data


def _entry(where: str, name: str) -> str:
    return name if where == "it" else f"{where}.{name}"


@functools.cache
def _typed_dict(hint: Any) -> dict[str, tuple[Any, bool]]:
    """By key the type, and whether it has to be there."""
    hints = typing.get_type_hints(hint, include_extras=True)
    return {
        name: (typing.get_args(inner)[0], False) if typing.get_origin(inner) is typing.NotRequired else (inner, True)
        for name, inner in hints.items()
    }


def _read_typed_dict(hint: Any, data: Any, where: str) -> Any:
    found = dict(_mapping(data, where))
    for name, (inner, needed) in _typed_dict(hint).items():
        if name in found:
            found[name] = _read(inner, found[name], _entry(where, name))
        elif needed:
            raise UsageError(f"{where} lacks {name}")
    return found


def _read_dataclass(cls: type, data: Any, where: str) -> Any:
    data = dict(_mapping(data, where))
    # What has a field of that name is of one kind alone.
    own = dataclasses.is_dataclass(cls) and "kind" in [field.name for field in dataclasses.fields(cls)]
    name = None if own else data.pop("kind", None)
    if name is not None:
        chosen = _KINDS.get(str(name))
        if chosen is None or not issubclass(chosen, cls):
            known = [k for k, c in _KINDS.items() if issubclass(c, cls)]
            raise UsageError(
                f"{where}: unknown kind {name!r}; known: {_listed(known)}.{did_you_mean(str(name), known)}"
            )
        cls = chosen
    hints = typing.get_type_hints(cls)
    known = [f.name for f in dataclasses.fields(cls) if f.init]
    for key in data:
        if key not in known:
            raise UsageError(f"{where}: unknown key {key!r}; known: {_listed(known)}.{did_you_mean(key, known)}")
    needed = [f for f in dataclasses.fields(cls) if f.init and f.default is f.default_factory is dataclasses.MISSING]
    if lacking := [f.name for f in needed if f.name not in data]:
        raise UsageError(f"{where} lacks {_listed(lacking)}")
    return cls(**{k: _read(hints[k], v, _entry(where, k)) for k, v in data.items()})


def _read_scalar(hint: Any, data: Any, where: str) -> Any:
    if isinstance(data, int) and hint in (int, float) and abs(data) >= _MOST:
        raise UsageError(f"{where} is too large a number")
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if hint in (int, float, str) and (not isinstance(data, hint) or isinstance(data, bool)):
        raise UsageError(f"{where} should be {hint.__name__}, not {_short(data)}")
    if hint is float and not math.isfinite(data):
        raise UsageError(f"{where} should be a finite number, not {data}")
    if hint is bool and not isinstance(data, bool):
        raise UsageError(f"{where} should be true or false, not {_short(data)}")
    return data


def _short(value: Any) -> str:
    text = repr(value)
    return f"{text[:60]}…" if len(text) > 60 else text


def _listed(values: Any) -> str:
    return ", ".join(str(v) for v in values)
