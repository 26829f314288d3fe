"""What an arm says of G2, in words: whether late importance came back. Rules ours.

Each reading of late importance (`late`) is the arm's minus the control's, seed by seed, and has a
yardstick: for the repeated blocks the rise that φ predicts for this arm, for equalised gradients or updates what the
control lacks of even importance. A reading is

    no deficit        the control's interval lies at 1 or above: its late blocks matter as much as all
    restored          the interval of the rise lies above zero, and its mean is half of the yardstick or more
    partly restored   it lies above zero, and the mean is less
    not restored      it does not lie above zero, and ends below half of the yardstick
    undecided         noise could hide either, the control's interval holds 1, there is one seed, or φ predicts no rise

The first block often holds most of all importance, so every reading is taken with it and without it, and a verdict
that is not the same for both *depends on block 0*. A repeated block is two passes, and leaving it out takes both away,
so that a block whose places are worth what they were counts twice. With one place left out at a time the rise has to be
restored too, held against what φ predicts for that; else it may be that of two passes, and the claim is open. A control
without a deficit, block 0 apart, refutes nothing: there is nothing to restore at this size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from leadline.experiments.results import Judgement, Outcome
from leadline.report.words import fixed

Arm = Mapping[str, Any]
Return = Literal["restored", "partly restored", "not restored", "undecided", "no deficit"]

WHAT = {
    "equalise": "equalising {of} does not restore late-layer importance",
    "repeat": "repeating the last blocks restores late-layer importance",
}
UNDEFINED = "leaving blocks out costs nothing on average, so there is no late importance to speak of"


def restored(
    difference: Mapping[str, Any] | None, control: Mapping[str, Any] | None, yardstick: float | None
) -> Return:
    """Whether late importance came back, by one reading.

    Args:
        difference: the arm's late importance minus the control's, over seeds.
        control: the control's.
        yardstick: the rise that would be all of it.
    """
    if difference is None or control is None or difference["low"] is None or control["high"] is None:
        return "undecided"
    if control["low"] >= 1:
        return "no deficit"
    if control["high"] >= 1 or yardstick is None or yardstick <= 0:
        return "undecided"
    if difference["low"] > 0:
        return "restored" if difference["mean"] >= yardstick / 2 else "partly restored"
    return "not restored" if difference["high"] < yardstick / 2 else "undecided"


def reading_of(arm: Arm) -> str:
    """The reading that decides for an arm."""
    return "last" if arm["role"] == "repeat" else "third"


def yardstick_of(arm: Arm, control: Arm, part: str) -> float | None:
    """The rise that would restore a part of late importance."""
    late = control["late"][part]
    found: float | None = 1.0 - late["mean"] if late else None
    return arm["against"]["predicted"][part] if arm["role"] == "repeat" else found


def judge_late(arm: Arm, by_name: Mapping[str, Arm], last: int) -> Judgement:
    """G2 for an arm that tests it."""
    of = "updates" if arm["name"] == "equalised-updates" else "gradient norms"
    claim = f"G2 for {arm['name']}: {WHAT[arm['role']].format(of=of)}"
    control, part = by_name.get(arm["control"]), reading_of(arm)
    if control is None or not arm["against"] or arm["against"][part] is None or control["late"][part] is None:
        why = arm["error"] or (control["error"] if control else None) or UNDEFINED
        return Judgement(claim=claim, paper="", outcome="open", evidence=f"It can't be said: {why}.")
    words, found = [], []
    for place, what in ((part, "With all blocks"), (f"{part}_rest", "Without block 0")):
        yardstick = yardstick_of(arm, control, place)
        found.append(restored(arm["against"][place], control["late"][place], yardstick))
        words.append(f"{what}: {_reading_words(arm, control, place, yardstick, last)}: {found[-1]}.")
    outcome = _of_both(*found, role=arm["role"])
    if arm["role"] == "repeat":
        rise, yardstick = arm["against"]["single"], yardstick_of(arm, control, "single")
        single = restored(rise, control["late"]["single"], yardstick)
        said = f"the difference is {difference_words(rise)}{_wanted(arm, yardstick)}" if rise else UNDEFINED
        words.append(f"With one place left out at a time {said}: {single}.")
        if outcome == "holds" and single != "restored":
            outcome = "open"
            words.append("So the rise may be no more than that of two passes.")
    if "no deficit" in found:
        predicted = control["late"]["predicted"][f"{part}_rest"]
        followed = "" if predicted is None else f" If importance followed φ that would be {fixed(predicted, 2)}."
        words.append(
            f"In {control['name']} the late blocks matter as much as the others: nothing is to be restored "
            f"at this size.{followed} A size at which this value lies below 1 beyond noise would test the claim; try "
            "more blocks and more tokens."
        )
    missing = sum(value is None for side in (arm, control) for value in side["late"][part]["by_seed"].values())
    if missing:
        words.append(f"In {missing} run{'s' if missing > 1 else ''} {UNDEFINED}.")
    if arm["name"] == "equalised-adamw":
        words.append("AdamW divides by a gradient's own size, so equalising changes little there.")
    return Judgement(claim=claim, paper="", outcome=outcome, evidence=" ".join(words))


def _of_both(whole: Return, rest: Return, *, role: str) -> Outcome:
    if rest == "no deficit":  # what the whole lacks is block 0 alone
        return "no deficit at this size"
    if whole != rest:
        return "open" if "undecided" in (whole, rest) else "depends on block 0"
    if whole in ("undecided", "partly restored"):
        return "open"
    return "holds" if (whole == "restored") == (role == "repeat") else "does not hold"


def _reading_words(arm: Arm, control: Arm, part: str, yardstick: float | None, last: int) -> str:
    late, other, difference = arm["late"][part], control["late"][part], arm["against"][part]
    if late is None or other is None or difference is None:
        return UNDEFINED
    which = f"the last {last} blocks'" if part.startswith("last") else "the last third's"
    return (
        f"{which} ΔM over the mean is {fixed(late['mean'], 2)}, in {control['name']} {fixed(other['mean'], 2)}; "
        f"difference {difference_words(difference)}{_wanted(arm, yardstick)}"
    )


def _wanted(arm: Arm, yardstick: float | None) -> str:
    meant = "φ predicts" if arm["role"] == "repeat" else "even importance would be"
    return "" if yardstick is None else f", where {meant} {fixed(yardstick, 2, sign=True)}"


def difference_words(found: Mapping[str, Any], decimals: int = 2) -> str:
    """`+0.21 (0.05 to 0.37)`, with a word where that is noise or there is one seed."""
    return span_words(found["mean"], found["low"], found["high"], decimals, alone=" on one seed, without an interval")


def span_words(mean: float, low: float | None, high: float | None, decimals: int = 2, *, alone: str = "") -> str:
    """The same; `alone` stands behind a mean without an interval."""
    if low is None or high is None:
        return f"{fixed(mean, decimals, sign=True)}{alone}"
    noise = ", within noise" if low <= 0 <= high else ""
    shown, *ends = (fixed(value, decimals, sign=True) for value in (mean, low, high))
    return f"{shown} ({' to '.join(ends)}{noise})"
