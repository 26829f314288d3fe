"""JSON lines that a resumed run continues without a gap and without a repeat."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from leadline.errors import LeadlineError
from leadline.files import write_atomically
from leadline.reading import read_lines

STEPS = "steps.jsonl"
EVALS = "evals.jsonl"
DEPTH = "depth.jsonl"


Shares = list[float | None]


class Row(TypedDict):
    """What every line has."""

    step: int


class StepRow(Row):
    """What is read of a line of `steps.jsonl`."""

    tokens: int
    loss: float
    tokens_per_second: NotRequired[float]


class EvalRow(Row):
    """What is read of a line of `evals.jsonl`."""

    tokens: int
    bits_per_byte: NotRequired[float]
    loss: NotRequired[float]


class Detail(Row):
    """What is read of one record of effective rank and diversity, which `gradient.json` keeps."""

    effective_rank: NotRequired[Shares]
    cosine: NotRequired[Shares]


class Lines:
    """One file of JSON objects, each with its `step`; every line can be read as soon as it is added.

    Args:
        path: continued if it is there.
        after: lines of later steps, and half a line at the end, are dropped.

    Raises:
        LeadlineError: the file can't be written, or a line in it is damaged; so do the methods.
    """

    def __init__(self, path: Path, after: int) -> None:
        self.path = path
        with self._named():
            self._last = keep_until(path, after)
            self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 (lives as long as the run)

    def check(self, step: int, loss: float) -> None:
        """Makes sure that what was kept ends with a step and its loss; a file that was removed is not an error.

        Raises:
            LeadlineError: it does not.
        """
        last = self._last
        if last is not None and (last["step"], last.get("loss", loss)) != (step, loss):
            what = f"it ends at step {last['step']}" if last["step"] != step else f"it has another loss of step {step}"
            raise LeadlineError(
                f"{self.path} doesn't fit the checkpoint of step {step}: {what}; put the right one back, or remove it "
                "to continue without the record"
            )

    def add(self, record: dict[str, Any]) -> None:
        """Appends a line."""
        with self._named():
            self._file.write(json.dumps(record) + "\n")

    def flush(self) -> None:
        """Makes what was added durable.

        Raises:
            LeadlineError: the file was removed, moved or replaced, so what was added is lost.
        """
        with self._named():
            self._file.flush()
            os.fsync(self._file.fileno())
            there = self.path.exists() and os.path.samestat(self.path.stat(), os.fstat(self._file.fileno()))
        if not there:
            raise LeadlineError(
                f"{self.path} was removed or replaced while the run went on; nothing more is written there"
            )

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


def keep_until(path: Path, step: int) -> Row | None:
    """Drops the lines of steps after `step`, and half a line at the end; returns the last one that is kept.

    Raises:
        LeadlineError: another line is damaged; nothing is dropped then.
    """
    advice = f"mend or remove that line, or remove {path.name} to continue without the record"
    if not path.exists():
        return None
    kept = [row for row in read_lines(path, Row, advice=advice) if row["step"] <= step]
    lines = path.read_bytes().split(b"\n")[: len(kept)]
    write_atomically(path, lambda temporary: _write(temporary, lines))
    return kept[-1] if kept else Row(step=0)


def _write(path: Path, lines: list[bytes]) -> None:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
