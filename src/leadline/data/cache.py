"""Where prepared data is kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leadline.errors import LeadlineError
from leadline.files import check_folder


class WriteError(LeadlineError):
    """A data set could not be written. `reason` says why, without the folder and the option."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def cache_folder() -> Path:
    """`$LEADLINE_CACHE`, or `leadline` below `$XDG_CACHE_HOME` or `~/.cache`."""
    if own := os.environ.get("LEADLINE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leadline"


@contextmanager
def cached(name: str) -> Iterator[Path]:
    """The folder in the cache for the prepared data of that name.

    Raises:
        LeadlineError: it could not be written inside the `with`; names the cache.
    """
    cache = cache_folder()
    check_folder(cache, "LEADLINE_CACHE")
    try:
        yield cache / "data" / name
    except WriteError as error:
        raise LeadlineError(
            f"the cache {cache} could not be written: {error.reason}; LEADLINE_CACHE names another folder for it"
        ) from error
