"""What the arms say of G1 (`verdict_fan_in`) and G2 (`verdict_late`), together and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leadline.experiments.gradient_fan_in.verdict_fan_in import judge_fan_in, outcome_words, say_beside
from leadline.experiments.gradient_fan_in.verdict_late import WHAT, difference_words, judge_late
from leadline.experiments.results import Judged, Judgement, Outcome
from leadline.report.words import listed

Arm = Mapping[str, Any]


def judge(arms: Sequence[Arm], seeds: int, last: int) -> Judged:
    """The verdict of a study.

    Args:
        arms: of `results.json`.
        seeds: how many were asked for.
        last: how many blocks the repeated arm repeats.
    """
    by_name = {arm["name"]: arm for arm in arms}
    first = {arm["name"]: judge_fan_in(arm) for arm in arms if arm["role"] == "plain"}
    second = [judge_late(arm, by_name, last) for arm in arms if arm["role"] in WHAT]
    beside = [sentence for arm in arms if arm["correlations"] for sentence in say_beside(arm)]
    return Judged(
        headline=_headline(arms, {name: found[0] for name, found in first.items()}, second),
        sentences=(*beside, *_losses(arms), *_limits(arms, seeds)),
        judgements=(*(judgement for found in first.values() for judgement in found), *second),
    )


def _headline(arms: Sequence[Arm], first: Mapping[str, Judgement], second: Sequence[Judgement]) -> str:
    said = []
    if first:
        said.append(f"G1 {_outcomes(list(first), list(first.values()))}")
    tested = [arm["name"] for arm in arms if arm["role"] in WHAT]
    if second:
        said.append(f"G2 {_outcomes(tested, second)}")
    return "; ".join(said) if said else "No arm here tests a claim"


def _outcomes(names: Sequence[str], judgements: Sequence[Judgement]) -> str:
    """`holds for vanilla, is open for layerskip`."""
    by_outcome: dict[Outcome, list[str]] = {}
    for name, judgement in zip(names, judgements, strict=True):
        by_outcome.setdefault(judgement.outcome, []).append(name)
    return ", ".join(f"{outcome_words(outcome)} for {listed(found)}" for outcome, found in by_outcome.items())


def _losses(arms: Sequence[Arm]) -> list[str]:
    """How each arm's loss stands to its control's: an arm that learnt less shows less of anything."""
    return [
        f"Bits per byte, {arm['name']} minus {arm['control']}: {difference_words(arm['against']['bits_per_byte'], 3)}."
        for arm in arms
        if arm["against"] and arm["against"]["bits_per_byte"]
    ]


def _limits(arms: Sequence[Arm], seeds: int) -> list[str]:
    found = []
    failed = [arm["name"] for arm in arms if arm["status"] != "ok"]
    if failed:
        found.append(f"Runs failed: {listed(failed)}.")
    if seeds == 1:
        found.append("One seed: no interval over seeds can be shown, so nothing is decided; three or more decide.")
    if seeds == 2:
        found.append("Two seeds decide nothing of a correlation; three or more do.")
    return found
