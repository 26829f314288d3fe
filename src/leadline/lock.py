"""One process at a time in a folder.

with claimed(out, "train", check):
    ...                              # another process that asks for the same folder is refused
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from leadline.errors import LeadlineError

LOCK_FILE = ".lock"
RETRY_SECONDS = 0.2


@contextlib.contextmanager
def claimed(out: Path, verb: str, check: Callable[[], None]) -> Iterator[None]:
    """Makes a folder and holds it.

    Args:
        check: raises where the folder can't be used, and writes nothing; asked before, and again when it is held.

    Raises:
        LeadlineError: the folder can't be made, or another process is at work in it; and what `check` raises.
    """
    check()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LeadlineError(f"--out {out} cannot be written: {error.strerror}") from error
    with alone(out, verb):
        check()
        yield


@contextlib.contextmanager
def alone(out: Path, verb: str, *, patience: float = 0.0) -> Iterator[None]:
    """Holds the lock of a folder that is there: two of `leadline VERB` in one would write the same files.

    The lock is on the file `.lock`, which stays when it is released, and ends with the process. Where the system or the
    file system has no such locks, nothing is held.

    Args:
        patience: seconds to wait for another process, such as one that still saves.

    Raises:
        LeadlineError: another process holds it, or `.lock` is a link or something else that is not an ordinary file.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = _open(out)
    try:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise LeadlineError(
                        f"another leadline {verb} is at work in --out {out}; wait for it to end, or name another folder"
                    ) from error
                time.sleep(RETRY_SECONDS)
            except OSError:
                break
        yield
    finally:
        os.close(handle)


def _open(out: Path) -> int:
    """The lock's file, made if need be; no link is followed, and what a file holds stays."""
    path = out / LOCK_FILE
    odd = LeadlineError(f"{path} is not an ordinary file; remove it, or name another --out")
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise odd from error
        raise LeadlineError(f"--out {out} cannot be written: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise odd
    return handle
