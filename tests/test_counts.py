"""Counts on the command line."""

from __future__ import annotations

import pytest

from leadline.counts import format_count, parse_count
from leadline.errors import UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500", 500),
        ("20k", 20_000),
        ("1.2M", 1_200_000),
        ("1.2m", 1_200_000),
        ("3e14", 300_000_000_000_000),
        ("3E+14", 300_000_000_000_000),
        ("1.5B", 1_500_000_000),
        ("2G", 2_000_000_000),
        ("1T", 10**12),
        ("1_000", 1000),
        ("0.29k", 290),
        (".5k", 500),
        ("4.35e2", 435),
        (" 7 ", 7),
    ],
)
def test_counts_are_exact(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize(
    "text", ["", "k", "1.2.3", "-5", "1e-3", "nan", "inf", "12 k", "5x", "1e999", "٣", "0x10", "1M5"]
)
def test_what_is_no_count_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match=r"--tokens .* is not a count; write it like 500, 20k"):
        parse_count(text, "--tokens")


def test_fractions_and_zero_are_refused() -> None:
    with pytest.raises(UsageError, match="not a whole number"):
        parse_count("1.5")
    with pytest.raises(UsageError, match="too small"):
        parse_count("0")


@pytest.mark.parametrize(
    ("value", "text"),
    [(7, "7"), (999, "999"), (1000, "1k"), (1_234_567, "1.23M"), (999_900, "1M"), (3 * 10**14, "300T")],
)
def test_counts_are_written_short(value: int, text: str) -> None:
    assert format_count(value) == text
