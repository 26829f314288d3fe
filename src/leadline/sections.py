"""Configuration classes: every number within its limits, and sections whose fields all have names of their own.

Positive = Annotated[int, Range(1, MOST)]

@dataclass(frozen=True, kw_only=True)
class Data(Checked):
    tokens: Positive | None = None       # Data(tokens=0) raises UsageError: tokens=0 is too small; 1 or more work
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar

from leadline.errors import UsageError, did_you_mean
from leadline.report.words import listed

T = TypeVar("T")
MOST = 10**18


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that an option takes: `low` to `high`, more than `low` if `above`, less than `high` if `below`."""

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False

    def check(self, name: str, value: Any, whole: bool) -> None:
        """Raises UsageError where the value is outside, or not a number of this kind."""
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise UsageError(f"{name}={value!r} is not a {'whole ' if whole else ''}number")
        low = value > self.low if self.above else value >= self.low
        high = value < self.high if self.below else value <= self.high
        if low and high and math.isfinite(value):
            return
        if whole:
            side, limit = (
                ("small", f"{self.low:g} or more work") if not low else ("large", f"{self.high:g} is the most")
            )
            raise UsageError(f"{name}={value} is too {side}; {limit}")
        raise UsageError(f"{name}={value:g} is out of range; {self.words()}")

    def words(self) -> str:
        """What works."""
        least = f"more than {self.low:g}" if self.above else f"{self.low:g} or more"
        if math.isinf(self.high):
            return f"a finite number, {least}, works"
        if not self.above and not self.below:
            return f"a number from {self.low:g} to {self.high:g} works"
        return f"{least} and {'less than' if self.below else 'at most'} {self.high:g} work"


Positive = Annotated[int, Range(1, MOST)]
NotNegative = Annotated[int, Range(0, MOST)]
PositiveFloat = Annotated[float, Range(0, above=True)]
NotNegativeFloat = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]


_UNCHECKED = contextvars.ContextVar("unchecked", default=False)


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Nothing is checked where it is made, as while a command line is read; `check_all` does so afterwards."""
    token = _UNCHECKED.set(True)
    try:
        yield
    finally:
        _UNCHECKED.reset(token)


def check_all(config: Any) -> None:
    """Checks a configuration and its sections. Raises UsageError."""
    if dataclasses.is_dataclass(config):
        for field in dataclasses.fields(config):
            check_all(getattr(config, field.name))
    if isinstance(config, Checked):
        config.check()


class Checked:
    """A dataclass whose numbers are checked against their `Range`, and whose choices against their `Literal`.

    A subclass that checks more overrides `check`.
    """

    def __post_init__(self) -> None:
        if not _UNCHECKED.get():
            self.check()

    def check(self) -> None:
        """Raises UsageError where a value is out of range, or does not go with another."""
        for name, limits, whole, choices in _limits(typing.cast(Any, type(self))):
            value = getattr(self, name)
            if value is None:
                continue
            if limits is not None:
                limits.check(name, value, whole)
            elif choices and value not in choices:
                raise UsageError(f"{name}={value} is not known; {listed([str(choice) for choice in choices])} work")


def needs(section: Checked, name: str, there: bool, partner: str) -> None:
    """Raises UsageError where an option is given that does nothing without another."""
    value = getattr(section, name)
    if value is not None and not there:
        raise UsageError(f"{name}={value} does nothing without {partner}; give both, or none of them")


def with_fields(config: T, options: Mapping[str, Any]) -> T:
    """The configuration with other values, by the names of fields in whatever section they are.

    Raises:
        UsageError: no field has this name.
    """
    found: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        section = _section_of(type(config), name, isinstance(value, Checked))
        if section:
            inside.setdefault(section, {})[name] = value
        else:
            found[name] = value
    for section, values in inside.items():
        found[section] = dataclasses.replace(found.get(section, getattr(config, section)), **values)
    return dataclasses.replace(config, **found)  # type: ignore[type-var]


def nested(cls: type, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data with fields put into their sections; what is in sections already stays there.

    Raises:
        UsageError: no field has this name.
    """
    found: dict[str, Any] = {}
    for name, value in flat.items():
        section = _section_of(cls, name, isinstance(value, Mapping))
        if section:
            found.setdefault(section, {})[name] = value
        elif isinstance(value, Mapping) and name in _sections(cls):
            found.setdefault(name, {}).update(value)
        else:
            found[name] = value
    return found


def flat(cls: type, content: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `nested`: every field of every section beside the others."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        found |= value if name in _sections(cls) and isinstance(value, Mapping) else {name: value}
    return found


def field_names(cls: type) -> set[str]:
    """The names of all fields, those of sections too; empty for a class that is not a dataclass."""
    if not dataclasses.is_dataclass(cls):
        return set()
    own = {field.name for field in dataclasses.fields(cls)}
    return own.union(*_sections(cls).values())


def _section_of(cls: Any, name: str, whole: bool) -> str:
    """The section that a field is in, empty for one of the class's own; `whole` is a section itself."""
    sections = _sections(cls)
    own = {field.name for field in dataclasses.fields(cls)}
    if name in own and (whole or name not in sections):
        return ""
    for section, names in sections.items():
        if name in names:
            return section
    known = sorted(field_names(cls))
    raise UsageError(f"{name!r} is not an option; known: {', '.join(known)}.{did_you_mean(name, known)}")


@functools.cache
def _sections(cls: Any) -> dict[str, tuple[str, ...]]:
    hints = typing.get_type_hints(cls)
    return {
        name: tuple(field.name for field in dataclasses.fields(typing.cast(Any, hint)))
        for name, hint in hints.items()
        if isinstance(hint, type) and issubclass(hint, Checked)
    }


@functools.cache
def _limits(cls: Any) -> list[tuple[str, Range | None, bool, tuple[Any, ...]]]:
    """Of every field that has limits or choices: its name, those, and whether it is a whole number."""
    found = []
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        for part in _alternatives(hint):
            limits = next((each for each in getattr(part, "__metadata__", ()) if isinstance(each, Range)), None)
            base = typing.get_args(part)[0] if limits is not None else part
            choices = typing.get_args(part) if typing.get_origin(part) is typing.Literal else ()
            if limits is not None or choices:
                found.append((name, limits, base is int, choices))
    return found


def _alternatives(hint: Any) -> Iterator[Any]:
    """Each of a union; a hint with limits of its own stays as it is."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for part in typing.get_args(hint):
            yield from _alternatives(part)
    elif typing.get_origin(hint) is Annotated and not any(isinstance(each, Range) for each in hint.__metadata__):
        yield from _alternatives(typing.get_args(hint)[0])
    else:
        yield hint


def option(name: str) -> str:
    """What the command line calls a field."""
    return "--" + name.replace("_", "-")
