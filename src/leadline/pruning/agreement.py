"""Whether two models say the same: passing by against surgery, and surgery against what was saved."""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.errors import LeadlineError

SAME = {torch.float64: 1e-10, torch.float32: 1e-5}
CACHED = {torch.float64: 1e-8, torch.float32: 1e-3}
SAME_HALF, CACHED_HALF = 2e-2, 1e-1
"""Of the largest logit. On a CPU the same sums give the same bits; a GPU may choose other kernels for other shapes."""


def check_same(expected: Tensor, got: Tensor, what: str, *, cached: bool = False) -> float:
    """The largest absolute difference of two models' logits.

    Args:
        cached: one of them was worked out token by token, where sums round differently.

    Raises:
        LeadlineError: they differ by more than rounding, or in shape; `what` is named.
    """
    if expected.shape != got.shape:
        raise LeadlineError(f"{what}: logits are {list(got.shape)} instead of {list(expected.shape)}")
    limits, half = (CACHED, CACHED_HALF) if cached else (SAME, SAME_HALF)
    difference = float((expected.double() - got.double()).abs().max())
    largest = float(expected.double().abs().max())
    if not difference <= limits.get(expected.dtype, half) * max(largest, 1e-30):  # NaN is a difference too.
        raise LeadlineError(f"{what}: logits differ by {difference:.3g} where the largest is {largest:.3g}")
    return difference
