"""Results as reports read them from JSON: every value may be missing, and what is not a finite number is None."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from leadline.report.pictures import Row


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def row(value: Any) -> Row:
    """A list of numbers; anything else is an empty list."""
    return [number(v) for v in value] if isinstance(value, list | tuple) else []


def rows(value: Any) -> list[Row]:
    """A list of lists of numbers, ragged or not."""
    return [row(v) for v in value] if isinstance(value, list | tuple) else []


def mapping(value: Any) -> Mapping[str, Any]:
    """The value where it is a mapping, otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Any]:
    """The value where it is a list, otherwise an empty one."""
    return list(value) if isinstance(value, list | tuple) else []


def text(value: Any) -> str:
    """The value as text; nothing for None and for a number that is not finite."""
    missing = value is None or (isinstance(value, float) and not math.isfinite(value))
    return "" if missing else str(value)


def some(values: Row) -> list[float]:
    """The values that are there."""
    return [v for v in values if v is not None]
