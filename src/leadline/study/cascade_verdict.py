"""What the runs of `leadline study cascade` say of claim C2, and of every taper, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leadline.compare.verdict import ONE_SEED_NOISE
from leadline.drawing.words import fixed, listed
from leadline.study.results import Judgement, Outcome

CLAIMED = "cascade-a2"
PAPER = {"latency": -0.086, "throughput": 0.094}
"""Changes against the uniform 15-layer baseline on an A100 (arXiv 2606.26538, abstract)."""

COVERAGE = 0.95
"""Of an interval over rounds, the least that decides: six rounds have it."""

Arm = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The finding in a sentence, what else is to be said, and the claim's parts."""

    headline: str
    sentences: tuple[str, ...]
    judgements: tuple[Judgement, ...]


def judge(results: Mapping[str, Any]) -> Judged:
    """The verdict of a study.

    Args:
        results: the content of `results.json`, without the verdict.
    """
    arms: list[Arm] = results["arms"]
    baseline = next(arm for arm in arms if arm["name"] == results["baseline"])
    others = [arm for arm in arms if arm is not baseline]
    claimed = next((arm for arm in others if arm["name"] == CLAIMED), None)
    judgements = _claim(baseline, claimed, results["tests_claim"])
    sentences = [_sentence(arm, baseline) for arm in others]
    return Judged(
        headline=_headline(baseline, others, judgements, results["tests_claim"]),
        sentences=(*sentences, *map(_place_sentence, (arm for arm in others if arm["placement"])), *_limits(results)),
        judgements=judgements,
    )


def quality(arm: Arm) -> Outcome:
    """Whether an arm's loss is comparable to the baseline's, or better.

    It is not where it is worse beyond noise. It is where it is not, and the interval ends below what seeds differ by.
    Where the interval reaches further, or there is none, that is open.
    """
    difference = arm["difference"]
    if difference is None or difference["beyond_noise"] is None:
        return "open"
    if difference["beyond_noise"]:
        return "does not hold" if difference["mean"] > 0 else "holds"
    return "holds" if difference["high"] <= ONE_SEED_NOISE else "open"


def faster(ratio: Mapping[str, Any] | None, paper: float, *, more_is_better: bool) -> Outcome:
    """Whether a ratio of speed lies on the better side of 1.

    Open where the interval holds 1 and the paper's figure both: then this run can't tell them apart. Open too where
    the rounds are too few for an interval of 95 %.

    Args:
        paper: the paper's change, such as -0.086.
    """
    if ratio is None or ratio["coverage"] < COVERAGE:
        return "open"
    if ratio["low"] > 1 if more_is_better else ratio["high"] < 1:
        return "holds"
    return (
        "open" if ratio["low"] <= 1 <= ratio["high"] and ratio["low"] <= 1 + paper <= ratio["high"] else "does not hold"
    )


def quicker(arm: Arm) -> Outcome:
    """Whether an arm's latency is lower."""
    return faster((arm["generation"] or {}).get("latency_ratio"), PAPER["latency"], more_is_better=False)


def _claim(baseline: Arm, arm: Arm | None, tested: bool) -> tuple[Judgement, ...]:
    parts = ("comparable perplexity", "lower latency", "higher throughput")
    papers = ("comparable", f"{_percent(PAPER['latency'])} on an A100", f"{_percent(PAPER['throughput'])} on an A100")
    if arm is None or not tested:
        took = "took no part" if arm is None else f"and {baseline['name']} differ in more than the taper"
        evidence = [f"{CLAIMED} {took}."] * 3
        outcomes: list[Outcome] = ["open"] * 3
    else:
        speed = arm["generation"] or {}
        latency, throughput = speed.get("latency_ratio"), speed.get("throughput_ratio")
        outcomes = [quality(arm), quicker(arm), faster(throughput, PAPER["throughput"], more_is_better=True)]
        evidence = [
            f"{_quality_words(arm, baseline)}.",
            f"{_speed_words('Latency at batch 1', latency)}{_beside_paper(latency, PAPER['latency'])}.",
            f"{_speed_words('Throughput', throughput)}{_beside_paper(throughput, PAPER['throughput'])}.",
        ]
    return tuple(
        Judgement(
            claim=f"C2: {CLAIMED} has {part} at equal training FLOPs", paper=paper, outcome=outcome, evidence=said
        )
        for part, paper, outcome, said in zip(parts, papers, outcomes, evidence, strict=True)
    )


def _headline(baseline: Arm, others: Sequence[Arm], judgements: Sequence[Judgement], tested: bool) -> str:
    name = baseline["name"]
    if baseline["bits_per_byte"] is None:
        return f"No verdict: the baseline {name} did not finish."
    finished = [arm for arm in others if arm["bits_per_byte"] is not None]
    if not finished:
        return f"Only {name} finished: there is nothing to compare it with."
    if tested and any(arm["name"] == CLAIMED for arm in finished):
        held = {judgement.outcome for judgement in judgements}
        if held == {"holds"}:
            return f"C2 holds here: {CLAIMED} is as good as {name} at equal training FLOPs, and faster in generation."
        if held == {"open"}:
            return f"C2 for {CLAIMED} is open: these runs are too few or too noisy to tell."
        return f"C2 for {CLAIMED}: " + ", ".join(
            f"{what} {_short(judgement.outcome)}"
            for what, judgement in zip(("perplexity", "latency", "throughput"), judgements, strict=True)
        )
    good = [arm["name"] for arm in finished if quality(arm) == "holds" and quicker(arm) == "holds"]
    if good:
        return f"As good as {name} at equal training FLOPs and faster in generation: {listed(good)}."
    return f"No taper is both as good as {name} and faster in generation beyond noise."


def _sentence(arm: Arm, baseline: Arm) -> str:
    if arm["bits_per_byte"] is None:
        return f"{arm['name']} did not finish: {arm['error']}"
    speed = arm["generation"]
    words = [_quality_words(arm, baseline)]
    if speed is not None:
        words.append(_speed_words("latency", speed["latency_ratio"]))
        words.append(_speed_words("throughput", speed["throughput_ratio"]))
    share = arm["forward_flops"] / baseline["forward_flops"] - 1
    return f"{arm['name']} ({_percent(share)} FLOPs a token): " + "; ".join(words) + "."


def _place_sentence(arm: Arm) -> str:
    """The same width in other places, against the claimed taper: whether the late layers are the ones to narrow."""
    found = arm["placement"]
    amount = f"{arm['name']} minus {CLAIMED}, which costs the same: {fixed(found['mean'], sign=True)} bits per byte"
    if found["beyond_noise"] is None:
        return f"{amount} on one seed."
    span = f"{fixed(found['low'], sign=True)} to {fixed(found['high'], sign=True)}"
    if not found["beyond_noise"]:
        return f"{amount} ({span}), within noise."
    return f"{amount} ({span}), {'worse' if found['mean'] > 0 else 'better'} beyond noise."


def _quality_words(arm: Arm, baseline: Arm) -> str:
    difference = arm["difference"]
    if difference is None:
        return "no seed finished on both sides"
    mean, low, high = difference["mean"], difference["low"], difference["high"]
    amount = f"{fixed(mean, sign=True)} bits per byte{_perplexities(arm, baseline)}"
    if difference["beyond_noise"] is None:
        sized = "less" if abs(mean) < ONE_SEED_NOISE else "more"
        return f"{amount} on one seed, {sized} than the {ONE_SEED_NOISE} that seeds differ by; more seeds would tell"
    span = f"95 % interval {fixed(low, sign=True)} to {fixed(high, sign=True)}"
    if not difference["beyond_noise"]:
        wide = "; more seeds would narrow it" if quality(arm) == "open" else ""
        return f"{amount}, within noise ({span}{wide})"
    return f"{amount}, {'worse' if mean > 0 else 'better'} beyond noise ({span})"


def _perplexities(arm: Arm, baseline: Arm) -> str:
    if arm["loss"] is None or baseline["loss"] is None:
        return ""
    mine, base = math.exp(arm["loss"]["mean"]), math.exp(baseline["loss"]["mean"])
    return f" (perplexity a token {fixed(mine)} against {fixed(base)})"


def _speed_words(what: str, ratio: Mapping[str, Any] | None) -> str:
    if ratio is None:
        return f"{what} was not measured"
    change, low, high = (ratio[key] - 1 for key in ("median", "low", "high"))
    noise = ", within noise" if low <= 0 <= high else ""
    if ratio["coverage"] < COVERAGE:
        noise = f", from rounds that are too few for an interval of {100 * COVERAGE:.0f} %"
    return f"{what} {_percent(change)} ({_percent(low)} to {_percent(high)}){noise}"


def _beside_paper(ratio: Mapping[str, Any] | None, paper: float) -> str:
    if ratio is None:
        return ""
    low, high = ratio["low"] - 1, ratio["high"] - 1
    if low <= paper <= high:
        told = "both 0 % and the paper's figure lie" if low <= 0 <= high else "the paper's figure lies"
        return f"; {told} in this interval"
    less = abs(ratio["median"] - 1) < abs(paper) or (ratio["median"] - 1) * paper < 0
    return f"; that is {'less' if less else 'more'} than the paper's {_percent(paper)}"


def _limits(results: Mapping[str, Any]) -> list[str]:
    shape, device = results["preset"], results["speed"]["options"]["device"]
    baseline = next(arm for arm in results["arms"] if arm["name"] == results["baseline"])
    found = [
        f"This holds for {shape['blocks']} blocks of width {shape['dim']}, {baseline['tokens']:,} tokens and "
        f"generation on {device}; the paper's figures are from an A100 and a larger model."
    ]
    failed = [arm["name"] for arm in results["arms"] if arm["status"] != "ok"]
    if failed:
        found.append(f"Runs failed: {listed(failed)}.")
    if len(results["seeds"]) == 1:
        found.append("One seed shows no interval of the loss; three or more do.")
    return found


def _short(outcome: Outcome) -> str:
    return {"holds": "holds", "does not hold": "does not", "open": "is open"}[outcome]


def _percent(share: float) -> str:
    return f"{fixed(100 * share, 1, sign=True)} %"
