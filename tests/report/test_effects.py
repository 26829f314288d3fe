"""What a difference is called."""

from __future__ import annotations

import pytest

from leadline.report.effects import effect_of


@pytest.mark.parametrize(
    ("mean", "low", "high", "beyond", "called"),
    [
        (-0.2, -0.3, -0.1, True, "better"),
        (0.2, 0.1, 0.3, True, "worse"),
        (0.06, 0.01, 0.11, True, "worse"),
        (0.04, 0.01, 0.07, True, "smaller than what matters"),
        (-0.04, -0.07, -0.01, True, "smaller than what matters"),
        (0.02, 0.01, 0.03, True, "no difference that matters"),
        (0.0, -0.049, 0.049, False, "no difference that matters"),
        (0.0, -0.05, 0.05, False, "undecided"),
        (0.2, -0.1, 0.5, False, "undecided"),
        (0.2, None, None, None, "not told by these seeds"),
        (0.2, 0.2, 0.2, None, "not told by these seeds"),
    ],
)
def test_the_words(mean: float, low: float | None, high: float | None, beyond: bool | None, called: str) -> None:
    assert effect_of(mean, low, high, beyond, 0.05) == called


def test_where_more_is_better_and_everything_matters() -> None:
    assert effect_of(0.001, 0.0005, 0.0015, True, 0.0, sign=1) == "better"
    assert effect_of(0.001, 0.0005, 0.0015, True, 0.0) == "worse"
    assert effect_of(0.0, 0.0, 0.0, False, 0.0) == "undecided"
