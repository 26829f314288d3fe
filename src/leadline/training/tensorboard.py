"""TensorBoard events, where someone asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leadline.errors import UsageError


class Events:
    """Writes every number of a record under its name.

    Raises:
        UsageError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError("--tensorboard needs the package tensorboard: pip install 'leadline[track]'") from error
        self._writer = SummaryWriter(str(folder))

    def add(self, told: dict[str, Any]) -> None:
        """One record, at its `step`."""
        for name, value in told.items():
            if name != "step":
                self._writer.add_scalar(name, value, told["step"])

    def close(self) -> None:
        """Writes what is left."""
        self._writer.close()
