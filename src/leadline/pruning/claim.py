"""What a sweep says of claim C1: CFP beats similarity, Taylor and magnitude in perplexity and rank stability.

For perplexity the mean held-out loss over the ratios is compared, seed by seed; for stability the mean Kendall τ-b over
pairs of seeds. A difference is within noise unless its p-value is below 5 % after Holm's correction over all rivals in
both measures (ours; see `leadline.pruning.stability`).

    holds           CFP is better beyond noise than all three in both
    does not hold   CFP is worse beyond noise than any of them in either
    within noise    all three were measured, and no difference is beyond noise
    open            anything else; the evidence says which
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from leadline.drawing.words import fixed, listed
from leadline.pruning.stability import Gap, corrected, paired_gap, stability_gap

CLAIM = "C1: CFP beats similarity, Taylor and magnitude in perplexity and rank stability"
RIVALS = ("similarity", "taylor", "magnitude")
TONES = {"holds": "better", "does not hold": "worse"}


def verdict(results: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict as data that JSON can hold: `claim`, `verdict`, `evidence`, `tone`, and the gaps behind it.

    Gaps are CFP minus the rival: of the loss (negative is better), of τ-b (positive is better). Their p-values are
    those after the correction.
    """
    measured = results["criteria"]
    if "cfp" not in measured:
        reason = results["left_out"].get("cfp", "")
        return _said("open", f"CFP was not measured{f': {reason}' if reason else ''}.", {}, {})
    missing = [name for name in RIVALS if name not in measured]
    rivals = [name for name in RIVALS if name in measured]
    gaps = corrected(
        {("loss", name): paired_gap(_differences(measured["cfp"], measured[name])) for name in rivals}
        | {("stability", name): _stability(results, measured["cfp"], measured[name]) for name in rivals}
    )
    loss, stable = ({name: gaps[what, name] for name in rivals} for what in ("loss", "stability"))
    losses = {name: _side(gap, better_below=True) for name, gap in loss.items()}
    orders = {name: _side(gap, better_below=False) for name, gap in stable.items()}
    sentences = []
    if rivals:
        sentences += [
            _sentence("Loss", losses, loss, " nats"),
            _sentence("Rank stability (Kendall τ-b)", orders, stable, ""),
            f"Noise is judged after Holm's correction over the {2 * len(rivals)} comparisons.",
        ]
    if missing:
        sentences.append(f"{listed(missing)} {'were' if len(missing) > 1 else 'was'} not measured.".capitalize())
    if results["seeds_are"] == "calibration texts":
        sentences.append(
            "Seeds are calibration texts of one model, so CFP and magnitude rank the same every time; the claim needs "
            "models trained with several seeds."
        )
        return _said("open", " ".join(sentences), loss, stable)
    word = _word([*losses.values(), *orders.values()], bool(missing))
    return _said(word, " ".join(sentences), loss, stable)


def _word(sides: Sequence[str], missing: bool) -> str:
    if "worse" in sides:  # a rival that is better in either refutes the claim, whatever else is known
        return "does not hold"
    if missing or "open" in sides:
        return "open"
    if "better" not in sides:
        return "within noise"
    return "holds" if all(side == "better" for side in sides) else "open"


def undecided(measured: Mapping[str, Any], winner: str) -> list[str]:
    """The criteria whose mean loss is not beyond noise from the winner's, after Holm's correction over them all."""
    others = [name for name in measured if name != winner]
    gaps = corrected({name: paired_gap(_differences(measured[winner], measured[name])) for name in others})
    return [name for name, gap in gaps.items() if gap is None or not gap.beyond_noise]


def mean_losses(criterion: Mapping[str, Any]) -> list[float]:
    """By seed, the mean held-out loss over the ratios."""
    points = criterion["points"]
    return [statistics.fmean(p["quality"][seed]["loss"] for p in points) for seed in range(len(points[0]["quality"]))]


def _differences(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[float]:
    return [a - b for a, b in zip(mean_losses(mine), mean_losses(other), strict=True)]


def _stability(results: Mapping[str, Any], mine: Mapping[str, Any], other: Mapping[str, Any]) -> Gap | None:
    if results["seeds_are"] != "models":
        return None
    return stability_gap(mine["scores"], other["scores"])


def _side(gap: Gap | None, *, better_below: bool) -> str:
    if gap is None or gap.beyond_noise is None:
        return "open"
    if not gap.beyond_noise:
        return "within noise"
    return "better" if (gap.mean < 0) == better_below else "worse"


def _sentence(what: str, sides: Mapping[str, str], gaps: Mapping[str, Gap | None], unit: str) -> str:
    """`Loss: better than taylor (−0.10 nats, −0.14 to −0.06); within noise of magnitude (…).`"""
    words = {"better": "better than", "worse": "worse than", "within noise": "within noise of", "open": "open against"}
    parts = []
    for side, opening in words.items():
        names = [f"{name}{_numbers(gaps[name], unit)}" for name in sides if sides[name] == side]
        if names:
            parts.append(f"{opening} {listed(names)}")
    return f"{what}: CFP is {'; '.join(parts)}."


def _numbers(gap: Gap | None, unit: str) -> str:
    if gap is None:
        return ""
    if gap.low is None or gap.high is None:
        return f" ({fixed(gap.mean, 3, sign=True)}{unit}, too few seeds for an interval, or the same gap in each)"
    return (
        f" ({fixed(gap.mean, 3, sign=True)}{unit}, {fixed(gap.low, 3, sign=True)} to {fixed(gap.high, 3, sign=True)})"
    )


def _said(word: str, evidence: str, loss: Mapping[str, Gap | None], stable: Mapping[str, Gap | None]) -> dict[str, Any]:
    def plain(gaps: Mapping[str, Gap | None]) -> dict[str, Any]:
        return {name: None if gap is None else dataclasses.asdict(gap) for name, gap in gaps.items()}

    return {
        "claim": CLAIM,
        "verdict": word,
        "evidence": evidence,
        "tone": TONES.get(word, "plain"),
        "loss": plain(loss),
        "stability": plain(stable),
    }


def best(measured: Mapping[str, Any], names: Sequence[str] | None = None) -> str:
    """The criterion of the lowest mean loss."""
    means = {name: statistics.fmean(mean_losses(measured[name])) for name in names or measured}
    return min(means, key=lambda name: means[name])
