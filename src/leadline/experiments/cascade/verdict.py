"""What the runs of `leadline study cascade` say of claim C2, and of every taper, in words.

The claim is judged against the claimed taper's uniform control, which costs the same a token. A difference to the
baseline is split into what the control has of it (a smaller model that reads more tokens) and the taper's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from leadline.experiments.results import Judged, Judgement, Outcome, failures
from leadline.experiments.statistics import SMALLEST_EFFECT
from leadline.report.effects import Effect, effect_of
from leadline.report.words import fixed, listed
from leadline.statistics import LEVEL

CLAIMED = "cascade-a2"
SMALLEST_GAIN = 0.02
"""A change of speed below it does not matter [ours]."""
PAPER = {"latency": -0.086, "throughput": 0.094}
"""Changes against the uniform 15-layer baseline on an A100 (arXiv 2606.26538, abstract)."""

Arm = Mapping[str, Any]


def judge(results: Mapping[str, Any]) -> Judged:
    """The verdict of a study.

    Args:
        results: the content of `results.json`, without the verdict.
    """
    arms = {arm["name"]: arm for arm in results["arms"]}
    baseline = arms[results["baseline"]]
    controls = {arm["control"] for arm in arms.values()}
    tapers = [arm for name, arm in arms.items() if arm is not baseline and name not in controls]
    judgements = _claim(arms)
    # The same width in other places, against the claimed taper: whether the late layers are the ones to narrow.
    placed = [
        f"{arm['name']} minus {CLAIMED}, which costs the same: {_difference_words(arm['placement'])}."
        for arm in tapers
        if arm["placement"]
    ]
    failed = [_failure(arm) for name, arm in arms.items() if name in controls and arm["bits_per_byte"] is None]
    return Judged(
        headline=_headline(arms, baseline, tapers, judgements),
        sentences=(*(_sentence(arm, arms, baseline) for arm in tapers), *placed, *failed, *_limits(results, baseline)),
        judgements=judgements,
    )


def called(difference: Mapping[str, Any] | None) -> Effect:
    """What a difference in bits per byte is, beside the smallest that matters."""
    if difference is None:
        return "not told by these seeds"
    mean, low, high, beyond = (difference[key] for key in ("mean", "low", "high", "beyond_noise"))
    return effect_of(mean, low, high, beyond, SMALLEST_EFFECT)


def quality(difference: Mapping[str, Any] | None) -> Outcome:
    """Whether a loss is comparable, or better: not worse by more than the smallest difference that matters.

    It is not where it is worse beyond noise, and by that much. It is where the interval ends below that. Where the
    interval reaches further, or there is none, that is open.
    """
    effect = called(difference)
    if difference is None or effect == "not told by these seeds":
        return "open"
    if effect == "worse":
        return "does not hold"
    return "holds" if difference["high"] <= SMALLEST_EFFECT else "open"


def faster(ratio: Mapping[str, Any] | None, *, more_is_better: bool) -> Outcome:
    """Whether a ratio of speed lies on the better side of 1.

    It does not hold where the whole interval lies on the worse side, or so near to 1 that no gain that matters is left,
    and is open where it reaches further, or where the rounds are too few for an interval of 95 %. The paper's figures
    are beside a wider stack, and decide nothing here.
    """
    if ratio is None or ratio["coverage"] < LEVEL:
        return "open"
    above, below = ratio["low"] > 1, ratio["high"] < 1
    better, worse = (above, below) if more_is_better else (below, above)
    level = ratio["low"] > 1 - SMALLEST_GAIN and ratio["high"] < 1 + SMALLEST_GAIN
    return "holds" if better else "does not hold" if worse or level else "open"


def quicker(arm: Arm) -> Outcome:
    """Whether an arm's latency is lower than its control's."""
    return faster(_ratio(arm, "latency_ratio"), more_is_better=False)


def _ratio(arm: Arm, name: str) -> Mapping[str, Any] | None:
    """A ratio of speed to the arm's control."""
    found: Mapping[str, Any] | None = ((arm["generation"] or {}).get("control") or {}).get(name)
    return found


def _claim(arms: Mapping[str, Arm]) -> tuple[Judgement, ...]:
    parts = ("comparable perplexity", "lower latency", "higher throughput")
    papers = ("comparable", *(f"{_percent(change)} on an A100" for change in PAPER.values()))
    arm = arms.get(CLAIMED)
    control = None if arm is None else arms.get(arm["control"] or "")
    if arm is None or control is None:
        reason = "took no part" if arm is None else f"has no control, because {arm['control_note']}"
        evidence = [f"{CLAIMED} {reason}."] * 3
        outcomes: list[Outcome] = ["open"] * 3
    else:
        latency, throughput = _ratio(arm, "latency_ratio"), _ratio(arm, "throughput_ratio")
        outcomes = [quality(arm["against_control"]), quicker(arm), faster(throughput, more_is_better=True)]
        evidence = [
            f"{_difference_words(arm['against_control'])}{_perplexities(arm, control)}.",
            f"{_speed_words('Latency at batch 1', latency)}{_beside_paper(latency, PAPER['latency'])}.",
            f"{_speed_words('Throughput', throughput)}{_beside_paper(throughput, PAPER['throughput'])}.",
        ]
    beside = "a uniform stack of the same cost" if control is None else f"{control['name']}, which costs the same"
    claims = (f"C2: {CLAIMED} has {part} beside {beside}" for part in parts)
    found = zip(claims, papers, outcomes, evidence, strict=True)
    return tuple(Judgement(claim=c, paper=paper, outcome=outcome, evidence=said) for c, paper, outcome, said in found)


def _headline(arms: Mapping[str, Arm], baseline: Arm, tapers: Sequence[Arm], judgements: Sequence[Judgement]) -> str:
    if baseline["bits_per_byte"] is None:
        return f"No verdict: the baseline {baseline['name']} did not finish."
    finished = [arm for arm in tapers if arm["bits_per_byte"] is not None]
    if not finished:
        return f"No taper finished: there is nothing to compare {baseline['name']} with."
    claimed = arms.get(CLAIMED)
    if claimed is not None and claimed["bits_per_byte"] is not None and claimed["control"] is not None:
        beside = f"beside {claimed['control']}, which costs the same"
        held = {judgement.outcome for judgement in judgements}
        if held == {"holds"}:
            return f"C2 holds here: {CLAIMED} is as good {beside}, and faster in generation."
        if held == {"open"}:
            return f"C2 for {CLAIMED} {beside} is open: these runs are too few or too noisy to tell."
        return f"C2 for {CLAIMED} {beside}: " + ", ".join(
            f"{what} {'is open' if judgement.outcome == 'open' else judgement.outcome}"
            for what, judgement in zip(("perplexity", "latency", "throughput"), judgements, strict=True)
        )
    good = [arm["name"] for arm in finished if quality(arm["against_control"]) == "holds" == quicker(arm)]
    if good:
        return f"As good as a uniform stack of the same cost and faster in generation: {listed(good)}."
    return "No taper is shown to be both as good as a uniform stack of the same cost and faster in generation."


def _sentence(arm: Arm, arms: Mapping[str, Arm], baseline: Arm) -> str:
    """A taper beside its control, and beside the baseline: how much of that is the control's, and how much its own."""
    if arm["bits_per_byte"] is None:
        return _failure(arm)
    share = arm["forward_flops"] / baseline["forward_flops"] - 1
    opening = f"{arm['name']} ({_percent(share)} FLOPs a token)"
    apart = f"minus {baseline['name']}: {_difference_words(arm['difference'])}"
    control = arms.get(arm["control"] or "")
    if control is None:
        return f"{opening} {apart}; {arm['control_note'] or 'all of its layers are equally wide'}."
    words = [
        f"{opening} minus {control['name']} ({_cost_words(arm, control)}): {_difference_words(arm['against_control'])}",
        _speed_words("latency", _ratio(arm, "latency_ratio")),
        _speed_words("throughput", _ratio(arm, "throughput_ratio")),
    ]
    return f"{'; '.join(words)}. {apart[0].upper()}{apart[1:]}{_parts(arm, control, baseline)}."


def _parts(arm: Arm, control: Arm, baseline: Arm) -> str:
    """What of a taper's difference to the baseline its control has too; over the seeds that all three finished."""
    if not arm["only_taper"]:
        return f" ({baseline['name']} differs in more than the taper)"
    values = [(one["bits_per_byte"] or {"values": []})["values"] for one in (arm, control, baseline)]
    trios = [trio for trio in zip(*values, strict=False) if None not in trio]
    if not trios:
        return ""
    smaller, own = (math.fsum(t[b] - t[a] for t in trios) / len(trios) for a, b in ((2, 1), (1, 0)))
    return (
        f"; {fixed(smaller, sign=True)} of it are {control['name']} minus {baseline['name']} "
        f"({_change_words(control, baseline)}), {fixed(own, sign=True)} the taper's"
    )


def _change_words(control: Arm, baseline: Arm) -> str:
    """What a uniform stack changes: `fewer heads, +17.7 % tokens`."""
    mine, base = ([len(one["widths"]), *one["widths"][0]] for one in (control, baseline))
    kinds = ((0, "fewer layers", "more layers"), (1, "fewer heads", "more heads"), (3, "narrower MLPs", "wider MLPs"))
    found = [less if mine[place] < base[place] else more for place, less, more in kinds if mine[place] != base[place]]
    return ", ".join([*found, f"{_percent(control['tokens'] / baseline['tokens'] - 1)} tokens"])


def _cost_words(arm: Arm, control: Arm) -> str:
    """That the control costs the same, with the numbers."""
    pairs = [(one["flops_per_token"], one["tokens"]) for one in (arm, control)]
    if pairs[0] == pairs[1]:
        return f"both {pairs[0][0]:,} FLOPs a token, {pairs[0][1]:,} tokens"
    return (
        f"{pairs[0][0]:,} and {pairs[1][0]:,} FLOPs a token, {pairs[0][1]:,} and {pairs[1][1]:,} tokens, "
        f"{fixed(100 * (pairs[1][0] * pairs[1][1] / (pairs[0][0] * pairs[0][1]) - 1), 2, sign=True)} % in all"
    )


def _failure(arm: Arm) -> str:
    return f"{arm['name']} did not finish: {arm['error']}"


def _difference_words(difference: Mapping[str, Any] | None) -> str:
    if difference is None:
        return "no seed finished on both sides"
    amount = f"{fixed(difference['mean'], sign=True)} bits per byte"
    low, high, effect = difference["low"], difference["high"], called(difference)
    if effect == "not told by these seeds":
        return f"{amount} on one seed, which shows no interval"
    noise = {
        "better": "better beyond noise",
        "worse": "worse beyond noise",
        "smaller than what matters": f"beyond noise, but {effect}",
        "undecided": "undecided, more seeds would narrow it",
    }
    span = f"95 % interval {fixed(low, sign=True)} to {fixed(high, sign=True)}"
    return f"{amount} ({span}), {noise.get(effect, effect)}"


def _perplexities(arm: Arm, baseline: Arm) -> str:
    if arm["loss"] is None or baseline["loss"] is None:
        return ""
    mine, base = (fixed(math.exp(one["loss"]["mean"])) for one in (arm, baseline))
    return f" (perplexity a token {mine} against {base})"


def _speed_words(what: str, ratio: Mapping[str, Any] | None) -> str:
    if ratio is None:
        return f"{what} was not measured"
    change, low, high = (ratio[key] - 1 for key in ("median", "low", "high"))
    noise = ", within noise" if low <= 0 <= high else ""
    if ratio["coverage"] < LEVEL:
        noise = f", from rounds that are too few for an interval of {100 * LEVEL:.0f} %"
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


def _limits(results: Mapping[str, Any], baseline: Arm) -> list[str]:
    shape, device = results["preset"], results["speed"]["options"]["device"]
    one = ["One seed shows no interval of the loss; three or more do."] if len(results["seeds"]) == 1 else []
    return [
        f"This holds for {shape['blocks']} blocks of width {shape['dim']}, {baseline['tokens']:,} tokens and "
        f"generation on {device}; the paper's figures are from an A100 and a larger model.",
        *failures(results["arms"]),
        *one,
    ]


def _percent(share: float) -> str:
    return f"{fixed(100 * share, 1, sign=True)} %"
