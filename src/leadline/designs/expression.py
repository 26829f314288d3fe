"""Design expressions: `mgr(streams=8, gate=independent) + bhyt`. Read by hand; nothing is evaluated."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
import types
import typing
from typing import Any

from leadline.config import read_first
from leadline.designs.parts import PARTS, Part, part_named
from leadline.errors import UsageError, did_you_mean

_TERM = re.compile(r"\s*(?P<name>[A-Za-z][\w.-]*)\s*(?:\((?P<options>[^()]*)\)\s*)?\Z")
_LONGEST_SLUG = 80


@dataclasses.dataclass(frozen=True)
class Term:
    """One part of an expression.

    Attributes:
        part: of the names that mean the same, the one that needs the fewest options.
        options: the part's dataclass, made from what was given.
        written: the name that stood in the expression.
    """

    part: Part
    options: Any
    written: str

    @property
    def text(self) -> str:
        """The shortest way to write it."""
        inside = ", ".join(f"{key}={_written(value)}" for key, value in _differences(self.part, self.options).items())
        return f"{self.part.name}({inside})" if inside else self.part.name


def parse(expression: str) -> list[Term]:
    """The terms of an expression.

    Raises:
        UsageError: it can't be read, or a name, an option or a value is wrong.
    """
    if not expression.strip():
        raise UsageError("the design is empty; prenorm and mgr(streams=8) + bhyt are examples")
    return [_parse_term(text, expression) for text in _split(expression)]


def _split(expression: str) -> list[str]:
    """Splits at `+` outside parentheses, so that 1e+3 may stand inside."""
    terms, depth = [""], 0
    for character in expression:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "+" and depth == 0:
            terms.append("")
        else:
            terms[-1] += character
    return terms


def _parse_term(text: str, expression: str) -> Term:
    match = _TERM.match(text)
    if match is None:
        raise UsageError(
            f"design {expression.strip()!r}: {text.strip()!r} can't be read; "
            "write NAME or NAME(option=value, option=value), joined by +"
        )
    part = part_named(match["name"].lower().replace("_", "-"))
    hints = typing.get_type_hints(part.options)
    known = [field.name for field in dataclasses.fields(part.options) if field.init]
    given: dict[str, Any] = {}
    for item in (match["options"] or "").split(","):
        if not item.strip():
            continue
        key, equals, value = (piece.strip() for piece in item.partition("="))
        if not equals or not value:
            options = f"; {part.name} has {', '.join(known)}" if known else ""
            raise UsageError(f"{part.name}({item.strip()}): write option=value{options}")
        key = key.replace("-", "_")
        if key not in known:
            options = f"it has {', '.join(known)}" if known else "it has no options"
            raise UsageError(f"{part.name} has no option {key!r}; {options}.{did_you_mean(key, known)}")
        if key in given:
            raise UsageError(f"{part.name} has option {key} twice")
        given[key] = read_value(hints[key], value, f"{part.name}({key}=…)")
    try:
        options = part.make(given)
    except UsageError as error:
        raise UsageError(f"{part.name}: {error}") from error
    return Term(_shortest(part, options), options, part.name)


def read_value(hint: Any, text: str, where: str) -> Any:
    """A value of the annotated type from text.

    Raises:
        UsageError: the text is not such a value; the values that work follow.
    """
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        choices = typing.get_args(hint)
        absent = type(None) in choices and text.lower() == "none"
        return None if absent else read_first(choices, lambda choice: read_value(choice, text, where))
    if typing.get_origin(hint) is typing.Literal:
        known = {str(choice): choice for choice in typing.get_args(hint)}
        if text not in known:
            raise UsageError(f"{where}: {text!r} is not known; {', '.join(known)} work.{did_you_mean(text, known)}")
        return known[text]
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise UsageError(f"{where}: {text!r} should be true or false")
        return text.lower() == "true"
    if hint in (int, float):
        try:
            value = hint(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            wanted = "a whole number" if hint is int else "a finite number"
            raise UsageError(f"{where}: {text!r} should be {wanted}")
        return value
    return text


def slug(text: str) -> str:
    """A canonical expression as a name for files and folders: letters, digits, dots, dashes and underscores."""
    safe = text.replace(" + ", "__").replace(", ", "_").replace("(", "-").replace("=", "-").replace(")", "")
    safe = safe.replace("/", "of").replace(":", "_").replace("~", "to")
    safe = re.sub(r"[^A-Za-z0-9._-]", "-", safe)
    if len(safe) <= _LONGEST_SLUG:
        return safe
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return f"{safe[: _LONGEST_SLUG - 11]}-{digest}"


def _shortest(part: Part, options: Any) -> Part:
    same = [other for other in PARTS.values() if (other.options, other.slots) == (part.options, part.slots)]
    return min(same, key=lambda other: len(_differences(other, options)))


def _differences(part: Part, options: Any) -> dict[str, Any]:
    """The options that must be written after the part's name to mean `options`."""
    default = part.make({})
    names = [field.name for field in dataclasses.fields(options) if field.init]
    return {n: getattr(options, n) for n in names if getattr(options, n) != getattr(default, n)}


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
