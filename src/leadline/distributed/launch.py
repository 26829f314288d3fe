"""`--nproc N`: N processes of the same command on this machine, without torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from leadline.distributed.world import STORE

GRACE = 15.0
"""Seconds that the others have to end by themselves, once one has failed."""
PATIENCE = 120.0
"""Seconds that they have to save, after an interruption."""
POLL = 0.1
INTERRUPTED = 130


def launch(words: Sequence[str], nproc: int, threads: int) -> int:
    """Runs `leadline WORDS` in so many processes, and returns the exit code: of the first that failed, or 0.

    The first one has the standard output; all have the standard error. Ctrl-C is passed on, once. One that dies ends
    the others.

    Args:
        threads: of each process.
    """
    with tempfile.TemporaryDirectory(prefix="leadline-") as folder:
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ, STORE: str(Path(folder) / "ranks")}
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "leadline", *words],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(nproc)},
                stdout=None if rank == 0 else subprocess.DEVNULL,
                start_new_session=True,  # the terminal's Ctrl-C reaches us alone
            )
            for rank in range(nproc)
        ]
        try:
            return _watched(running)
        except KeyboardInterrupt:
            for process in running:
                process.send_signal(signal.SIGINT)
            _end(running, PATIENCE)
            return INTERRUPTED
        finally:
            for process in running:
                process.kill()
                process.wait()


def _watched(running: Sequence[subprocess.Popen[bytes]]) -> int:
    """Waits until all have ended well, or one has not."""
    while True:
        codes = [process.poll() for process in running]
        if any(codes):
            _end(running, GRACE)
            return next((code for process in running if (code := process.poll() or 0) > 0), 1)
        if None not in codes:
            return 0
        time.sleep(POLL)


def _end(running: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Waits so long for all to end by themselves."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(process.poll() is None for process in running):
        time.sleep(POLL)
