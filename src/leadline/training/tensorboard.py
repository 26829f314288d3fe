"""TensorBoard events, where someone asks for them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from leadline.errors import UsageError


def require_tensorboard() -> None:
    """Raises UsageError where TensorBoard is not installed."""
    try:
        importlib.import_module("torch.utils.tensorboard")
    except ImportError as error:
        raise UsageError("--tensorboard needs the package tensorboard: pip install 'leadline[track]'") from error


class Events:
    """Writes every number of a record under its name.

    Args:
        folder: of the events.
        after: events of later steps, which an interrupted run left, are not shown.
    """

    def __init__(self, folder: Path, after: int) -> None:
        require_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=after + 1)

    def add(self, told: dict[str, Any]) -> None:
        """One record, at its `step`."""
        for name, value in told.items():
            if name != "step":
                self._writer.add_scalar(name, value, told["step"])

    def close(self) -> None:
        """Writes what is left."""
        self._writer.close()
