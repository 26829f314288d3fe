"""Every step's gradient norms, and the named ways of making one share of them.

    sum              Σ_t n_i(t)                           norms as they are, before clipping
    clipped          Σ_t n_i(t) · min(1, clip / n(t))     what is left of them after clipping by n(t), the whole norm
    mean-of-shares   Σ_t n_i(t) / Σ_j n_j(t)              every step counts alike, however large its gradient
    after-warmup     Σ_{t > warm-up} n_i(t)               without the steps in which the learning rate still rises

n_i(t) is the L2 norm of unit i's gradient in step t. Norms are largest at the start, so `sum` is mostly about it. The
paper (arXiv 2606.26538) does not say which it means; the names are ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from leadline.errors import LeadlineError, UsageError
from leadline.files import check_sum
from leadline.models.saving import write_tensors

NORMS = "gradient_norms.safetensors"
Definition = Literal["sum", "clipped", "mean-of-shares", "after-warmup"]
DEFINITIONS: tuple[Definition, ...] = get_args(Definition)
Share = float | None
"""None where there never was a gradient."""
Numbers = NDArray[Any]


class StepNorms(NamedTuple):
    """The gradient norms of S steps, L blocks and U sublayers; NaN where a unit had no gradient in a step.

    Attributes:
        step: (S,) int64, counted from 1.
        total: (S,) float32, the norm of all gradients together, before clipping.
        block: (S, L) float32.
        sublayer: (S, U) float32.
    """

    step: Numbers
    total: Numbers
    block: Numbers
    sublayer: Numbers

    def between(self, first: int, last: float) -> StepNorms:
        """The steps from `first` to `last`, both included, whose norms are finite."""
        kept = (self.step >= first) & (self.step <= last) & np.isfinite(self.total)
        return StepNorms(*(part[kept] for part in self))

    def save(self, folder: Path) -> None:
        """Writes `gradient_norms.safetensors` into a folder.

        Raises:
            LeadlineError: it can't be written.
        """
        content = {name: torch.from_numpy(part.copy()) for name, part in self._asdict().items()}
        try:
            write_tensors(folder / NORMS, content)
        except (OSError, SafetensorError) as error:
            raise LeadlineError(f"can't write {folder / NORMS}: {error}") from error


def empty_norms(blocks: int, sublayers: int) -> StepNorms:
    """Those of no step."""
    none = np.zeros((0,), np.float32)
    return StepNorms(
        np.zeros((0,), np.int64), none, np.zeros((0, blocks), np.float32), np.zeros((0, sublayers), np.float32)
    )


def load_norms(folder: Path | str) -> StepNorms:
    """Every step's gradient norms, as training left them in a run's folder or a checkpoint's.

    Raises:
        UsageError: there are none.
        LeadlineError: the file is damaged.
    """
    path = Path(folder) / NORMS
    if not path.is_file():
        raise UsageError(
            f"{folder} has no {NORMS}; `leadline train` writes it, and GradientShare.save in a loop of one's own"
        )
    try:
        content: dict[str, Any] = load_file(path)
        norms = StepNorms(**content)
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise LeadlineError(f"{path} is damaged: {error}; remove it to continue without it") from error
    for part, dims, kind in zip(norms, (1, 1, 2, 2), (np.int64, *[np.float32] * 3), strict=True):
        if part.ndim != dims or part.dtype != kind or len(part) != len(norms.step):
            raise LeadlineError(
                f"{path} is damaged: its entries do not fit each other; remove it to continue without it"
            )
    check_sum(path)
    return norms


def find_norms(folder: Path) -> StepNorms | None:
    """As `load_norms`; None for a checkpoint from before every step's norms were kept."""
    return load_norms(folder) if (folder / NORMS).is_file() else None


def shares(
    norms: StepNorms,
    definition: Definition,
    *,
    unit: Literal["block", "sublayer"] = "block",
    clip: float | None = None,
    warmup: int = 0,
    when_present: bool = False,
) -> list[Share]:
    """The share of the gradient that each block or sublayer received, by one definition.

    Args:
        norms: of the steps that count; steps that are not finite count nothing.
        clip: the norm that training clipped to; None where it did not, and `clipped` is `sum`.
        warmup: steps in which the learning rate rises.
        when_present: divide each unit's sum by the number of steps in which it had a gradient. Training that drops
            blocks gives these less gradient by dropping them alone; this takes that out.

    Returns:
        One for each unit, adding up to 1; None for a unit without a gradient in any step that counts.
    """
    norms = norms.between(warmup + 1 if definition == "after-warmup" else 1, math.inf)
    rows = getattr(norms, unit).astype(np.float64)
    if definition == "clipped" and clip is not None:
        rows *= np.minimum(1.0, clip / np.maximum(norms.total.astype(np.float64), clip))[:, None]
    if definition == "mean-of-shares":
        whole = np.nansum(rows, axis=1, keepdims=True)
        rows /= np.where(whole > 0, whole, 1.0)
    times = (~np.isnan(rows)).sum(axis=0)
    never, sums = times == 0, np.nansum(rows, axis=0)
    if when_present:
        sums /= np.maximum(times, 1)
    return share_of([None if none else float(value) for value, none in zip(sums, never, strict=True)])


def share_of(norms: Sequence[Share]) -> list[Share]:
    """Norms as shares of their sum; zeros where the sum is zero, None where there is none."""
    total = math.fsum(norm for norm in norms if norm is not None)
    return [None if norm is None else norm / total if total > 0 else 0.0 for norm in norms]
