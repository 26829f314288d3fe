"""One process at a time in a folder, and SIGTERM as what Ctrl-C is."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from leadline.errors import LeadlineError

LOCK_FILE = ".lock"


@contextlib.contextmanager
def alone(out: Path, verb: str) -> Iterator[None]:
    """Holds a lock on the folder: two of `leadline VERB` in one would write the same runs.

    Raises:
        LeadlineError: another process holds it.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    try:
        lock = open(out / LOCK_FILE, "w", encoding="utf-8")  # noqa: SIM115 (closed by the `with` below)
    except OSError as error:
        raise LeadlineError(f"--out {out} cannot be written: {error.strerror}") from error
    with lock as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LeadlineError(f"another leadline {verb} is at work in --out {out}; wait for it to end") from error
        yield


@contextlib.contextmanager
def termination_interrupts() -> Iterator[None]:
    """Makes SIGTERM what Ctrl-C is, where we are the main thread."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
