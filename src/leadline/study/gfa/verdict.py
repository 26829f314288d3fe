"""What the arms say of G1 and G2, in words.

G1, for an arm: Spearman's ρ of ḡ and φ, and of ḡ and ΔM, over blocks. *Supported* where the interval lies above zero,
*not supported* where it lies below, *undecided* where it holds zero or there are fewer than three seeds or five blocks
(four come in any one order by chance once in 24 times, and a bootstrap of a perfect order is no wider). Where training
dropped blocks, which gives late ones less gradient whatever their fan-in, ḡ for each step in which a block took part
has to say the same.

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
from leadline.study.results import Judgement, Outcome

Arm = Mapping[str, Any]
Support = Literal["supported", "not supported", "undecided"]
Return = Literal["restored", "partly restored", "not restored", "undecided"]

DECIDES = "spearman"
SEEDS = 3
"""Fewer decide nothing of a correlation."""
BLOCKS = 5
"""Of fewer even a perfect order, up or down, comes about by chance in more than 5 % of cases: of four in 2 / 4!."""
PARTS = {"fan_in": "follows fan-in", "delta": "goes with ablation importance"}
PART_OF = {"fan_in": "fan-in", "delta": "ablation importance"}
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


def support(found: Mapping[str, Any]) -> Support:
    """What one correlation says, as `leadline.study.gfa.statistics.correlation` gives it."""
    rho = found[DECIDES]
    if len(rho["runs"]) < SEEDS or found["blocks"] < BLOCKS or rho["low"] is None or rho["high"] is None:
        return "undecided"
    if rho["low"] > 0:
        return "supported"
    return "not supported" if rho["high"] < 0 else "undecided"


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
    first = [_gradient(arm) for arm in arms if arm["role"] == "plain"]
    second = [_late(arm, by_name, last) for arm in arms if arm["role"] in WHAT]
    beside = [_beside(arm) for arm in arms if arm["role"] != "plain" and arm["correlations"]]
    return Judged(
        headline=_headline(arms, first, second),
        sentences=(*beside, *_losses(arms), *_limits(arms, seeds)),
        judgements=(*first, *second),
    )


def parts(arm: Arm) -> dict[str, Support]:
    """Both halves of G1 for an arm."""
    return {part: _part(arm["correlations"], part) for part in PARTS}


def _part(correlations: Mapping[str, Any], part: str) -> Support:
    """What ḡ says, and ḡ for each step in which a block took part where that is another: the more careful of both."""
    found = {
        support(correlations[name]) for name in (f"share_{part}", f"share_{part}_when_present") if name in correlations
    }
    if "not supported" in found:
        return "not supported"
    return "undecided" if "undecided" in found else "supported"


def _of_both(whole: Return, single: Return) -> Return:
    """What is left of the verdict on a repeated block once its places are also left out one at a time."""
    if whole in ("not restored", "undecided"):
        return whole
    if single in ("not restored", "undecided"):
        return "undecided"
    return "partly restored" if "partly restored" in (whole, single) else "restored"


def together(found: Mapping[str, Support]) -> Outcome:
    """G1 holds where both halves are supported, and does not where one is not supported."""
    verdicts = set(found.values())
    if "not supported" in verdicts:
        return "does not hold"
    return "open" if "undecided" in verdicts else "holds"


def _gradient(arm: Arm) -> Judgement:
    claim = f"G1 for {arm['name']}: the accumulated gradient share follows fan-in and goes with ablation importance"
    if not arm["correlations"]:
        return Judgement(claim=claim, paper="", outcome="open", evidence=f"No run finished: {arm['error']}.")
    found = parts(arm)
    words = [f"It {PARTS[part]}: {verdict} ({_part_words(arm, part)})." for part, verdict in found.items()]
    if "share_delta_when_present" in arm["correlations"]:
        words.append(_when_present_words(arm))
    if arm["correlations"]["share_delta"]["over"] == "blocks":
        words.append("One seed shows no interval over seeds, so nothing is decided.")
    if arm["correlations"]["share_delta"]["blocks"] < BLOCKS:
        words.append(f"Fewer than {BLOCKS} blocks come into order by chance too often, so nothing is decided.")
    return Judgement(claim=claim, paper="", outcome=together(found), evidence=" ".join([*words, _first_block(arm)]))


def _part_words(arm: Arm, part: str) -> str:
    whole, rest = arm["correlations"][f"share_{part}"], arm["correlations"][f"share_{part}_rest"]
    return f"Spearman {rho_words(whole)}; without the first block {rho_words(rest)}"


def _when_present_words(arm: Arm) -> str:
    """The same halves where a dropped block's absence does not count against it."""
    said = [f"{rho_words(arm['correlations'][f'share_{part}_when_present'])} with {PART_OF[part]}" for part in PARTS]
    return f"For each step in which a block took part, the share's Spearman is {said[0]}, and {said[1]}."


def rho_words(found: Mapping[str, Any], kind: str = DECIDES) -> str:
    """A coefficient with its interval: `0.81, 0.62 to 0.93`."""
    rho = found[kind]
    if rho["value"] is None:
        return f"not defined, {rho['reason']}"
    if rho["low"] is None:
        return fixed(rho["value"], 2)
    span = f"{fixed(rho['value'], 2)}, {fixed(rho['low'], 2)} to {fixed(rho['high'], 2)}"
    if found["over"] == "blocks":
        return f"{span} over blocks alone"
    return span + (", within noise" if rho["low"] <= 0 <= rho["high"] else "")


def _first_block(arm: Arm) -> str:
    share = arm["first_share"]
    whole, rest = parts(arm), {part: support(arm["correlations"][f"share_{part}_rest"]) for part in PARTS}
    words = f"The first block has {fixed(100 * share, 0)} % of the gradient" if share is not None else ""
    leans = [PARTS[part] for part in PARTS if whole[part] == "supported" and rest[part] != "supported"]
    if leans:
        return f"{words}, and without it one can't say that the share {' and '.join(leans)}."
    return f"{words}." if words else ""


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


def _headline(arms: Sequence[Arm], first: Sequence[Judgement], second: Sequence[Judgement]) -> str:
    said = []
    plain = [arm["name"] for arm in arms if arm["role"] == "plain"]
    if first:
        said.append(f"G1 {_outcomes(plain, first)}")
    tested = [arm["name"] for arm in arms if arm["role"] in WHAT]
    if second:
        said.append(f"G2 {_outcomes(tested, second)}")
    return "; ".join(said) if said else "No arm here tests a claim"


def _outcomes(names: Sequence[str], judgements: Sequence[Judgement]) -> str:
    """`holds for vanilla, is open for layerskip`."""
    words = {"holds": "holds for", "does not hold": "does not hold for", "open": "is open for"}
    by_outcome: dict[str, list[str]] = {}
    for name, judgement in zip(names, judgements, strict=True):
        by_outcome.setdefault(judgement.outcome, []).append(name)
    return ", ".join(f"{words[outcome]} {listed(found)}" for outcome, found in by_outcome.items())


def _beside(arm: Arm) -> str:
    words = [f"{PARTS[part]}: {verdict}" for part, verdict in parts(arm).items()]
    return f"In {arm['name']} the gradient share {'; '.join(words)}."


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
