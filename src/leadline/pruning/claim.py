"""What a sweep says of claim C1: CFP beats similarity, Taylor and magnitude in perplexity and rank stability.

For perplexity the mean held-out loss over the ratios is compared, seed by seed; for stability the mean Kendall τ-b over
pairs of seeds. A difference whose 95 % interval includes zero is within noise (ours; see `leadline.pruning.stability`).
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from leadline.drawing.words import fixed, listed
from leadline.pruning.stability import Gap, paired_gap, stability_gap

CLAIM = "C1: CFP beats similarity, Taylor and magnitude in perplexity and rank stability"
RIVALS = ("similarity", "taylor", "magnitude")


def verdict(results: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict as data that JSON can hold: `claim`, `verdict`, `evidence`, `tone`, and the gaps behind it.

    Gaps are CFP minus the rival: of the loss (negative is better), of τ-b (positive is better).
    """
    measured = results["criteria"]
    rivals = [name for name in RIVALS if name in measured]
    if "cfp" not in measured or not rivals:
        missing = "CFP was not measured" if "cfp" not in measured else "no rival was measured"
        reason = results["left_out"].get("cfp", "")
        return _said("open", f"{missing}{f': {reason}' if reason else ''}.", "plain", {}, {})
    loss = {name: paired_gap(_differences(measured["cfp"], measured[name])) for name in rivals}
    stable = {name: _stability(results, measured["cfp"], measured[name]) for name in rivals}
    losses = {name: _side(gap, better_below=True) for name, gap in loss.items()}
    orders = {name: _side(gap, better_below=False) for name, gap in stable.items()}
    everything = [*losses.values(), *orders.values()]
    if any(side == "open" for side in losses.values()):
        word, tone = "open", "plain"
    elif all(side == "better" for side in everything):
        word, tone = "holds", "better"
    elif all(side == "better" for side in losses.values()):
        word, tone = "holds in perplexity", "better"
    elif any(side == "worse" for side in losses.values()):
        word, tone = "does not hold", "worse"
    else:
        word, tone = "within noise", "plain"
    sentences = [
        _sentence("Loss", losses, loss, " nats"),
        _sentence("Rank stability (Kendall τ-b)", orders, stable, ""),
    ]
    if results["seeds_are"] == "calibration texts":
        sentences.append(
            "Seeds are calibration texts of one model, so CFP and magnitude rank the same every time; the claim needs "
            "models trained with several seeds."
        )
        word, tone = "open", "plain"
    return _said(word, " ".join(sentences), tone, loss, stable)


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
        return f" ({fixed(gap.mean, 3, sign=True)}{unit}, too few seeds for an interval)"
    return (
        f" ({fixed(gap.mean, 3, sign=True)}{unit}, {fixed(gap.low, 3, sign=True)} to {fixed(gap.high, 3, sign=True)})"
    )


def _said(
    word: str, evidence: str, tone: str, loss: Mapping[str, Gap], stable: Mapping[str, Gap | None]
) -> dict[str, Any]:
    def plain(gaps: Mapping[str, Gap | None]) -> dict[str, Any]:
        return {name: None if gap is None else dataclasses.asdict(gap) for name, gap in gaps.items()}

    return {
        "claim": CLAIM,
        "verdict": word,
        "evidence": evidence,
        "tone": tone,
        "loss": plain(loss),
        "stability": plain(stable),
    }


def best(measured: Mapping[str, Any], names: Sequence[str] | None = None) -> str:
    """The criterion of the lowest mean loss."""
    means = {name: statistics.fmean(mean_losses(measured[name])) for name in names or measured}
    return min(means, key=lambda name: means[name])
