"""When two computations agree."""

from __future__ import annotations

import pytest
import torch

from leadline.bench.checks import disagreement, errors

ONES = torch.ones(4)


@pytest.mark.parametrize(
    ("found", "truth", "said"),
    [
        ([ONES], [ONES], ""),
        ([ONES * (1 + 1e-4)], [ONES], ""),
        ([ONES * 1.01], [ONES], "x is off by 1.0e-02 of its length, more than 1.0e-03"),
        ([ONES * torch.nan], [ONES], "x is not finite"),
        ([torch.ones(3)], [ONES], "x has shape (3,) instead of (4,)"),
        ([ONES, ONES], [ONES], "2 results instead of 1"),
        ([None], [ONES], "x is off by 1.0e+00 of its length, more than 1.0e-03"),
        ([None], [torch.zeros(4)], ""),
        ([torch.zeros(4)], [None], ""),
        ([None], [None], ""),
    ],
)
def test_disagreement(found: list[torch.Tensor], truth: list[torch.Tensor], said: str) -> None:
    assert disagreement(found, truth, ["x"], 1e-3) == said


def test_a_small_tensor_is_judged_by_its_own_length() -> None:
    """A wrong gradient hides behind no larger one, unless it is so small that it may be rounding."""
    large, small = ONES, ONES * 1e-3
    assert "b is off" in disagreement([large, small * 1.1], [large, small], ["a", "b"], 1e-2)
    assert disagreement([large, small * 1e-9 * 5], [large, small * 1e-9], ["a", "b"], 1e-2) == ""


def test_a_tolerance_each() -> None:
    found, truth = [ONES * 1.01, ONES * 1.01], [ONES, ONES]
    assert disagreement(found, truth, ["a", "b"], [0.1, 0.1]) == ""
    assert disagreement(found, truth, ["a", "b"], [0.1, 1e-3]).startswith("b is off")


def test_errors_are_relative() -> None:
    assert errors([ONES * 2.5], [ONES * 2]) == pytest.approx([0.25])
