"""What the arms say of G1, in words, and of both claims together; `verdict_late` has G2.

G1 for one definition of ḡ: Spearman's ρ of ḡ and φ, and of ḡ and ΔM, over blocks. *Supported* where the interval lies
above zero, *not supported* where it lies below, *undecided* where it holds zero or there are fewer than three seeds or
five blocks (four come in any one order by chance once in 24 times, and a bootstrap of a perfect order is no wider).
Where training dropped blocks, which gives late ones less gradient whatever their fan-in, ḡ for each step in which a
block took part has to say the same. G1 *holds* where both halves are supported, *does not hold* where one is not
supported, and else is *open*. A verdict that is not the same for all definitions *depends on the definition*.

The shape of fan-in, linear or quadratic, is a claim of its own, since a rank correlation can't tell the two apart: a
line through ḡ over the arm's own φ has to explain more than one over the other shape. Rules ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from leadline.experiments.gradient_fan_in.verdict_late import WHAT, difference_words, judge_late, span_words
from leadline.experiments.results import DEPENDS, Judged, Judgement, Outcome, failures
from leadline.report.words import fixed, listed

Arm = Mapping[str, Any]
Pairs = Mapping[str, Any]
Support = Literal["supported", "not supported", "undecided"]

DECIDES = "spearman"
SEEDS = 3
"""Fewer decide nothing of a correlation."""
BLOCKS = 5
"""Of fewer even a perfect order, up or down, comes about by chance in more than 5 % of cases: of four in 2 / 4!."""
OUTCOMES: dict[Support, Outcome] = {"supported": "holds", "not supported": "does not hold", "undecided": "open"}
PARTS = {"fan_in": "follows fan-in", "delta": "goes with ablation importance"}
PART_OF = {"fan_in": "fan-in", "delta": "ablation importance"}
SYMBOLS = {"fan_in": "φ", "delta": "ΔM"}


def judge(arms: Sequence[Arm], seeds: int, last: int) -> Judged:
    """The verdict of a study.

    Args:
        arms: of `results.json`.
        seeds: how many were asked for.
        last: how many blocks the repeated arm repeats.
    """
    by_name = {arm["name"]: arm for arm in arms}
    first = {arm["name"]: judge_fan_in(arm) for arm in arms if arm["role"] == "plain"}
    second = {arm["name"]: [judge_late(arm, by_name, last)] for arm in arms if arm["role"] in WHAT}
    said = [f"{claim} {_outcomes(found)}" for claim, found in (("G1", first), ("G2", second)) if found]
    beside = [sentence for arm in arms if arm["correlations"] for sentence in say_beside(arm)]
    # An arm that learnt less than its control shows less of anything.
    losses = [
        f"Bits per byte, {arm['name']} minus {arm['control']}: {difference_words(arm['against']['bits_per_byte'], 3)}."
        for arm in arms
        if arm["against"] and arm["against"]["bits_per_byte"]
    ]
    limits = {
        1: ["One seed: no interval over seeds can be shown, so nothing is decided; three or more decide."],
        2: ["Two seeds decide nothing of a correlation; three or more do."],
    }
    return Judged(
        headline="; ".join(said) or "No arm here tests a claim",
        sentences=(*beside, *losses, *failures(arms), *limits.get(seeds, ())),
        judgements=tuple(judgement for found in (*first.values(), *second.values()) for judgement in found),
    )


def _outcomes(found: Mapping[str, Sequence[Judgement]]) -> str:
    """`holds for vanilla, is open for layerskip`: of each arm's first judgement."""
    by_outcome: dict[Outcome, list[str]] = {}
    for name, (judgement, *_) in found.items():
        by_outcome.setdefault(judgement.outcome, []).append(name)
    return ", ".join(f"{outcome_words(outcome)} for {listed(names)}" for outcome, names in by_outcome.items())


def support(found: Mapping[str, Any]) -> Support:
    """What one correlation says, as `leadline.experiments.gradient_fan_in.statistics.correlation` returns it."""
    return _support_of(found[DECIDES], found["blocks"])


def _support_of(value: Mapping[str, Any], blocks: int) -> Support:
    """Whether a value over so many blocks, by its `runs`, lies above zero."""
    if len(value["runs"]) < SEEDS or blocks < BLOCKS or value["low"] is None or value["high"] is None:
        return "undecided"
    if value["low"] > 0:
        return "supported"
    return "not supported" if value["high"] < 0 else "undecided"


def parts(pairs: Pairs) -> dict[str, Support]:
    """Both halves of G1 by one definition, from its correlations.

    Of ḡ, and ḡ for each step in which a block took part where that is another, the more careful counts.
    """
    shares = ("share_{}", "share_{}_when_present")
    return {
        part: _careful(support(pairs[name.format(part)]) for name in shares if name.format(part) in pairs)
        for part in PARTS
    }


def _careful(found: Iterable[Support]) -> Support:
    """Supported where all are, and not where one is not."""
    supports = set(found)
    if "not supported" in supports:
        return "not supported"
    return "undecided" if "undecided" in supports else "supported"


def of_all(outcomes: Mapping[str, Outcome]) -> Outcome:
    """The outcome by all definitions, or that it depends on which."""
    (first, *others) = dict.fromkeys(outcomes.values())
    return DEPENDS if others else first


def judge_fan_in(arm: Arm) -> list[Judgement]:
    """G1 for an arm: whether ḡ follows φ and goes with ΔM, and the shape of φ."""
    claim = f"G1 for {arm['name']}: the accumulated gradient share follows fan-in and goes with ablation importance"
    if not arm["definitions"]:
        return [Judgement(claim=claim, paper="", outcome="open", evidence=f"No run finished: {arm['error']}.")]
    outcomes = {name: OUTCOMES[_careful(parts(pairs).values())] for name, pairs in arm["definitions"].items()}
    words = []
    for name, pairs in arm["definitions"].items():
        both = parts(pairs).items()
        said = [f"with {SYMBOLS[part]} {rho_words(pairs[f'share_{part}'])} ({word})" for part, word in both]
        words.append(f"By {name} it {outcome_words(outcomes[name])}: Spearman {', '.join(said)}.")
    for phase in arm["phases"]:  # which the sum over all steps mixes
        held = f"Steps {phase['from']} to {phase['to']} hold {fixed(100 * phase['weight'], 0)} % of the sum"
        words.append(f"{held}; there Spearman is {_rhos_words(phase, 'share')}.")
    whole = arm["correlations"]
    if "share_delta_when_present" in whole:
        said = [f"{rho_words(whole[f'share_{part}_when_present'])} with {of}" for part, of in PART_OF.items()]
        words.append(f"For each step in which a block took part, the sum's Spearman is {said[0]}, and {said[1]}.")
    if whole["share_delta"]["over"] == "blocks":
        words.append("One seed shows no interval over seeds, so nothing is decided.")
    if whole["share_delta"]["blocks"] < BLOCKS:
        words.append(f"Fewer than {BLOCKS} blocks come into order by chance too often, so nothing is decided.")
    words.append(_first_block(arm))
    evidence = " ".join(filter(None, words))
    return [Judgement(claim=claim, paper="", outcome=of_all(outcomes), evidence=evidence), *_shape(arm)]


def outcome_words(outcome: Outcome) -> str:
    """An outcome as a verb."""
    return {"open": "is open", "no deficit at this size": "shows no deficit at this size"}.get(outcome, outcome)


def _rhos_words(pairs: Pairs, of: str) -> str:
    """The coefficients with φ and with ΔM."""
    return listed([f"{rho_words(pairs[f'{of}_{part}'])} with {symbol}" for part, symbol in SYMBOLS.items()])


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
    whole = parts(arm["correlations"])
    rest = {part: support(arm["correlations"][f"share_{part}_rest"]) for part in PARTS}
    words = "" if share is None else f"The first block has {fixed(100 * share, 0)} % of the gradient"
    leans = [PARTS[part] for part in PARTS if whole[part] == "supported" and rest[part] != "supported"]
    if leans:
        return f"{words}, and without it one can't say that the share {' and '.join(leans)}."
    return f"{words}." if words else ""


def _shape(arm: Arm) -> list[Judgement]:
    """Linear or quadratic; nothing where no run could be fitted."""
    fits: Mapping[str, Any] = arm["fits"]
    if not fits:
        return []
    exits = any(run and run["exit_weights"] for run in arm["runs"])
    own, other = ("exit-weighted", "linear") if exits else ("linear", "quadratic")
    outcomes = {name: OUTCOMES[_support_of(fit["difference"], arm["blocks"])] for name, fit in fits.items()}
    words = [
        f"By {name}: R² {fixed(fit['own'], 2)} over {own} φ and {fixed(fit['other'], 2)} over {other} φ, difference "
        f"{span_words(*(fit['difference'][key] for key in ('value', 'low', 'high')))}."
        for name, fit in fits.items()
    ]
    claim = f"G1 for {arm['name']}: the gradient share follows {own} fan-in better than {other}"
    return [Judgement(claim=claim, paper="", outcome=of_all(outcomes), evidence=" ".join(words))]


def say_beside(arm: Arm) -> list[str]:
    """What is worth a sentence beside the verdicts: other arms' shares, and what the gradients look like."""
    found = []
    if arm["role"] != "plain":
        words = [f"{PARTS[part]}: {verdict}" for part, verdict in parts(arm["correlations"]).items()]
        found.append(f"In {arm['name']} the gradient share (sum) {'; '.join(words)}.")
    else:
        for of, what in (("rank", "effective rank"), ("cosine", "cosine between batches")):
            if f"{of}_fan_in" in arm["correlations"]:
                said = _rhos_words(arm["correlations"], of)
                found.append(f"In {arm['name']} the Spearman of the gradient's {what} is {said}.")
    return found
