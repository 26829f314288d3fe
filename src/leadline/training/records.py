"""A run's records: JSON lines that a resumed run continues without a gap and without a repeat, held-out losses,
and what a finished run says of itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from leadline.errors import LeadlineError
from leadline.files import check_sum, write_atomically
from leadline.reading import read_json, read_lines

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

STEPS = "steps.jsonl"
EVALS = "evals.jsonl"
DEPTH = "depth.jsonl"
SUMMARY = "summary.json"
SEQUENCES = "heldout.npy"
"""The held-out losses of a run's end, by sequence."""
ADVICE = "remove it to finish the run again"


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
    write_atomically(path, lambda temporary: temporary.write_bytes(b"".join(line + b"\n" for line in lines)))
    return kept[-1] if kept else Row(step=0)


def write_sequences(folder: Path, losses: Tensor) -> None:
    """Writes the mean loss of every held-out sequence, (sequences,) nats a token, as float32.

    Raises:
        OSError: it can't be written.
    """
    import numpy as np

    def write(path: Path) -> None:
        with open(path, "wb") as handle:
            np.save(handle, losses.float().numpy())

    write_atomically(folder / SEQUENCES, write)


def load_sequences(folder: Path) -> NDArray[np.float64] | None:
    """What `write_sequences` wrote, (sequences,), as float64; None for a run of an earlier version, without it.

    Raises:
        LeadlineError: the file can't be read, or holds something else.
    """
    import numpy as np

    path = folder / SEQUENCES
    try:
        found = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError) as error:
        raise LeadlineError(f"{path} cannot be read ({error}); remove it, and intervals cover seeds alone") from error
    if (
        not isinstance(found, np.ndarray)
        or found.ndim != 1
        or found.dtype != np.float32
        or not np.isfinite(found).all()
    ):
        raise LeadlineError(f"{path} is damaged: it should hold a finite loss for each held-out sequence; remove it")
    check_sum(path)
    return found.astype(np.float64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """What a finished run says of itself; `summary.json`.

    Attributes:
        loss: held-out, nats a token.
        bits_per_byte: held-out.
        tokens_per_second: of training alone, without evaluations and checkpoints.
        peak_memory_bytes: of the GPU, or of the process on a CPU.
        flops_per_token: of training, the operators along depth included; of the whole model, whatever steps dropped.
        depth_flops_per_token: of these alone.
        seconds: of training alone.
        notes: what else should be known, such as what the FLOPs don't count.
    """

    loss: float
    bits_per_byte: float
    train_loss: float
    steps: int
    tokens: int
    tokens_per_second: float
    peak_memory_bytes: int
    parameters: int
    flops_per_token: int
    depth_flops_per_token: int
    seconds: float
    learning_rate: float
    notes: tuple[str, ...]


def read_summary(path: Path) -> Summary:
    """The summary in a file; what another kind of run says beside it is passed over.

    Raises:
        FileNotFoundError: there is none.
        LeadlineError: it is damaged.
    """
    summary = read_json(path, Summary, more=True, advice=ADVICE)
    below = [f"{name} is {value}" for name, value in vars(summary).items() if name != "notes" and value < 0]
    if below:
        raise LeadlineError(f"{path} is damaged: {', '.join(below)}; {ADVICE}")
    check_sum(path)
    return summary
