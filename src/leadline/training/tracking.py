"""Trackers beside the run's own records, where someone asks for them: TensorBoard, Weights & Biases, Trackio."""

from __future__ import annotations

import importlib
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leadline.errors import LeadlineError, UsageError
from leadline.files import write_json
from leadline.report.words import listed

MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "trackio": "trackio"}
"""What is imported for each."""
PROJECT = "leadline"
RUN_ID = "tracking.json"
"""In the run's folder: what the run is called at a tracker, so that a resumed run goes on there."""


def trackers_of(text: str | None) -> tuple[str, ...]:
    """`tensorboard,wandb` as names.

    Raises:
        UsageError: one that isn't known, or none.
    """
    if text is None:
        return ()
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if unknown := [name for name in names if name not in MODULES]:
        raise UsageError(
            f"log_to={text}: {unknown[0]!r} is not known; {listed(list(MODULES))} work, with commas between"
        )
    return names


def require_trackers(names: tuple[str, ...]) -> None:
    """Raises UsageError where a tracker's package is not installed."""
    for name in names:
        try:
            importlib.import_module(MODULES[name])
        except ImportError as error:
            raise UsageError(f"log_to={name} needs the package {name}: pip install 'leadline[track]'") from error


class TensorBoard:
    """Events in a folder; those after the step `after` are not shown."""

    def __init__(self, folder: Path, after: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=after + 1)

    def add(self, told: Mapping[str, Any]) -> None:
        """One record, at its `step`."""
        for name, value in told.items():
            if name != "step":
                self._writer.add_scalar(name, value, told["step"])

    def close(self) -> None:
        """Writes what is left."""
        self._writer.close()


class Remote:
    """Weights & Biases, or Trackio, whose interface is the same: `init`, `log` and `finish`.

    What they do with the records is theirs: Weights & Biases sends them unless WANDB_MODE=offline, Trackio keeps them
    on this machine unless it is told of a space.

    Raises:
        LeadlineError: it can't begin, such as without an account.
    """

    def __init__(self, name: str, out: Path, config: Mapping[str, Any]) -> None:
        self._module = importlib.import_module(MODULES[name])
        options: dict[str, Any] = {"project": PROJECT, "name": out.resolve().name, "config": dict(config)}
        if name == "wandb":
            options |= {"id": _run_id(out), "dir": str(out)}
        else:
            options["name"] = f"{options['name']}-{_run_id(out)}"
        try:
            self._module.init(resume="allow", **options)
        except Exception as error:  # theirs, of whatever kind
            raise LeadlineError(f"--log-to {name} can't begin: {error}") from error

    def add(self, told: Mapping[str, Any]) -> None:
        """One record, at its `step`."""
        self._module.log({name: value for name, value in told.items() if name != "step"}, step=told["step"])

    def close(self) -> None:
        """Writes what is left."""
        self._module.finish()


Tracker = TensorBoard | Remote
"""Takes the records of a run."""


def open_tracker(name: str, out: Path, after: int, config: Mapping[str, Any]) -> Tracker:
    """The tracker of that name for the run in `out`.

    Args:
        after: the step that the run resumes from; records of later steps, which an interrupted run left, are replaced
            where the tracker can, and otherwise equal to those that come.
        config: the run's options by their names.
    """
    return TensorBoard(out / "tensorboard", after) if name == "tensorboard" else Remote(name, out, config)


def _run_id(out: Path) -> str:
    """What the run in a folder is called at a tracker; the first time a new name."""
    path = out / RUN_ID
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        name = uuid.uuid4().hex[:8]
        write_json(path, {"id": name})
        return name
