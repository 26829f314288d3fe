"""JSON lines that a resumed run continues without a gap and without a repeat."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leadline.errors import LeadlineError
from leadline.files import write_text


class Lines:
    """One file of JSON objects, each with its `step`; every line can be read as soon as it is added.

    Args:
        path: continued if it is there.
        after: lines of later steps, and half a line at the end, are dropped.

    Raises:
        LeadlineError: the file can't be written; so do the methods.
    """

    def __init__(self, path: Path, after: int) -> None:
        self.path = path
        with self._named():
            keep_until(path, after)
            self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 (lives as long as the run)

    def add(self, record: dict[str, Any]) -> None:
        """Appends a line."""
        with self._named():
            self._file.write(json.dumps(record) + "\n")

    def flush(self) -> None:
        """Makes what was added durable."""
        with self._named():
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes; what could not be written was said when it was added."""
        with contextlib.suppress(OSError):
            self._file.close()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LeadlineError(f"can't write {self.path}: {error.strerror or error}") from error


def keep_until(path: Path, step: int) -> None:
    """Drops the lines of steps after `step`, and what is no whole line."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            if json.loads(line)["step"] > step:
                break
        except (ValueError, TypeError, KeyError):
            break
        kept.append(line + "\n")
    write_text(path, "".join(kept))
