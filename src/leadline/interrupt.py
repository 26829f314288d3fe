"""SIGTERM, and SIGHUP of a terminal that closes, as what Ctrl-C is: saved, exit code 130."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

Handler = Callable[[int, FrameType | None], None]
HANGUP = getattr(signal, "SIGHUP", None)
"""Windows has none."""


class Interrupt:
    """Whether someone asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        """The signal handler; a second signal stops at once."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextlib.contextmanager
def catch_interrupt() -> Iterator[Interrupt]:
    """Catches SIGINT, SIGTERM and SIGHUP while the context lasts; outside the main thread it catches nothing."""
    interrupt = Interrupt()
    with _handling((signal.SIGINT, signal.SIGTERM), interrupt.ask):
        yield interrupt


@contextlib.contextmanager
def termination_interrupts() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP what Ctrl-C is; outside the main thread it does nothing."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handling((signal.SIGTERM,), interrupt):
        yield


@contextlib.contextmanager
def _handling(signals: tuple[signal.Signals, ...], handler: Handler) -> Iterator[None]:
    """Handles these and SIGHUP, unless it is ignored, as under nohup."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hang_up(number: int, frame: FrameType | None) -> None:
        _silence_closed_terminal()
        handler(number, frame)

    before = {number: signal.signal(number, handler) for number in signals}
    if HANGUP is not None and signal.getsignal(HANGUP) is not signal.SIG_IGN:
        before[HANGUP] = signal.signal(HANGUP, hang_up)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _silence_closed_terminal() -> None:
    """Lets standard output and error lead nowhere where their terminal is gone: a progress line must stop no saving."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
