"""What an arm says of G1, in words.

For one definition of ḡ: Spearman's ρ of ḡ and φ, and of ḡ and ΔM, over blocks. *Supported* where the interval lies
above zero, *not supported* where it lies below, *undecided* where it holds zero or there are fewer than three seeds or
five blocks (four come in any one order by chance once in 24 times, and a bootstrap of a perfect order is no wider).
Where training dropped blocks, which gives late ones less gradient whatever their fan-in, ḡ for each step in which a
block took part has to say the same. G1 *holds* where both halves are supported, *does not hold* where one is not
supported, and else is *open*. A verdict that is not the same for all definitions *depends on the definition*.

The shape of fan-in, linear or quadratic, is a claim of its own, since a rank correlation can't tell the two apart: a
line through ḡ over the arm's own φ has to explain more than one over the other shape. Rules ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from leadline.experiments.results import DEPENDS, Judgement, Outcome
from leadline.report.words import fixed, listed

Arm = Mapping[str, Any]
Pairs = Mapping[str, Any]
Support = Literal["supported", "not supported", "undecided"]

DECIDES = "spearman"
SEEDS = 3
"""Fewer decide nothing of a correlation."""
BLOCKS = 5
"""Of fewer even a perfect order, up or down, comes about by chance in more than 5 % of cases: of four in 2 / 4!."""
PARTS = {"fan_in": "follows fan-in", "delta": "goes with ablation importance"}
PART_OF = {"fan_in": "fan-in", "delta": "ablation importance"}
SYMBOLS = {"fan_in": "φ", "delta": "ΔM"}


def support(found: Mapping[str, Any]) -> Support:
    """What one correlation says, as `leadline.experiments.gradient_fan_in.statistics.correlation` returns it."""
    rho = found[DECIDES]
    if len(rho["runs"]) < SEEDS or found["blocks"] < BLOCKS or rho["low"] is None or rho["high"] is None:
        return "undecided"
    if rho["low"] > 0:
        return "supported"
    return "not supported" if rho["high"] < 0 else "undecided"


def parts(pairs: Pairs) -> dict[str, Support]:
    """Both halves of G1 by one definition, from its correlations."""
    return {part: _part(pairs, part) for part in PARTS}


def _part(pairs: Pairs, part: str) -> Support:
    """What ḡ says, and ḡ for each step in which a block took part where that is another: the more careful of both."""
    found = {support(pairs[name]) for name in (f"share_{part}", f"share_{part}_when_present") if name in pairs}
    if "not supported" in found:
        return "not supported"
    return "undecided" if "undecided" in found else "supported"


def together(found: Mapping[str, Support]) -> Outcome:
    """G1 holds where both halves are supported, and does not where one is not supported."""
    verdicts = set(found.values())
    if "not supported" in verdicts:
        return "does not hold"
    return "open" if "undecided" in verdicts else "holds"


def of_all(outcomes: Mapping[str, Outcome]) -> Outcome:
    """The outcome by all definitions, or that it depends on which."""
    (first, *others) = dict.fromkeys(outcomes.values())
    return DEPENDS if others else first


def judge_fan_in(arm: Arm) -> list[Judgement]:
    """G1 for an arm: whether ḡ follows φ and goes with ΔM, and the shape of φ."""
    claim = f"G1 for {arm['name']}: the accumulated gradient share follows fan-in and goes with ablation importance"
    if not arm["definitions"]:
        return [Judgement(claim=claim, paper="", outcome="open", evidence=f"No run finished: {arm['error']}.")]
    outcomes = {name: together(parts(pairs)) for name, pairs in arm["definitions"].items()}
    words = [_definition_words(name, arm["definitions"][name], outcome) for name, outcome in outcomes.items()]
    words += _phase_words(arm)
    if "share_delta_when_present" in arm["correlations"]:
        words.append(_when_present_words(arm))
    if arm["correlations"]["share_delta"]["over"] == "blocks":
        words.append("One seed shows no interval over seeds, so nothing is decided.")
    if arm["correlations"]["share_delta"]["blocks"] < BLOCKS:
        words.append(f"Fewer than {BLOCKS} blocks come into order by chance too often, so nothing is decided.")
    words.append(_first_block(arm))
    found = Judgement(claim=claim, paper="", outcome=of_all(outcomes), evidence=" ".join(filter(None, words)))
    return [found, *_shape(arm)]


def _definition_words(name: str, pairs: Pairs, outcome: Outcome) -> str:
    said = [f"with {SYMBOLS[part]} {rho_words(pairs[f'share_{part}'])} ({word})" for part, word in parts(pairs).items()]
    return f"By {name} it {outcome_words(outcome)}: Spearman {', '.join(said)}."


def outcome_words(outcome: Outcome) -> str:
    """An outcome as a verb."""
    return {"open": "is open", "no deficit at this size": "shows no deficit at this size"}.get(outcome, outcome)


def _phase_words(arm: Arm) -> list[str]:
    """What each phase of training shows, which the sum over all steps mixes."""
    found = []
    for phase in arm["phases"]:
        said = [f"{rho_words(phase[f'share_{part}'])} with {SYMBOLS[part]}" for part in PARTS]
        held = f"Steps {phase['from']} to {phase['to']} hold {fixed(100 * phase['weight'], 0)} % of the sum"
        found.append(f"{held}; there Spearman is {listed(said)}.")
    return found


def _when_present_words(arm: Arm) -> str:
    """The same halves where a dropped block's absence does not count against it."""
    said = [f"{rho_words(arm['correlations'][f'share_{part}_when_present'])} with {PART_OF[part]}" for part in PARTS]
    return f"For each step in which a block took part, the sum's Spearman is {said[0]}, and {said[1]}."


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
    words = f"The first block has {fixed(100 * share, 0)} % of the gradient" if share is not None else ""
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
    outcomes: dict[str, Outcome] = {name: _better(fit, arm) for name, fit in fits.items()}
    words = [
        f"By {name}: R² {fixed(fit['own'], 2)} over {own} φ and {fixed(fit['other'], 2)} over {other} φ, difference "
        f"{_span(fit['difference'])}."
        for name, fit in fits.items()
    ]
    claim = f"G1 for {arm['name']}: the gradient share follows {own} fan-in better than {other}"
    return [Judgement(claim=claim, paper="", outcome=of_all(outcomes), evidence=" ".join(words))]


def _better(fit: Mapping[str, Any], arm: Arm) -> Outcome:
    difference = fit["difference"]
    few = len(difference["runs"]) < SEEDS or arm["blocks"] < BLOCKS
    if few or difference["low"] is None or difference["low"] <= 0 <= difference["high"]:
        return "open"
    return "holds" if difference["low"] > 0 else "does not hold"


def _span(found: Mapping[str, Any]) -> str:
    mean = fixed(found["value"], 2, sign=True)
    if found["low"] is None:
        return mean
    noise = ", within noise" if found["low"] <= 0 <= found["high"] else ""
    return f"{mean} ({fixed(found['low'], 2, sign=True)} to {fixed(found['high'], 2, sign=True)}{noise})"


def say_beside(arm: Arm) -> list[str]:
    """What is worth a sentence beside the verdicts: other arms' shares, and what the gradients look like."""
    found = []
    if arm["role"] != "plain":
        words = [f"{PARTS[part]}: {verdict}" for part, verdict in parts(arm["correlations"]).items()]
        found.append(f"In {arm['name']} the gradient share (sum) {'; '.join(words)}.")
    else:
        for of, what in (("rank", "effective rank"), ("cosine", "cosine between batches")):
            if f"{of}_fan_in" in arm["correlations"]:
                said = [f"{rho_words(arm['correlations'][f'{of}_{part}'])} with {SYMBOLS[part]}" for part in PARTS]
                found.append(f"In {arm['name']} the Spearman of the gradient's {what} is {listed(said)}.")
    return found
