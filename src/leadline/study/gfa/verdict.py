"""What the arms say of G1 (`leadline.study.gfa.verdict_fan_in`) and G2, in words.

G2: the late blocks' importance (`leadline.study.gfa.statistics`) minus the control's, seed by seed. It is *restored*
where the interval lies above zero and the mean is at least half of what the control lacks of even importance, *partly
restored* where the interval lies above zero and the mean is less. It is *not restored* where the interval does not lie
above zero and ends below that half. Else *undecided*: noise that could hide either. A repeated block is two passes, and
leaving it out takes both away, so the same has to be true with one place left out at a time. Rules ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from leadline.drawing.words import fixed, listed
from leadline.study.gfa.verdict_fan_in import judge_fan_in, say_beside
from leadline.study.results import Judgement, Outcome

Arm = Mapping[str, Any]
Return = Literal["restored", "partly restored", "not restored", "undecided"]

WHAT = {
    "equalise": "equalising gradient norms does not restore late-layer importance",
    "repeat": "repeating the last blocks restores late-layer importance",
}
UNDEFINED = "leaving blocks out costs nothing on average, so there is no late importance to speak of"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The finding in a sentence, what else is to be said, and the claims."""

    headline: str
    sentences: tuple[str, ...]
    judgements: tuple[Judgement, ...]


def restored(difference: Mapping[str, Any] | None, control: Mapping[str, Any] | None) -> Return:
    """Whether late importance came back.

    Args:
        difference: the arm's late importance minus the control's, over seeds.
        control: the control's late importance.
    """
    if difference is None or control is None or difference["low"] is None:
        return "undecided"
    gap = 1.0 - control["mean"]
    if gap <= 0:
        return "undecided"
    if difference["low"] > 0:
        return "restored" if difference["mean"] >= gap / 2 else "partly restored"
    return "not restored" if difference["high"] < gap / 2 else "undecided"


def judge(arms: Sequence[Arm], seeds: int, last: int) -> Judged:
    """The verdict of a study.

    Args:
        arms: of `results.json`.
        seeds: how many were asked for.
        last: how many blocks the repeated arm repeats.
    """
    by_name = {arm["name"]: arm for arm in arms}
    first = {arm["name"]: judge_fan_in(arm) for arm in arms if arm["role"] == "plain"}
    second = [_late(arm, by_name, last) for arm in arms if arm["role"] in WHAT]
    beside = [sentence for arm in arms if arm["correlations"] for sentence in say_beside(arm)]
    return Judged(
        headline=_headline(arms, {name: found[0] for name, found in first.items()}, second),
        sentences=(*beside, *_losses(arms), *_limits(arms, seeds)),
        judgements=(*(judgement for found in first.values() for judgement in found), *second),
    )


def _of_both(whole: Return, single: Return) -> Return:
    """What is left of the verdict on a repeated block once its places are also left out one at a time."""
    if whole in ("not restored", "undecided"):
        return whole
    if single in ("not restored", "undecided"):
        return "undecided"
    return "partly restored" if "partly restored" in (whole, single) else "restored"


def _late(arm: Arm, by_name: Mapping[str, Arm], last: int) -> Judgement:
    claim = f"G2 for {arm['name']}: {WHAT[arm['role']]}"
    control = by_name.get(arm["control"])
    against, late = arm["against"], arm["late"]
    if control is None or against is None or against["late"] is None or control["late"] is None or late is None:
        why = arm["error"] or (control["error"] if control else None) or UNDEFINED
        return Judgement(claim=claim, paper="", outcome="open", evidence=f"It can't be said: {why}.")
    whole = restored(against["late"], control["late"]["third"])
    single = restored(against["late_single"], control["late"]["single"])
    found = _of_both(whole, single) if arm["role"] == "repeat" else whole
    words = [
        f"The last third's ΔM over the mean: {fixed(late['third']['mean'], 2)}, {control['name']} "
        f"{fixed(control['late']['third']['mean'], 2)}. Difference {difference_words(against['late'])}: {whole}.",
    ]
    if found == "undecided" and control["late"]["third"]["mean"] >= 1:
        words.append(f"In {control['name']} the late blocks matter as much as the others: nothing is to be restored.")
    missing = sum(value is None for side in (late, control["late"]) for value in side["third"]["by_seed"].values())
    if missing:
        words.append(f"In {missing} run{'s' if missing > 1 else ''} {UNDEFINED}.")
    if against["late_rest"]:
        words.append(f"Without the first block {difference_words(against['late_rest'])}.")
    if arm["role"] == "repeat":
        if against["late_last"]:
            words.append(f"Of the last {last} alone, which are repeated, {difference_words(against['late_last'])}.")
        if against["late_single"]:
            words.append(
                "That is with all places of a repeated block left out, which takes two passes away; with one place at "
                f"a time {difference_words(against['late_single'])}: {single}."
            )
    if arm["name"] == "equalised-adamw":
        words.append("AdamW divides by a gradient's own size, so equalising changes little there.")
    return Judgement(claim=claim, paper="", outcome=_of_return(found, arm["role"]), evidence=" ".join(words))


def _of_return(found: Return, role: str) -> Outcome:
    if found in ("undecided", "partly restored"):
        return "open"
    return "holds" if (found == "restored") == (role == "repeat") else "does not hold"


def difference_words(found: Mapping[str, Any], decimals: int = 2) -> str:
    """`+0.21 (0.05 to 0.37)`, with a word where that is noise or there is one seed."""
    mean = fixed(found["mean"], decimals, sign=True)
    if found["low"] is None:
        return f"{mean} on one seed, without an interval"
    noise = ", within noise" if found["low"] <= 0 <= found["high"] else ""
    return f"{mean} ({fixed(found['low'], decimals, sign=True)} to {fixed(found['high'], decimals, sign=True)}{noise})"


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
    by_outcome: dict[str, list[str]] = {}
    for name, judgement in zip(names, judgements, strict=True):
        by_outcome.setdefault(judgement.outcome, []).append(name)
    return ", ".join(
        f"{'is open' if outcome == 'open' else outcome} for {listed(found)}" for outcome, found in by_outcome.items()
    )


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
