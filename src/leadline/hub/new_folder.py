"""A model's folder that appears whole or not at all: written under a hidden name, then moved to where it was asked for.

    check_new(out)                       # before any work
    with placed(out, "pruned") as hidden:
        model.save(hidden)

A folder that isn't there yet gets its name in one step. An empty one that is there stays the same folder, as it may be
where the user is, a mounted one, or what a link names: the files move into it, `config.json` last, without which
there is no model in it. What a process that was killed left under a hidden name is removed by the next `check_new`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from leadline.errors import LeadlineError, UsageError
from leadline.files import check_folder, check_writable, sync_folder

LAST = "config.json"
ENDINGS = ("pruned", "partial")
"""Of hidden folders."""


def check_new(out: Path) -> None:
    """Makes sure that `out` can become a new folder, and removes what killed processes left of earlier ones there.

    Raises:
        UsageError: it is a file, lies below one, holds something, or is a link to itself.
        LeadlineError: nothing can be read or written there; known now, not after minutes of measuring.
    """
    place = Path(os.path.realpath(out)) if out.is_symlink() else out
    if place.is_symlink():
        raise UsageError(f"--out {out} is a link that leads nowhere; name a new or empty folder")
    check_folder(place, "--out")
    _remove_leftovers(Path(os.path.realpath(out)))
    try:
        full = place.exists() and any(place.iterdir())
    except OSError as error:
        raise LeadlineError(f"--out {out} cannot be read: {error.strerror or error}") from error
    if full:
        raise UsageError(f"--out {out} holds something already; name a new or empty folder")
    check_writable(place, "--out")


@contextlib.contextmanager
def placed(out: Path, ending: str) -> Iterator[Path]:
    """Yields the path of a hidden folder, which isn't there yet; at the end what is in it is in `out`.

    An error leaves nothing behind but the folders above `out`.

    Args:
        ending: of the hidden folder's name, one of `ENDINGS`.

    Raises:
        LeadlineError: it can't be written. Errors from inside the context name `out` in place of the hidden folder.
    """
    place = Path(os.path.realpath(out))
    is_there = place.is_dir()
    name = f".{place.name}.{os.getpid()}.{ending}"
    hidden = place / name if is_there else place.with_name(name)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        yield hidden
        if is_there:
            _move_into(hidden, place)
        else:
            os.replace(hidden, place)
        sync_folder(place.parent)
    except OSError as error:
        raise LeadlineError(f"can't write --out {out}: {error.strerror or error}") from error
    except LeadlineError as error:
        # The hidden folder is gone by the time anyone reads this.
        said = str(error).replace(f"--out {hidden}", str(hidden)).replace(str(hidden), f"--out {out}")
        raise LeadlineError(said) from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _remove_leftovers(place: Path) -> None:
    """Removes the hidden folders of processes that are dead, beside `place` and inside of it."""
    hidden = re.compile(rf"\.{re.escape(place.name)}\.(\d+)\.({'|'.join(ENDINGS)})")
    for folder in (place.parent, place):
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                match = hidden.fullmatch(path.name)
                if match and path.is_dir() and not path.is_symlink() and not _runs(int(match[1])):
                    shutil.rmtree(path, ignore_errors=True)


def _runs(process: int) -> bool:
    """Whether there is a process of that number, whoever's it is; taken for granted where it can't be asked."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True


def _move_into(hidden: Path, place: Path) -> None:
    """Moves all that is in `hidden` into `place`, which holds nothing else."""
    if any(path != hidden for path in place.iterdir()):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(place))
    names = sorted((path.name for path in hidden.iterdir()), key=lambda name: name == LAST)
    moved: list[str] = []
    try:
        for name in names:
            os.replace(hidden / name, place / name)
            moved.append(name)
    except BaseException:
        for name in reversed(moved):
            os.replace(place / name, hidden / name)
        raise
    sync_folder(place)
