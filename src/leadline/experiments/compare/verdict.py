"""The verdict in plain words: which design to choose, why, at what price, and what the runs cannot say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leadline.experiments.compare.speed import decides, ratio_of
from leadline.experiments.statistics import SMALLEST_EFFECT
from leadline.report.words import fixed, listed, percent
from leadline.statistics import LEVEL, Median

SAME_SPEED = 0.05
"""A time for a step, or a peak of memory, within this share of another's decides nothing."""
SMALL_WIDTH = 256
"""Below it the operations of a design weigh so much that its time says little about larger models."""
ENOUGH_BYTES = 65_536
"""Of held-out text, the least that is advised."""
AT_512 = {
    "attnres": "1.11 (0.99–1.16)",
    "attnres-block": "1.03 (0.89–1.09)",
    "mgr-competitive": "1.08 (0.96–1.11)",
    "hc": "1.09 (0.91–1.30)",
    "mhc-lite": "1.16 (0.97–1.33)",
    "mhc": "1.12 (0.96–1.33)",
    "bhyt": "0.91 (0.81–1.02)",
    "peri-ln": "1.03 (0.89–1.16)",
}
"""Forward and backward as a multiple of PreNorm's at width 512, from docs/benchmarks.md."""

Design = dict[str, Any]


def verdict(results: dict[str, Any]) -> dict[str, Any]:
    """The headline and the sentences of a comparison.

    Args:
        results: the content of results.json, without `verdict`.
    """
    designs: list[Design] = [d for d in results["arms"] if d["bits_per_byte"] is not None]
    baseline = next((d for d in designs if d["name"] == results["baseline"]), None)
    sentences = [*_failures(results["arms"]), *_learning_rates(results.get("learning_rates", []))]
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
    groups: Groups = {name: [] for name in ("better", "worse", "small", "unclear", "level")}
    for design in sorted(others, key=_mean):
        groups[_group(design["difference"], one_seed)].append(design)
    headline, reasons = _headline(results, baseline, groups, one_seed)
    reasons += _told(baseline, groups, one_seed) + _text(results, others)
    return {"headline": headline, "sentences": [*reasons, *sentences, *_limits(results, one_seed)]}


Groups = dict[str, list[Design]]
"""The designs by what their difference says, each in order of loss.

- better, worse: beyond noise, and large enough to matter.
- small: beyond noise, but smaller than what matters.
- unclear: the seeds say that they differ, but the text is too small to tell.
- level: within noise.
"""


def _group(difference: dict[str, Any], one_seed: bool) -> str:
    large = abs(difference["mean"]) >= SMALLEST_EFFECT
    if difference.get("too_little_text"):
        return "unclear"
    if not (large if one_seed else difference["beyond_noise"]):
        return "level"
    return "small" if not large else "better" if difference["mean"] < 0 else "worse"


def _headline(results: dict[str, Any], baseline: Design, groups: Groups, one_seed: bool) -> tuple[str, list[str]]:
    name = baseline["name"]
    if groups["better"]:
        chosen = _choice(groups["better"])
        amount = f"{abs(chosen['difference']['mean']):.3f} bits per byte below {name}"
        headline = (
            f"{'Ahead in one seed:' if one_seed else 'Choose'} {chosen['name']}{',' if one_seed else ':'} {amount}."
        )
        reasons = [*filter(None, [_price(chosen, baseline)]), *_wider(results, chosen)]
        best = groups["better"][0]
        if chosen is not best:
            reasons.append(
                f"{best['name']} has the lowest loss, but by {_mean(chosen) - _mean(best):.3f} bits per byte only, "
                f"which is smaller than what matters, and {_speed(best, chosen)}."
            )
        return headline, reasons
    if groups["unclear"]:
        return f"Too little text: {_held_out(results)} can't tell {name} and {_names(groups['unclear'])} apart.", []
    if groups["worse"] and not groups["level"] and not groups["small"]:
        seeds = " in one seed" if one_seed else ""
        return f"Keep {name}: every other design did worse{seeds}.", []
    headline = f"No design is ahead of {name}"
    if one_seed:
        headline += f" by {SMALLEST_EFFECT} bits per byte in one seed."
    else:
        headline += f" by {SMALLEST_EFFECT} bits per byte." if groups["small"] else " beyond noise."
    fast = _fastest([baseline, *groups["small"], *filter(_no_worse, groups["level"])], baseline)
    if fast is baseline:
        return headline, [f"Keep {name}, which the others are compared with."]
    loss = "a loss that differs by less than matters"
    return headline, [f"{fast['name']} {_speed(fast, baseline)}, at {loss}.", *_wider(results, fast)]


def _no_worse(design: Design) -> bool:
    """Whether a design within noise is behind by less than matters for certain; on one seed, by what it shows."""
    high = design["difference"]["high"]
    return float(design["difference"]["mean"] if high is None else high) < SMALLEST_EFFECT


def _choice(better: Sequence[Design]) -> Design:
    """The lowest loss, or a design that is clearly faster and behind it by less than matters."""
    best = better[0]
    return _fastest([best, *(d for d in better[1:] if _mean(d) - _mean(best) < SMALLEST_EFFECT)], best)


def _fastest(designs: Sequence[Design], than: Design) -> Design:
    """The one that takes least time of those that are faster than `than` beyond noise and by enough; else `than`."""
    found = [(ratio, design) for design in designs if (ratio := _ratio(design, than))]
    faster = [(ratio.median, design) for ratio, design in found if decides(ratio) and ratio.median < 1 - SAME_SPEED]
    return min(faster, key=lambda pair: pair[0])[1] if faster else than


def _told(baseline: Design, groups: Groups, one_seed: bool) -> list[str]:
    name, seeds = baseline["name"], " in one seed" if one_seed else ""
    said = {kind: f"{_names(of)} {'differs' if len(of) == 1 else 'differ'} from {name}" for kind, of in groups.items()}
    each = {kind: _each(of) for kind, of in groups.items()}
    noise = f"by less than {SMALLEST_EFFECT}" if one_seed else "not beyond noise"
    matter = f"beyond noise, but by less than the {SMALLEST_EFFECT} bits per byte that matter"
    sentences = {
        "better": f"Ahead of {name}{seeds}: {each['better']}." if len(groups["better"]) > 1 else "",
        "small": f"{said['small']} {matter} ({each['small']}).",
        "level": f"{said['level']} {noise} ({each['level']}).",
        "worse": f"Behind {name}{seeds}: {each['worse']}.",
    }
    return [sentence for kind, sentence in sentences.items() if groups[kind] and sentence]


def _text(results: dict[str, Any], designs: Sequence[Design]) -> list[str]:
    """What the held-out text can and can't tell."""
    unclear = [d for d in designs if d["difference"].get("too_little_text")]
    if unclear:
        return [
            f"The held-out text is too little to tell {_names(unclear)} from {results['baseline']} ({_each(unclear)}): "
            f"{_held_out(results)} were read; about {_needed(results, unclear):,} would do."
        ]
    if any("text" in d["difference"] and d["difference"]["text"] is None for d in designs):
        return ["Some runs kept no losses of single held-out sequences, so their intervals cover seeds alone."]
    return []


def _held_out(results: dict[str, Any]) -> str:
    found = (results.get("data") or {}).get("read_bytes")
    return "the held-out text" if found is None else f"{found:,} held-out bytes"


def _needed(results: dict[str, Any], designs: Sequence[Design]) -> int:
    """Bytes with which the text's interval of each difference would be half as wide as the difference is large."""
    read = results["data"]["read_bytes"]
    wanted = [ENOUGH_BYTES]
    for design in designs:
        text, mean = design["difference"]["text"], design["difference"]["mean"]
        if text["low"] is not None and mean:
            wanted.append(read * (2 * (text["high"] - mean) / mean) ** 2)
    largest = min(max(wanted), 1e15)
    return int(float(f"{largest:.1e}"))


def _price(design: Design, baseline: Design) -> str:
    difference = design["difference"]
    text, said = difference.get("text"), ""
    if difference["low"] is not None:
        said = f"differs by {_within(difference)} bits per byte (95 % interval)"
    elif text and text["low"] is not None:
        said = f"has an interval over held-out text alone of {_within(text)} bits per byte"
    parts = [part for part in (said, _speed(design, baseline), _memory(design, baseline)) if part]
    return f"{design['name']} {listed(parts)}." if parts else ""


def _within(found: dict[str, Any]) -> str:
    return f"{fixed(found['low'], sign=True)} to {fixed(found['high'], sign=True)}"


def _ratio(design: Design, than: Design) -> Median | None:
    mine, other = design.get("speed"), than.get("speed")
    return ratio_of(mine["seconds"], other["seconds"]) if mine and other else None


def _speed(design: Design, than: Design) -> str:
    found = _ratio(design, than)
    if found is None:
        return ""
    span = f"{found.median:.2f} times, {found.low:.2f} to {found.high:.2f}"
    if found.coverage < LEVEL:
        return f"was timed in too few rounds beside {than['name']} ({span})"
    if not decides(found):
        return f"takes no other time for a step than {than['name']} beyond noise ({span})"
    return f"takes {'more' if found.median > 1 else 'less'} time for a step than {than['name']} ({span})"


def _wider(results: dict[str, Any], design: Design) -> list[str]:
    """At a small width, that overheads shrink with it, and what was measured at a larger one."""
    dim = results["preset"].get("dim")
    if not design.get("speed") or dim is None or dim >= SMALL_WIDTH:
        return []
    name, known = design["name"], AT_512.get(design["name"])
    how = "times as long as prenorm, forward and backward with compiled bodies"
    there = "" if known is None else f": at width 512 {name} took {known} {how}"
    overhead = f"At width {dim} a design's own operations weigh most; their share shrinks with width"
    return [f"{overhead} (docs/benchmarks.md{there})."]


def _memory(design: Design, baseline: Design) -> str:
    mine, reference = design["peak_memory_bytes"], baseline["peak_memory_bytes"]
    if not mine or not reference or abs(mine / reference - 1) < SAME_SPEED:
        return ""
    return f"takes {percent(abs(mine / reference - 1))} {'more' if mine > reference else 'less'} memory"


def _failures(designs: Sequence[Design]) -> list[str]:
    said = {"failed": "failed", "partial": "finished on some seeds only"}
    return [f"{d['name']} {said[d['status']]}: {d['error']}" for d in designs if d["status"] in said]


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
            f"One seed: differences under {SMALLEST_EFFECT} bits per byte should be read as noise, and there is no "
            "interval over seeds. Three seeds or more show one."
        )
    budget, preset = results["budget"], results["preset"]
    size = f"{preset['blocks']} blocks of width {preset['dim']}" if {"blocks", "dim"} <= preset.keys() else "this size"
    sentences.append(f"This holds for {size} and {budget['tokens']:,} tokens; a larger run may order them otherwise.")
    return sentences


def _ranking(designs: Sequence[Design]) -> str:
    return listed([f"{d['name']} has {_mean(d):.3f}" for d in designs]) + " bits per byte"


def _each(designs: Sequence[Design]) -> str:
    return listed([f"{d['name']} {fixed(d['difference']['mean'], sign=True)}" for d in designs])


def _names(designs: Sequence[Design]) -> str:
    return listed([d["name"] for d in designs])


def _mean(design: Design) -> float:
    return float(design["bits_per_byte"]["mean"])
