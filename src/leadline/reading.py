"""Reading the JSON that Leadline wrote: what is damaged is an error that names the file, never another number.

summary = read_json(path, Summary)
rows = read_lines(path, StepRow)
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from leadline.config import from_dict
from leadline.errors import LeadlineError

T = TypeVar("T")
DEEPEST = 64
"""Lists and objects inside each other; what Leadline writes has a dozen at most."""


def read_json(path: Path, kind: type[T], *, more: bool = False, advice: str = "") -> T:
    """What a file holds.

    Args:
        kind: a dataclass, a TypedDict, or a plain `dict[str, Any]`.
        more: pass over keys that a dataclass doesn't have.
        advice: what to do where the file is damaged: the end of the error's sentence.

    Raises:
        FileNotFoundError: there is no such file.
        LeadlineError: it can't be read, is no JSON in UTF-8, or holds something else; names the file, and the place.
    """
    try:
        content = _parse(path.read_bytes(), _finite)
        if not isinstance(content, dict):
            raise ValueError("it should hold an object")
        if more and dataclasses.is_dataclass(kind):
            content = {field.name: content[field.name] for field in dataclasses.fields(kind) if field.name in content}
        return from_dict(kind, content, "it")
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise LeadlineError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise LeadlineError(f"{path} is damaged: {error}{advice and f'; {advice}'}") from error


def read_lines(path: Path, kind: type[T], *, advice: str = "") -> list[T]:
    """The rows of a file of JSON lines; none where there is no file.

    Half a line at the end, which a process that was killed leaves, is passed over.

    Args:
        kind: a TypedDict with `step`, which never falls from one row to the next.

    Raises:
        LeadlineError: it can't be read, or a line holds something else; names the file and the line.
    """
    try:
        *lines, torn = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LeadlineError(f"{path} cannot be read: {error.strerror or error}") from error
    rows: list[T] = []
    before: Any = None
    for number, line in enumerate((*lines, torn), start=1):
        try:
            row: Any = from_dict(kind, _parse(line), "it")
            if before is not None and row["step"] < before:
                raise ValueError(f"step {row['step']} comes after step {before}")
        except (ValueError, TypeError, RecursionError) as error:
            if number > len(lines):
                break
            raise LeadlineError(f"{path}, line {number} is damaged: {error}{advice and f'; {advice}'}") from error
        before = row["step"]
        rows.append(row)
    return rows


def _parse(data: bytes, number: Callable[[str], float] | None = None) -> Any:
    """Raises ValueError, also for text that can't be written again. `number` reads floats, NaN and Infinity."""
    text = data.decode("utf-8")
    value = json.loads(text, parse_float=number, parse_constant=number)
    if "\\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # half of a pair is not text
    if text.count("[") + text.count("{") <= DEEPEST:
        return value
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level if isinstance(outer, dict | list) for inner in _inside(outer)]
        if not level:
            return value
    raise ValueError(f"it has more than {DEEPEST} lists and objects inside each other")


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value
