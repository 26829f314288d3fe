"""How far a command is, on standard error: one line that is written over on a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
import contextvars
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

LIVE_SECONDS = 0.2
CLEAR = "\r\x1b[K"
_VERBOSITY = contextvars.ContextVar("verbosity", default=0)


def verbosity() -> int:
    """-1 is quiet: errors and results alone. 1 is verbose: every report, and errors with their traceback."""
    return _VERBOSITY.get()


@contextlib.contextmanager
def verbose(level: int) -> Iterator[None]:
    """Another verbosity meanwhile."""
    token = _VERBOSITY.set(level)
    try:
        yield
    finally:
        _VERBOSITY.reset(token)


def note(text: str) -> None:
    """A line on standard error, unless it is to be quiet."""
    if verbosity() >= 0:
        print(text, file=sys.stderr, flush=True)


class StatusLine:
    """What is being done now.

    Args:
        seconds: between two lines where there is no terminal.
        stream: standard error unless given.
        clock: in seconds.
    """

    def __init__(
        self, seconds: float = 5.0, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stream, self.clock = stream or sys.stderr, clock
        self.live = self.stream.isatty()
        self.every = LIVE_SECONDS if self.live else 0.0 if verbosity() > 0 else seconds
        self.said: float | None = None
        self.shown = False

    def __call__(self, text: str) -> None:
        """Says it if the last was said long enough ago."""
        now = self.clock()
        if self.said is None or now - self.said >= self.every:
            self.said = now
            self.show(text)

    def show(self, text: str) -> None:
        """Says it, in the place of what was said before; a narrow terminal cuts it."""
        if verbosity() < 0:
            return
        if self.live:
            room = shutil.get_terminal_size().columns - 1
            text = text if len(text) <= room else text[: room - 1] + "…"
            self.stream.write(f"{CLEAR}{text}")
            self.shown = True
        else:
            self.stream.write(f"{text}\n")
        self.stream.flush()

    def keep(self, text: str) -> None:
        """A line that stays."""
        self.close()
        if verbosity() >= 0:
            self.stream.write(f"{text}\n")
            self.stream.flush()

    def close(self) -> None:
        """Takes the live line away."""
        if self.shown:
            self.stream.write(CLEAR)
            self.stream.flush()
            self.shown = False
