"""JSON lines that a resumed run continues without a gap and without a repeat."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from leadline.files import write_text


class Lines:
    """One file of JSON objects, each with its `step`.

    Args:
        path: continued if it is there.
        after: lines of later steps, and half a line at the end, are dropped.
    """

    def __init__(self, path: Path, after: int) -> None:
        self.path = path
        keep_until(path, after)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (lives as long as the run)

    def add(self, record: dict[str, Any]) -> None:
        """Appends a line; `flush` makes it durable."""
        self._file.write(json.dumps(record) + "\n")

    def flush(self) -> None:
        """Writes what was added to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flushes and closes."""
        self._file.close()


def keep_until(path: Path, step: int) -> None:
    """Drops the lines of steps after `step`, and what is no whole line."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break
        if record["step"] > step:
            break
        kept.append(line + "\n")
    write_text(path, "".join(kept))
