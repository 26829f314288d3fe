"""How a difference is called: by its interval, by noise, and by the smallest effect that matters."""

from __future__ import annotations

from typing import Literal

Effect = Literal[
    "better", "worse", "no difference that matters", "smaller than what matters", "undecided", "not told by these seeds"
]
"""What a difference is called; `effect_of` has the rules."""


def effect_of(
    mean: float, low: float | None, high: float | None, beyond_noise: bool | None, smallest: float, *, sign: int = -1
) -> Effect:
    """What to call a difference.

    Args:
        low, high: its interval; None where there is none.
        beyond_noise: whether it is told apart from zero; None without an interval.
        smallest: the smallest effect that matters, in the unit of the difference; 0 where every one does.
        sign: of a difference that is better, -1 for a loss.

    Returns:
        "no difference that matters" where the whole interval lies within ± `smallest`; else "undecided" within noise;
        beyond noise "smaller than what matters" where the mean is, else "better" or "worse".
    """
    if low is None or high is None or beyond_noise is None:
        return "not told by these seeds"
    if -smallest < low and high < smallest:
        return "no difference that matters"
    if not beyond_noise:
        return "undecided"
    if abs(mean) < smallest:
        return "smaller than what matters"
    return "better" if mean * sign > 0 else "worse"
