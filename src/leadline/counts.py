"""Counts as people write them: 1.2M, 20k, 3e14."""

from __future__ import annotations

import re
from decimal import Decimal

from leadline.errors import UsageError

MOST = 10**18
MOST_FLOPS = 10**30
_SUFFIXES = {"": 0, "k": 3, "m": 6, "b": 9, "g": 9, "t": 12}
_PATTERN = re.compile(r"(\d[\d_]*(?:\.\d+)?|\.\d+)(?:e\+?(\d{1,2}))?([kmbgt]?)", re.IGNORECASE | re.ASCII)


def parse_count(text: str, option: str = "count", *, most: int = MOST) -> int:
    """A whole number from 1 to `most` from `500`, `20k`, `1.2M`, `1.5B` (or `G`), `2T` or `3e14`.

    Raises:
        UsageError: `text` is none of these, names `option`.

    >>> parse_count("1.2M"), parse_count("3e14")
    (1200000, 300000000000000)
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{option} {text!r} is not a count; write it like 500, 20k, 1.2M, 1.5B or 3e14")
    number, exponent, suffix = match.groups()
    value = Decimal(number.replace("_", "")).scaleb(int(exponent or 0) + _SUFFIXES[suffix.lower()])
    if value != value.to_integral_value():
        raise UsageError(f"{option} {text!r} is not a whole number")
    if value < 1:
        raise UsageError(f"{option} {text!r} is too small; it can be 1 or more")
    if value > most:
        raise UsageError(f"{option} {text!r} is too large; it can be {most:.0e} at most")
    return int(value)


def format_count(value: int) -> str:
    """A count in three digits or so.

    >>> format_count(1_234_567)
    '1.23M'
    """
    for suffix, power in (("T", 12), ("B", 9), ("M", 6), ("k", 3)):
        if value >= 0.9995 * 10**power:
            return f"{value / 10**power:.3g}{suffix}"
    return str(value)
