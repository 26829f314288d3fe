"""Writing that is whole or not at all: a temporary name, fsync, rename."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Calls `write(temporary)` and renames the result to `path`; an error leaves nothing behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write(temporary)
        with open(temporary, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames in `folder` durable, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text atomically."""
    write_atomically(path, lambda temporary: _write(temporary, text))


def write_json(path: Path, value: Any) -> None:
    """Writes JSON atomically; NaN and infinity are errors, so that any reader can read it."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
