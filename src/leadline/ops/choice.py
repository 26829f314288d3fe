"""Which implementation of an operator runs: the reference (the truth), or the lean one with hand-written gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from leadline.errors import UsageError

Backend = Literal["auto", "reference", "lean"]

_forced: list[Backend] = ["auto"]


@contextlib.contextmanager
def use_backend(backend: Backend) -> Iterator[None]:
    """Makes `backend="auto"` mean `backend` inside the block, in this process. For tests and measurements."""
    check_backend(backend)
    _forced.append(backend)
    try:
        yield
    finally:
        _forced.pop()


def chosen(backend: Backend) -> Literal["reference", "lean"]:
    """The implementation to run: an explicit one, or lean.

    Raises:
        UsageError: the name is not known.
    """
    check_backend(backend)
    if backend == "auto":
        backend = _forced[-1]
    return "lean" if backend == "auto" else backend


def check_backend(backend: str) -> None:
    """Raises UsageError for a name that no implementation has."""
    if backend not in ("auto", "reference", "lean"):
        raise UsageError(f"backend={backend!r} is not known; auto, reference and lean work")
