"""The result on a terminal: coloured where someone looks, plain where a file reads."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TextIO

from leadline.bench.results import Result, Row
from leadline.bench.targets import verdict
from leadline.report.words import percent
from leadline.statistics import Median

FAILED = "check failed"


def print_result(result: Result, out: TextIO) -> None:
    """The title, a row for each candidate, the notes, and how many targets are met."""
    print(result.title, file=out)
    heads, rows = cells(result)
    lines = aligned([heads, *rows])
    if out.isatty():
        _print_coloured(lines, result, out)
    else:
        for line in lines:
            print(line, file=out)
    for line in after(result):
        print(line, file=out)


def cells(result: Result) -> tuple[list[str], list[list[str]]]:
    """The heads and every row as text; columns that would be empty are left out."""
    heads = ["operator" if result.bench == "ops" else "design", "backend", "ms", *_ratio_heads(result), "targets"]
    rows = [_row(row, result) for row in result.rows]
    kept = [i for i, head in enumerate(heads) if head in ("design", "operator") or any(row[i] for row in rows)]
    return [heads[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _ratio_heads(result: Result) -> list[str]:
    if result.bench == "ops":
        return ["faster than reference"]
    return [f"time / {result.baseline}", "saved MB", "ratio", "peak MB", "ratio "]


def _row(row: Row, result: Result) -> list[str]:
    numbers = row.numbers
    name = row.group if result.bench == "ops" else row.label
    backend = row.label if result.bench == "ops" else row.backend
    shown = [name, backend, interval(row.time.divided_by(1e-3)) if row.time else ""]
    if result.rounds == 0 and not row.failed:
        return [*shown, "checked", *[""] * len(_ratio_heads(result))]
    if row.failed:
        return [*shown, FAILED, *[""] * (len(_ratio_heads(result)) - 1), row.failed]
    if result.bench == "ops":
        return [*shown, _faster(row), _targets(row)]
    shown.append(interval(row.ratio, 3) if row.ratio else "")
    for key in ("saved", "peak"):
        shown.append(f"{numbers[f'{key}_bytes'] / 1e6:.1f}" if f"{key}_bytes" in numbers else "")
        shown.append(f"{numbers[f'{key}_ratio']:.3f}" if f"{key}_ratio" in numbers else "")
    return [*shown, _targets(row)]


def interval(found: Median, decimals: int | None = None) -> str:
    """`1.152 [1.130, 1.171]`."""
    usual = 3 if found.median < 10 else 2 if found.median < 100 else 1
    digits = usual if decimals is None else decimals
    return f"{found.median:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def _faster(row: Row) -> str:
    """How many times faster than the reference: the ratio turned over."""
    if row.ratio is None:
        return ""
    over = row.ratio
    return f"{1 / over.median:.2f} [{1 / over.high:.2f}, {1 / over.low:.2f}]"


def _targets(row: Row) -> str:
    said = []
    for judged in row.verdicts:
        text = verdict(judged.target, judged.met, judged.by_median, least=judged.found is not None)
        measured = "" if judged.found is None else f"{interval(judged.found, 2)} × "
        said.append(f"{measured}{judged.what}, {text}" if judged.found is not None else f"{judged.what} {text}")
    return "; ".join(said)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines whose columns stand below each other."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def after(result: Result) -> list[str]:
    """What stands below the table."""
    lines = []
    judged = [judged for row in result.rows for judged in row.verdicts]
    if judged:
        met, narrow = sum(one.met for one in judged), sum(one.met and not one.by_median for one in judged)
        alone = f", {narrow} of them by the interval alone" if narrow else ""
        lines.append(f"targets met, row by row: {met} of {len(judged)}{alone}")
    if result.rounds:
        text = f"{result.rounds} rounds, intervals of {percent(coverage(result), 1)}; {result.method}"
        lines += textwrap.wrap(text, 120)
    elif not result.interrupted:
        failed = sum(bool(row.failed) for row in result.rows)
        lines.append(f"checks only: {len(result.rows) - failed} passed, {failed} failed")
    lines += [f"note: {note}" for note in result.notes]
    if result.interrupted:
        lines.append("interrupted: what had been measured is above")
    return lines


def coverage(result: Result) -> float:
    """How surely the intervals cover the medians: the least sure of them."""
    return min((row.time.coverage for row in result.rows if row.time), default=0.0)


def _print_coloured(lines: Sequence[str], result: Result, out: TextIO) -> None:
    """Lines are never folded: columns that stand below each other matter more than the window's width."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out)
    styles = ["bold", *("red" if row.failed else _style(row) for row in result.rows)]
    for line, style in zip(lines, styles, strict=True):
        console.print(Text(line, style=style), no_wrap=True, crop=False, overflow="ignore")


def _style(row: Row) -> str:
    """Green where every target is met, by the median too; yellow where one is not."""
    if not row.verdicts:
        return ""
    return "green" if all(judged.met and judged.by_median for judged in row.verdicts) else "yellow"
