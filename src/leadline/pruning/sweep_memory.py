"""What a sweep has measured so far, so that one that was interrupted resumes.

`sweep.json` holds `asked`, all that decides the numbers (models, text, options, versions), and `known`, each score and
each loss under a name of its own, in which the model and, for cfp, the record of gradients stand as hashes. So what is
known of a model stays right whichever models are beside it. It is written whole after every measurement, with a hash of
both, so that a number which was changed since is never taken for a measured one.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import torch

from leadline import __version__
from leadline.config import differing
from leadline.errors import LeadlineError, UsageError
from leadline.files import check_folder, check_writable, write_json
from leadline.pruning.seeds import hash_of_data, shown
from leadline.reading import read_json

MEMORY_FILE = "sweep.json"
STUDY_FILE = "study.json"
"""A folder with this is a study's, whose results a sweep would overwrite."""
WRITTEN = ("results.json", "report.html")
"""What a sweep writes at its end."""
PARTIAL = ".*.json.*.partial"
"""What a sweep that was killed while it wrote leaves."""
T = TypeVar("T")


class SweepMemory:
    """Numbers by name: kept in a file where there is one, else for as long as this lives.

    Args:
        asked: what decides the numbers. Those of a file that was asked for something else are dropped, but for other
            models: their numbers have other names.
        path: of the file; its folder exists.

    Attributes:
        dropped: why what the file held is of no use; empty where it is.
    """

    def __init__(self, asked: Mapping[str, Any], path: Path | None = None) -> None:
        self.path = path
        self.asked = _plain(asked)
        self.dropped: list[str] = []
        self._known: dict[str, Any] = {}
        if path is not None:
            for left in path.parent.glob(f".{path.name}.*.partial"):
                with contextlib.suppress(OSError):
                    left.unlink()
        if path is not None and path.is_file():
            kept = read_memory(path)
            self.dropped = differing(_but_models(kept["asked"]), _but_models(self.asked))
            if not self.dropped:
                self._known = kept["known"]

    def recall(self, name: str, measure: Callable[[], T]) -> T:
        """What is known under the name, or what `measure` returns, which is kept. It has to be what JSON can hold."""
        if name not in self._known:
            found = measure()
            self._known[name] = found
            if self.path is not None:
                digest = hash_of_data([self.asked, self._known])
                write_json(self.path, {"asked": self.asked, "known": self._known, "digest": digest})
        value: T = self._known[name]
        return value


def check_sweep_folder(out: Path, beside: Sequence[str] = ()) -> None:
    """Makes sure that a folder can become a sweep's, or is one's: also one whose `sweep.json` was removed.

    Args:
        beside: names of files that don't count.

    Raises:
        UsageError: it is a file, or holds something else; a study's folder is one.
        LeadlineError: nothing can be written there.
    """
    check_folder(out, "--out")
    if (out / STUDY_FILE).is_file():
        raise UsageError(f"--out {out} holds a study, whose results would be lost; name a new or empty folder")
    if not (out / MEMORY_FILE).is_file() and out.exists() and not _holds_nothing_else(out, beside):
        raise UsageError(f"--out {out} holds something already; name a new or empty folder")
    check_writable(out, "--out")


def check_same_sweep(out: Path, asked: Mapping[str, Any]) -> None:
    """Makes sure that what was measured in a folder is of a sweep that asked the same.

    Raises:
        UsageError: it is another's; says what differs, and both values.
        LeadlineError: the file is damaged.
    """
    path = out / MEMORY_FILE
    if not path.is_file():
        return
    different = shown(read_memory(path)["asked"], _plain(asked))
    if different:
        raise UsageError(
            f"--out {out} holds another sweep: {different}. Name a new folder, or rerun the command that it was made "
            "with to resume"
        )


class MemoryFile(TypedDict):
    """The content of `sweep.json`."""

    asked: dict[str, Any]
    known: dict[str, Any]
    digest: str


def read_memory(path: Path) -> MemoryFile:
    """The content of `sweep.json`. Raises LeadlineError where it is damaged."""
    content = read_json(path, MemoryFile, advice="remove it to measure again")
    if content["digest"] != hash_of_data([content["asked"], content["known"]]):
        raise LeadlineError(f"{path} is damaged: it holds other numbers than were written; remove it to measure again")
    return content


def versions(hugging_face: bool) -> dict[str, str]:
    """Of the programs that decide numbers; of transformers where the models are Hugging Face's."""
    found = {"leadline": __version__, "torch": torch.__version__}
    if hugging_face:
        import transformers

        found["transformers"] = transformers.__version__
    return found


def _holds_nothing_else(out: Path, beside: Sequence[str]) -> bool:
    """Whether all that is in a folder without `sweep.json` is of a sweep."""
    own = set(beside)
    with contextlib.suppress(OSError, ValueError, RecursionError):
        content = json.loads((out / WRITTEN[0]).read_text(encoding="utf-8"))
        if isinstance(content, dict) and {"seeds_are", "whole", "left_out"} <= content.keys():
            own.update(WRITTEN)
    return all(entry.name in own or fnmatch.fnmatch(entry.name, PARTIAL) for entry in out.iterdir())


def _but_models(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if name != "models"}


def _plain(asked: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back: lists for tuples."""
    found: dict[str, Any] = json.loads(json.dumps(asked))
    return found
