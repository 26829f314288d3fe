"""What a sweep has measured so far, so that one that was interrupted goes on where it was.

`sweep.json` holds `asked`, all that decides the numbers (models by their weights, text, options), and `known`, each
score and each loss under a name of its own. It is written whole after every measurement.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from leadline import __version__
from leadline.errors import LeadlineError, UsageError
from leadline.files import check_folder, check_writable, write_json

MEMORY_FILE = "sweep.json"
T = TypeVar("T")


class SweepMemory:
    """Numbers by name: kept in a file where there is one, else for as long as this lives.

    Args:
        path: of the file; its folder exists.
        asked: what decides the numbers; those of a file that was asked for something else are dropped.
    """

    def __init__(self, path: Path | None = None, asked: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.asked = _plain(asked or {})
        self._known: dict[str, Any] = {}
        if path is not None and path.is_file():
            kept = read_memory(path)
            if kept["asked"] == self.asked:
                self._known = kept["known"]

    def recall(self, name: str, measure: Callable[[], T]) -> T:
        """What is known under the name, or what `measure` gives, which is kept. It has to be what JSON can hold."""
        if name not in self._known:
            found = measure()
            self._known[name] = found
            if self.path is not None:
                write_json(self.path, {"asked": self.asked, "known": self._known})
        value: T = self._known[name]
        return value


def check_sweep_folder(out: Path, beside: Sequence[str] = ()) -> None:
    """Makes sure that a folder can become a sweep's, or is one's.

    Args:
        beside: names of files that don't count.

    Raises:
        UsageError: it is a file, or holds something else.
        LeadlineError: nothing can be written there.
    """
    check_folder(out, "--out")
    if not (out / MEMORY_FILE).is_file() and out.exists() and any(entry.name not in beside for entry in out.iterdir()):
        raise UsageError(f"--out {out} holds something already; name a new or empty folder")
    check_writable(out, "--out")


def check_same_sweep(out: Path, asked: Mapping[str, Any]) -> None:
    """Makes sure that what was measured in a folder is of a sweep that asked the same.

    Raises:
        UsageError: it is another's; says what differs.
        LeadlineError: the file is damaged.
    """
    path = out / MEMORY_FILE
    if not path.is_file():
        return
    before, now = read_memory(path)["asked"], _plain(asked)
    different = [name for name in now if before.get(name) != now[name]]
    if different:
        raise UsageError(
            f"--out {out} holds another sweep, which differs in: {', '.join(different)}; name a new folder, or repeat "
            "the command that it was made with to go on"
        )


def read_memory(path: Path) -> dict[str, Any]:
    """The content of `sweep.json`. Raises LeadlineError where it is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LeadlineError(f"can't read {path}: {error}; remove it to measure anew") from error
    if not isinstance(content, dict) or not all(isinstance(content.get(name), dict) for name in ("asked", "known")):
        raise LeadlineError(f"{path} is damaged: it should hold `asked` and `known`; remove it to measure anew")
    return content


def versions() -> dict[str, str]:
    """What else decides numbers."""
    return {"leadline": __version__, "torch": torch.__version__}


@torch.no_grad()
def hash_of_weights(model: nn.Module) -> str:
    """SHA-256 of all parameters and buffers with their names, in hexadecimal; dtypes and shapes count."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def hash_of_file(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal. Raises LeadlineError where it can't be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise LeadlineError(f"can't read {path}: {error.strerror or error}") from error


def _plain(asked: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back: lists for tuples."""
    found: dict[str, Any] = json.loads(json.dumps(asked))
    return found
