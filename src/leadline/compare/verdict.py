"""The verdict in plain words: which design to choose, why, at what price, and what the runs cannot say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leadline.drawing.words import fixed, percent

ONE_SEED_NOISE = 0.05
"""Bits per byte below which a difference on one seed is read as noise: prototype seeds differed by 0.01 to 0.09."""
SAME_SPEED = 0.05
"""Time per token within this share is called the same: two runs share a machine while it is measured."""

Design = dict[str, Any]


def verdict(results: dict[str, Any]) -> dict[str, Any]:
    """The headline and the sentences of a comparison.

    Args:
        results: the content of results.json, without `verdict`.
    """
    designs: list[Design] = [d for d in results["designs"] if d["bits_per_byte"] is not None]
    baseline = next((d for d in designs if d["name"] == results["baseline"]), None)
    sentences = [*_failures(results["designs"]), *_learning_rates(results.get("learning_rates", []))]
    if baseline is None:
        headline = f"No verdict: the baseline {results['baseline']} did not finish."
        ranked = sorted(designs, key=_mean)
        if ranked:
            sentences.insert(0, "Among the designs that finished, " + _ranking(ranked) + ".")
        return {"headline": headline, "sentences": sentences}
    others = [d for d in designs if d is not baseline and d["difference"] is not None]
    if not others:
        return {
            "headline": f"Only {baseline['name']} finished: there is nothing to compare it with.",
            "sentences": sentences,
        }
    one_seed = all(d["difference"]["beyond_noise"] is None for d in others)
    better = sorted((d for d in others if _sign(d, one_seed) < 0), key=_mean)
    worse = sorted((d for d in others if _sign(d, one_seed) > 0), key=_mean)
    level = sorted((d for d in others if _sign(d, one_seed) == 0), key=_mean)
    headline, reasons = _headline(baseline, better, worse, level, one_seed)
    reasons += _groups(baseline, better, worse, level, one_seed)
    return {"headline": headline, "sentences": [*reasons, *sentences, *_limits(results, one_seed)]}


def _headline(
    baseline: Design, better: list[Design], worse: list[Design], level: list[Design], one_seed: bool
) -> tuple[str, list[str]]:
    name = baseline["name"]
    if better:
        chosen = _choice(better, one_seed)
        on_one_seed = " (one seed)" if one_seed else ""
        headline = f"Choose {chosen['name']}: {_amount(chosen)} below {name}{on_one_seed}."
        reasons = [_price(chosen, baseline)]
        if chosen is not better[0]:
            best = better[0]
            reasons.append(
                f"{best['name']} has the lowest loss, but by {_gap(best, chosen)} only, which is noise, "
                f"and {_slower(best, chosen)}."
            )
        return headline, reasons
    if worse and not level:
        return f"Keep {name}: every other design did worse.", []
    if one_seed:
        headline = f"No difference beyond noise: no design is ahead of {name} by {ONE_SEED_NOISE} bits per byte."
    else:
        headline = f"No difference beyond noise: no design is ahead of {name} for certain."
    fast = min([baseline, *level], key=_time)
    if fast is baseline or _share(fast, baseline) > -SAME_SPEED:
        return headline, [f"Keep {name}, the simplest of them."]
    return headline, [f"{fast['name']} {_speed(fast, baseline)}, at a loss that does not differ beyond noise."]


def _choice(better: Sequence[Design], one_seed: bool) -> Design:
    """The lowest loss, or a design that is clearly faster and no worse than it beyond noise."""
    best = better[0]
    level = [d for d in better if d is best or _indistinct(d, best, one_seed)]
    fastest = min(level, key=_time)
    return fastest if _share(fastest, best) < -SAME_SPEED else best


def _indistinct(design: Design, best: Design, one_seed: bool) -> bool:
    if one_seed:
        return float(_mean(design) - _mean(best)) < ONE_SEED_NOISE
    from leadline.compare.statistics import interval

    values = zip(design["bits_per_byte"]["values"], best["bits_per_byte"]["values"], strict=True)
    pairs = [a - b for a, b in values if a is not None and b is not None]
    if len(pairs) < 2:
        return False
    low = interval(pairs).low
    return low is not None and low <= 0


def _sign(design: Design, one_seed: bool) -> int:
    difference = design["difference"]
    counts = abs(difference["mean"]) >= ONE_SEED_NOISE if one_seed else bool(difference["beyond_noise"])
    return 0 if not counts else (-1 if difference["mean"] < 0 else 1)


def _groups(
    baseline: Design, better: list[Design], worse: list[Design], level: list[Design], one_seed: bool
) -> list[str]:
    name, sentences = baseline["name"], []
    if len(better) > 1:
        sentences.append(f"Ahead of {name}: {_each(better)}.")
    if level:
        reason = f"by less than {ONE_SEED_NOISE}" if one_seed else "not beyond noise"
        verb = "differs" if len(level) == 1 else "differ"
        sentences.append(f"{_listed([d['name'] for d in level])} {verb} from {name} {reason} ({_each(level)}).")
    if worse:
        sentences.append(f"Behind {name}: {_each(worse)}.")
    return sentences


def _price(design: Design, baseline: Design) -> str:
    low, high = design["difference"]["low"], design["difference"]["high"]
    span = "" if low is None else f" (95 % interval {fixed(low, sign=True)} to {fixed(high, sign=True)} bits per byte)"
    return f"{design['name']}{span} {_speed(design, baseline)}{_memory(design, baseline)}."


def _speed(design: Design, than: Design) -> str:
    share = _share(design, than)
    if abs(share) <= SAME_SPEED:
        return f"takes about as long per token as {than['name']}"
    return f"takes {percent(abs(share))} {'longer' if share > 0 else 'less time'} per token than {than['name']}"


def _slower(design: Design, than: Design) -> str:
    return _speed(design, than)


def _memory(design: Design, baseline: Design) -> str:
    mine, reference = design["peak_memory_bytes"], baseline["peak_memory_bytes"]
    if not mine or not reference or abs(mine / reference - 1) < SAME_SPEED:
        return ""
    return f" and {percent(abs(mine / reference - 1))} {'more' if mine > reference else 'less'} memory"


def _failures(designs: Sequence[Design]) -> list[str]:
    sentences = []
    for design in designs:
        if design["status"] == "failed":
            sentences.append(f"{design['name']} failed: {design['error']}")
        elif design["status"] == "partial":
            sentences.append(f"{design['name']} finished on some seeds only: {design['error']}")
    return sentences


def _learning_rates(curves: Sequence[dict[str, Any]]) -> list[str]:
    """A warning for every design whose best learning rate lies at an end of the grid."""
    sentences = []
    for curve in curves:
        rates = sorted(p["learning_rate"] for p in curve["points"] if p["bits_per_byte"] is not None)
        if len(rates) > 1 and curve["chosen"] in (rates[0], rates[-1]):
            side = "smallest" if curve["chosen"] == rates[0] else "largest"
            sentences.append(
                f"{curve['design']} liked the {side} learning rate tried, {curve['chosen']:g}: "
                "a better one may lie outside the grid."
            )
    return sentences


def _limits(results: dict[str, Any], one_seed: bool) -> list[str]:
    sentences = []
    if one_seed:
        sentences.append(
            f"One seed: differences under {ONE_SEED_NOISE} bits per byte should be read as noise, and there is no "
            "interval. Three seeds or more show one."
        )
    budget, preset = results["budget"], results["preset"]
    size = f"{preset['blocks']} blocks of width {preset['dim']}" if {"blocks", "dim"} <= preset.keys() else "this size"
    sentences.append(f"This holds for {size} and {budget['tokens']:,} tokens; a larger run may order them otherwise.")
    return sentences


def _ranking(designs: Sequence[Design]) -> str:
    return _listed([f"{d['name']} has {_mean(d):.3f}" for d in designs]) + " bits per byte"


def _each(designs: Sequence[Design]) -> str:
    return _listed([f"{d['name']} {fixed(d['difference']['mean'], sign=True)}" for d in designs])


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _amount(design: Design) -> str:
    return f"{abs(design['difference']['mean']):.3f} bits per byte"


def _gap(best: Design, other: Design) -> str:
    return f"{_mean(other) - _mean(best):.3f} bits per byte"


def _mean(design: Design) -> float:
    return float(design["bits_per_byte"]["mean"])


def _time(design: Design) -> float:
    speed = design["tokens_per_second"]
    return 1 / speed if speed else float("inf")


def _share(design: Design, than: Design) -> float:
    """By how much longer a token takes: 0.1 is 10 % longer."""
    if not design["tokens_per_second"] or not than["tokens_per_second"]:
        return 0.0
    return float(than["tokens_per_second"] / design["tokens_per_second"]) - 1
