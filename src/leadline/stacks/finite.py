"""Where the values of a model stop being finite: a weight that is NaN, or a dtype that overflows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leadline.errors import LeadlineError
from leadline.stacks.base import StackWatcher


class FirstNotFinite(StackWatcher):
    """Finds the first block that reads finite values and leaves others.

    Attributes:
        where: it, in words; None where all values were finite.
    """

    def __init__(self) -> None:
        self.where: str | None = None

    def on_block(self, block: int, before: Tensor, after: Tensor) -> None:
        for where, state in (("before", before), ("in", after)):
            if self.where is None and not state.isfinite().all():
                self.where = f"{where} block {block}"

    def check(self, model: nn.Module, path: str, logits: Tensor) -> None:
        """Raises LeadlineError where values were not finite; names the block, its weights, and what helps.

        Args:
            path: the name of the list of blocks in the model.
        """
        if self.where is None and logits.isnan().any():
            self.where = "behind the last block"
        if self.where is not None:
            raise LeadlineError(
                f"the values of {type(model).__name__} stop being finite {self.where} of {path}, so it can't be "
                f"measured: {_cause(model)}"
            )


def _cause(model: nn.Module) -> str:
    damaged = [name for name, value in model.named_parameters() if not value.isfinite().all()]
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        return f"{damaged[0]}{more} holds weights that are not finite"
    dtype = next((value.dtype for value in model.parameters() if value.is_floating_point()), torch.float32)
    largest = f"{dtype} holds nothing above {torch.finfo(dtype).max:.3g}".removeprefix("torch.")
    if torch.finfo(dtype).bits >= 32:
        return largest
    python = "open_model(FOLDER, dtype=torch.float32)"
    return f'{largest}; float32 helps: "dtype": "float32" in config.json, in Python {python}'
