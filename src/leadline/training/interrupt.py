"""Ctrl-C ends a run at the end of its step; a second one ends it at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Interrupt:
    """Whether someone asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextlib.contextmanager
def catch_interrupt() -> Iterator[Interrupt]:
    """Catches SIGINT and SIGTERM while the context lasts; outside the main thread it catches nothing."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, interrupt.ask) for number in signals]
    try:
        yield interrupt
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
