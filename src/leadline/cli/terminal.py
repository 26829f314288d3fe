"""The streams that the command line writes to: what they can't encode, and what libraries say there."""

from __future__ import annotations

import codecs
import dataclasses
import io
import os
import re
import sys
import warnings

from leadline.errors import UsageError
from leadline.sections import option

PLAIN = {"−": "-", "–": "-", "—": "-", "\u00a0": " ", "×": "x", "…": "...", "→": "->", "≤": "<=", "≥": ">="}
"""Stand-ins for characters that an encoding such as ASCII or cp1252 lacks; any other becomes a question mark."""
LIBRARIES = r"(transformers|huggingface_hub)(\.|$)"
"""Whose warnings are about how Leadline calls them, and not for a user."""


def make_printable() -> None:
    """Replaces what standard output and error can't encode: a character is no reason to fail."""
    codecs.register_error("leadline", _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="leadline")


def quiet_libraries() -> None:
    """Silences those warnings, within `warnings.catch_warnings()`; TRANSFORMERS_VERBOSITY shows them again."""
    # Read when the library is imported, here or in a worker.
    if os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error") == "error":
        warnings.filterwarnings("ignore", module=LIBRARIES)


def as_option(error: UsageError, arguments: object) -> UsageError:
    """The error for the command line: the library says `batch_size=0` of a field, here it is `--batch-size 0`."""
    names = _names(arguments)

    def said(found: re.Match[str]) -> str:
        return found[0] if found[1] not in names else option(found[1]) + ("" if found[2] else " ")

    text = str(error)
    if text.partition("=")[0] not in names:
        return error
    text = re.sub(r"(?<![\w(,])([a-z_]+)=(True\b)?", said, text)
    return UsageError(re.sub(r"(?<=without )[a-z_]+(?=;)", lambda f: option(f[0]) if f[0] in names else f[0], text))


def _names(arguments: object) -> set[str]:
    """Of all fields, those of sections and of a subcommand too."""
    if not dataclasses.is_dataclass(arguments):
        return set()
    names = set()
    for field in dataclasses.fields(arguments):
        names |= {field.name} | _names(getattr(arguments, field.name))
    return names


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
    """As the handlers of `codecs.register_error`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = (PLAIN.get(character, "?") for character in error.object[error.start : error.end])
    return "".join(found), error.end
