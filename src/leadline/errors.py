"""Errors that name the option to change and the values that work."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


class LeadlineError(Exception):
    """Something failed for a reason a user can act on. The command line prints it and exits 1."""


class UsageError(LeadlineError, ValueError):
    """An option, a name or a value is wrong. The command line prints it and exits 2."""


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """The nearest known names as the end of a sentence, or an empty string.

    >>> did_you_mean("prenrom", ["prenorm", "mgr"])
    ' Did you mean prenorm?'
    """
    near = difflib.get_close_matches(wrong, list(known), n=2, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def optional(module: str, why: str, extra: str) -> Any:
    """A module of a package that an extra brings. Raises LeadlineError, which names the extra, where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise LeadlineError(f'{why}: pip install "leadline[{extra}]"') from error
