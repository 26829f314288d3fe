"""Where prepared data is kept."""

from __future__ import annotations

import os
from pathlib import Path

from leadline.errors import LeadlineError


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
