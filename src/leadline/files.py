"""Writing that is whole or not at all: a temporary name, fsync, rename."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from leadline.errors import LeadlineError, UsageError

SUMS = "checksums.json"
CHUNK = 1 << 20
T = TypeVar("T")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Calls `write(temporary)` and renames the result to `path`; an error leaves nothing behind.

    Raises:
        OSError: it can't be written; names `path`, never the temporary file. A folder or a device is never replaced.
    """
    if path.exists() and not path.is_file():
        number = errno.EISDIR if path.is_dir() else errno.EINVAL
        raise OSError(number, "is a folder" if path.is_dir() else "is not an ordinary file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write(temporary)
        with open(temporary, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise
    sync_folder(path.parent)


def check_file(path: Path, option: str) -> None:
    """Makes sure that a file can be written at `path`, so that this is known before any work.

    Raises:
        UsageError: it is a folder, or lies below a file.
        LeadlineError: nothing can be written there.
    """
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder; name a file")
    if path.exists() and not path.is_file():
        raise UsageError(f"{option} {path} is not an ordinary file; name another")
    _check_parents(path, option)
    check_writable(path.parent, option, path)


def check_folder(path: Path, option: str) -> None:
    """Raises UsageError where `path`, or a part of it, is a file."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{option} {path} is a file; name a folder")
    _check_parents(path, option)


def check_writable(folder: Path, option: str, named: Path | None = None) -> None:
    """Raises LeadlineError where `folder` can't be made or written in; tries it in the nearest one that exists.

    Args:
        named: what the option names, where that is not the folder itself.
    """
    place = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".leadline-", dir=place))
    except OSError as error:
        raise LeadlineError(f"{option} {named or folder} cannot be written: {error.strerror}") from error


def _check_parents(path: Path, option: str) -> None:
    for parent in path.parents:
        if parent.exists():
            if not parent.is_dir():
                raise UsageError(f"{option} {path} lies below {parent}, which is a file; name another place")
            return


def sync_folder(folder: Path) -> None:
    """Makes renames in `folder` durable, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def finite(value: T) -> T:
    """The same data with None for NaN and infinity, which JSON does not have, and lists for tuples."""
    if isinstance(value, dict):
        return cast(T, {key: finite(entry) for key, entry in value.items()})
    if isinstance(value, list | tuple):
        return cast(T, [finite(entry) for entry in value])
    return cast(T, None) if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Writes JSON atomically; NaN and infinity are errors, so that any reader can read it."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_sums(folder: Path) -> None:
    """Writes `checksums.json`: the CRC-32 of every file in a folder, which `check_sum` compares."""
    write_json(folder / SUMS, {path.name: _sum_of(path) for path in sorted(folder.iterdir()) if path.is_file()})


def write_json_with_sum(path: Path, value: Any) -> None:
    """As `write_json`, and keeps the file's checksum beside those that are in `checksums.json`."""
    write_json(path, value)
    write_json(path.parent / SUMS, {**_sums(path.parent), path.name: _sum_of(path)})


def check_sum(path: Path) -> None:
    """Compares a file with the checksum that was written beside it; without one, or the file, nothing is compared.

    Raises:
        LeadlineError: it holds something else than was written, or the checksums can't be read.
        OSError: it can't be read.
    """
    known = _sums(path.parent).get(path.name)
    if known is not None and path.exists() and known != _sum_of(path):
        raise LeadlineError(f"{path} is damaged: it holds something else than was written ({SUMS} says so)")


def forget_sums(folder: Path) -> None:
    """Removes the checksums of a folder in which files are rewritten."""
    (folder / SUMS).unlink(missing_ok=True)


def _sums(folder: Path) -> dict[str, Any]:
    try:
        return {**json.loads((folder / SUMS).read_text(encoding="utf-8"))}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, TypeError, RecursionError) as error:
        raise LeadlineError(f"{folder / SUMS} is damaged: {error}; remove it to continue without checksums") from error


def _sum_of(path: Path) -> str:
    found = 0
    with open(path, "rb") as file:
        while part := file.read(CHUNK):
            found = zlib.crc32(part, found)
    return f"{found:08x}"
