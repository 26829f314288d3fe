"""JSON from files, read with care: whatever is wrong is an error that names the file and the line.

A line ends with a line feed and nothing else, so U+2028, U+2029 and U+0085 may stand in a string. A byte order mark at
the start of a line is left out: concatenated files have one in the middle.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from leadline.errors import LeadlineError

MAX_RECORD_BYTES = 64_000_000
"""The longest line or parquet value that is read, unless another number is given: memory is a few times as much."""
MARK = "\ufeff"


def parse_json(text: str, where: str) -> Any:
    """The value that `text` holds.

    Raises:
        LeadlineError: it isn't JSON, is nested too deeply, or holds a number that Python doesn't convert.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise LeadlineError(f"{where} is not JSON that can be read: it is nested too deeply") from error
    except json.JSONDecodeError as error:
        advice = ""
        if MARK in text:
            advice = "; a byte order mark stands inside the line, where files were joined without a line break"
        raise LeadlineError(f"{where} is not JSON: {error}{advice}") from error
    except ValueError as error:
        raise LeadlineError(f"{where} holds a number with too many digits, of which Python converts 4,300") from error


def read_json(path: Path) -> Any:
    """The value that a file holds; a byte order mark is left out.

    Raises:
        FileNotFoundError, NotADirectoryError: it isn't there.
        LeadlineError: it can't be read, or isn't JSON in UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise LeadlineError(f"{path} cannot be read: {error}") from error
    return parse_json(text, str(path))


def read_lines(
    handle: IO[bytes], path: str | Path, *, limit: int = MAX_RECORD_BYTES, option: str = ""
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects in a file of JSON lines; empty lines are left out.

    Args:
        path: what errors call the file.
        limit: bytes of the longest line.
        option: what raises the limit, for the error.

    Yields:
        The line's number, from 1, and the object in it.

    Raises:
        LeadlineError: a line that is too long, isn't UTF-8, isn't JSON or isn't an object.
    """
    offset = number = 0
    while line := handle.readline(limit + 1):
        number += 1
        where = f"{path}, line {number}"
        if len(line) > limit:
            raise too_long(where, limit, option)
        try:
            text = line.decode().removeprefix(MARK)
        except UnicodeDecodeError as error:
            raise not_utf8(path, offset + error.start, line[error.start], line[:2]) from error
        offset += len(line)
        if not text.strip():
            continue
        record = parse_json(text, where)
        if not isinstance(record, dict):
            raise LeadlineError(f"{where} is {type(record).__name__}, not an object")
        yield number, record


def too_long(where: str, limit: int, option: str) -> LeadlineError:
    """The error for a record of more than `limit` bytes."""
    advice = f"; {option} raises the limit, and memory grows with it" if option else ""
    return LeadlineError(f"{where} is longer than {limit:,} bytes{advice}")


def not_utf8(path: str | Path, offset: int, byte: int, start: bytes) -> LeadlineError:
    """The error for a byte that isn't UTF-8; `start` is the beginning of the file or line."""
    hint = ""
    if offset == 0 and start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        hint = "; it looks like UTF-16, so convert it first"
    return LeadlineError(f"{path} is not UTF-8: byte 0x{byte:02x} at offset {offset}{hint}")
