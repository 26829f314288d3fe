"""Where the values of a model stop being finite: a weight that is NaN, or a dtype that overflows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from leadline.errors import LeadlineError
from leadline.stacks.anatomy import first_tensor, hidden_of


def check_finite(model: nn.Module, path: str, blocks: nn.ModuleList, run: Callable[[], object]) -> None:
    """Makes sure that every block that reads finite values leaves finite ones.

    Args:
        path: the name of the list of blocks in the model.
        run: runs the model on a few tokens.

    Raises:
        LeadlineError: one doesn't; names it, its weights that are not finite, and what helps.
    """
    numbers = {block: number for number, block in reversed(list(enumerate(blocks)))}
    found: list[str] = []

    def before(block: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if not found and not _finite(hidden_of(args, kwargs)):
            found.append(f"before block {numbers[block]}")

    def after(block: nn.Module, args: object, output: object) -> None:
        if not found and not _finite(first_tensor(output)):
            found.append(f"in block {numbers[block]}")

    with contextlib.ExitStack() as stack:
        for block in numbers:
            stack.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(after).remove)
        logits = run()
    if not found and isinstance(logits, Tensor) and bool(logits.isnan().any()):
        found.append("behind the last block")
    if found:
        raise LeadlineError(
            f"the values of {type(model).__name__} stop being finite {found[0]} of {path}, so it can't be measured: "
            f"{_cause(model)}"
        )


def _finite(tensor: Tensor | None) -> bool:
    return tensor is None or bool(tensor.isfinite().all())


def _cause(model: nn.Module) -> str:
    damaged = [name for name, value in model.named_parameters() if not _finite(value)]
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        return f"{damaged[0]}{more} holds weights that are not finite"
    dtype = next((value.dtype for value in model.parameters() if value.is_floating_point()), torch.float32)
    largest = f"{dtype} holds nothing above {torch.finfo(dtype).max:.3g}".removeprefix("torch.")
    if torch.finfo(dtype).bits >= 32:
        return largest
    python = "open_model(FOLDER, dtype=torch.float32)"
    return f'{largest}; float32 helps: "dtype": "float32" in config.json, in Python {python}'
