"""What a sweep says of claim C1: CFP beats similarity, Taylor and magnitude in perplexity and rank stability.

For perplexity the mean held-out bits per byte over the ratios are compared, seed by seed; for stability the mean
Kendall τ-b over pairs of seeds. A difference is within noise unless its p-value is below 5 % after Holm's correction
over all rivals in both measures (ours; see `leadline.pruning.stability`). This is done for each definition of the
gradient share by which CFP was measured:

    holds                        CFP is better than all three in both, beyond noise and by what matters
    does not hold                CFP is worse than any of them in either, beyond noise and by what matters
    no difference that matters   it is not worse, and from at least one of them its loss differs by less than matters
    undecided                    all three were measured, and no difference is beyond noise
    open                         anything else; the evidence says which

Where these words differ, the verdict is "depends on the definition".
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from leadline.pruning.stability import Gap, corrected, paired_gap, stability_gap
from leadline.report.effects import Effect, effect_of
from leadline.report.words import fixed, listed

CLAIM = "C1: CFP beats similarity, Taylor and magnitude in perplexity and rank stability"
RIVALS = ("similarity", "taylor", "magnitude")
DEPENDS = "depends on the definition"
TONES = {"holds": "better", "does not hold": "worse"}
LEVEL: tuple[Effect, ...] = ("no difference that matters", "smaller than what matters")
WORDS: dict[Effect, str] = {
    "better": "better than",
    "worse": "worse than",
    "smaller than what matters": "told apart, but by less than what matters, from",
    "no difference that matters": "not different by what matters from",
    "undecided": "undecided against",
    "not told by these seeds": "open against",
}


def verdict(results: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict as data that JSON can hold: `claim`, `verdict`, `evidence`, `tone`, and the gaps by definition.

    Gaps are CFP minus the rival: of bits per byte (negative is better) as the mean over ratios in `loss` and at each in
    `ratios`, of τ-b (positive is better) in `stability`. P-values of `loss` and `stability` are those after the
    correction.
    """
    if not results["definitions"]:
        reason = results["left_out"].get("cfp", "")
        return _said("open", f"CFP was not measured{f': {reason}' if reason else ''}.", {})
    judged = {name: _judged(results, cfp) for name, cfp in results["definitions"].items()}
    words = {name: one["verdict"] for name, one in judged.items()}
    sentences = [f"By {name}, {words[name]}: {one['evidence']}" for name, one in judged.items()]
    rivals = [name for name in RIVALS if name in results["criteria"]]
    if rivals:
        sentences.append(f"Noise is judged after Holm's correction over {2 * len(rivals)} comparisons by definition.")
    missing = [name for name in RIVALS if name not in rivals]
    if missing:
        sentences.append(f"{listed(missing)} {'were' if len(missing) > 1 else 'was'} not measured.".capitalize())
    if results["seeds_are"] == "calibration texts":
        sentences.append(
            "Seeds are calibration texts of one model, so CFP and magnitude rank the same every time; the claim needs "
            "models trained with several seeds."
        )
    word = next(iter(words.values())) if len(set(words.values())) == 1 else DEPENDS
    return _said(word, " ".join(sentences), judged)


def _judged(results: Mapping[str, Any], cfp: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict by one definition, with the gaps behind it."""
    smallest, models = results["smallest_effect"], results["seeds_are"] == "models"
    rivals = {name: results["criteria"][name] for name in RIVALS if name in results["criteria"]}
    gaps = corrected(
        {("loss", name): paired_gap(_differences(cfp, rival)) for name, rival in rivals.items()}
        | {("stability", n): stability_gap(cfp["scores"], r["scores"]) if models else None for n, r in rivals.items()}
    )
    loss, stable = ({name: gaps[what, name] for name in rivals} for what in ("loss", "stability"))
    losses = {name: _effect(gap, smallest, sign=-1) for name, gap in loss.items()}
    orders = {name: _effect(gap, 0.0, sign=1) for name, gap in stable.items()}
    evidence = f"CFP is {_sentence('in loss (bits per byte)', losses, loss)}; "
    evidence += f"{_sentence('in rank stability (Kendall τ-b)', orders, stable)}."
    by_ratio = {name: zip(_losses(cfp), _losses(rival), strict=True) for name, rival in rivals.items()}
    return {
        "verdict": _word([*losses.values()], [*orders.values()], len(rivals) < len(RIVALS)) if models else "open",
        "evidence": evidence if rivals else "nothing to compare with.",
        "loss": {name: _plain(gap) for name, gap in loss.items()},
        "stability": {name: _plain(gap) for name, gap in stable.items()},
        "ratios": {n: [_plain(paired_gap(_minus(*pair))) for pair in pairs] for n, pairs in by_ratio.items()},
        "effects": losses,
    }


def _word(losses: Sequence[Effect], orders: Sequence[Effect], missing: bool) -> str:
    sides = [*losses, *orders]
    if "worse" in sides:  # a rival that is better in either refutes the claim, whatever else is known
        return "does not hold"
    if missing or "not told by these seeds" in sides:
        return "open"
    if any(side in LEVEL for side in losses):
        return "no difference that matters"
    if "better" not in sides:
        return "undecided"
    return "holds" if all(side == "better" for side in sides) else "open"


def level(measured: Mapping[str, Any], winner: str, smallest: float) -> list[str]:
    """The criteria whose loss is not above the winner's beyond noise and by what matters, after Holm's correction."""
    others = [name for name in measured if name != winner]
    gaps = corrected({name: paired_gap(_differences(measured[winner], measured[name])) for name in others})
    return [name for name, gap in gaps.items() if _effect(gap, smallest, sign=-1) != "better"]


def mean_losses(criterion: Mapping[str, Any]) -> list[float]:
    """By seed, the mean held-out bits per byte over the ratios."""
    return [statistics.fmean(by_ratio) for by_ratio in zip(*_losses(criterion), strict=True)]


def _losses(criterion: Mapping[str, Any]) -> list[list[float]]:
    """Held-out bits per byte by ratio and seed."""
    return [[quality["bits_per_byte"] for quality in point["quality"]] for point in criterion["points"]]


def _differences(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[float]:
    return _minus(mean_losses(mine), mean_losses(other))


def _minus(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(ours, theirs, strict=True)]


def _effect(gap: Gap | None, smallest: float, *, sign: int) -> Effect:
    if gap is None:
        return "not told by these seeds"
    return effect_of(gap.mean, gap.low, gap.high, gap.beyond_noise, smallest, sign=sign)


def _sentence(what: str, effects: Mapping[str, Effect], gaps: Mapping[str, Gap | None]) -> str:
    """`in loss (bits per byte) better than taylor (−0.10, −0.14 to −0.06), undecided against magnitude (…)`."""
    parts = []
    for effect, opening in WORDS.items():
        names = [f"{name}{_numbers(gaps[name])}" for name in effects if effects[name] == effect]
        if names:
            parts.append(f"{opening} {listed(names)}")
    return f"{what} {', '.join(parts)}"


def _numbers(gap: Gap | None) -> str:
    if gap is None:
        return ""
    interval = "too few seeds for an interval, or the same gap in each"
    if gap.low is not None and gap.high is not None:
        interval = f"{fixed(gap.low, 3, sign=True)} to {fixed(gap.high, 3, sign=True)}"
    return f" ({fixed(gap.mean, 3, sign=True)}, {interval})"


def _plain(gap: Gap | None) -> dict[str, Any] | None:
    return None if gap is None else dataclasses.asdict(gap)


def _said(word: str, evidence: str, definitions: dict[str, Any]) -> dict[str, Any]:
    said = {"claim": CLAIM, "verdict": word, "evidence": evidence, "tone": TONES.get(word, "plain")}
    return {**said, "definitions": definitions}


def best(measured: Mapping[str, Any], names: Sequence[str] | None = None) -> str:
    """The criterion of the lowest mean loss."""
    means = {name: statistics.fmean(mean_losses(measured[name])) for name in names or measured}
    return min(means, key=lambda name: means[name])
