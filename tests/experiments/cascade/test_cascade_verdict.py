"""The verdict on claim C2, from made-up results."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from leadline.designs import resolve
from leadline.experiments.cascade.experiment import differ_in_taper
from leadline.experiments.cascade.page import _change, _difference, make_page
from leadline.experiments.cascade.verdict import judge
from leadline.experiments.statistics import SMALLEST_EFFECT
from leadline.report.page import Cell


def ratio(median: float, spread: float = 0.01) -> dict[str, Any]:
    return {"median": median, "low": median - spread, "high": median + spread, "coverage": 0.96, "values": 20}


def arm(name: str, bits: float | None, **changes: Any) -> dict[str, Any]:
    over = None if bits is None else {"mean": bits, "low": bits - 0.01, "high": bits + 0.01, "values": [bits] * 3}
    return {
        "name": name,
        "design": name,
        "slug": name,
        "control": None,
        "control_note": "",
        "only_taper": True,
        "learning_rate": 4e-3,
        "shape": {},
        "tokens": 1000,
        "flops_per_token": 100,
        "residual": 0.0,
        "forward_flops": 30,
        "parameters": 7,
        "widths": [[6, 6, 64], [6, 6, 64]],
        "status": "ok" if bits is not None else "failed",
        "error": None if bits is not None else "the loss was not finite",
        "loss": over,
        "bits_per_byte": over,
        "curve": None if bits is None else {"tokens": [500, 1000], "bits_per_byte": [bits + 1, bits]},
        "tokens_per_second": 1000.0,
        "difference": None,
        "against_control": None,
        "placement": None,
        "generation": None,
        **changes,
    }


CONTROL = "taper(heads=2/3)"


def difference(mean: float, beyond: bool | None, half: float = 0.01) -> dict[str, Any]:
    low, high = (None, None) if beyond is None else (mean - half, mean + half)
    return {"mean": mean, "low": low, "high": high, "beyond_noise": beyond, "p_value": None, "pairs": [mean]}


def taper(
    mean: float,
    beyond: bool | None,
    latency: float = 0.9,
    throughput: float = 1.1,
    name: str = "cascade-a2",
    half: float = 0.01,
) -> dict[str, Any]:
    """A taper that is so far from its control, and 0.05 further from the baseline, whose speed is another."""
    ratios = {"latency_ratio": ratio(latency), "throughput_ratio": ratio(throughput), "latency_rounds": [latency] * 5}
    speed = {
        "milliseconds_per_token": ratio(2.0),
        "tokens_per_second": ratio(500.0),
        "latency_ratio": ratio(0.5),
        "throughput_ratio": ratio(2.0),
        "latency_rounds": [0.5] * 5,
        "control": ratios,
    }
    return arm(
        name,
        1.95 + mean,
        control=CONTROL,
        control_note="the same FLOPs a token",
        difference=difference(mean - 0.05, True),
        against_control=difference(mean, beyond, half),
        generation=speed,
        forward_flops=24,
        tokens=1180,
    )


def uniform(bits: float | None = 1.95) -> dict[str, Any]:
    widths = [[4, 4, 64], [4, 4, 64]]
    return arm(CONTROL, bits, difference=difference(-0.05, True), forward_flops=24, tokens=1180, widths=widths)


def results(*arms: dict[str, Any], seeds: int = 3, control: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "arms": [arm("prenorm", 2.0), *arms, control or uniform()],
        "baseline": "prenorm",
        "smallest_effect": SMALLEST_EFFECT,
        "seeds": list(range(seeds)),
        "preset": {"name": "tiny", "blocks": 15, "dim": 96},
        "budget": {"by": "tokens", "flops": 100_000},
        "speed": {"options": {"device": "cpu", "batch": 16}, "method": "wall time"},
    }


def outcomes(content: dict[str, Any]) -> list[str]:
    return [judgement.outcome for judgement in judge(content).judgements]


def test_all_of_the_claim_holds() -> None:
    found = judge(results(taper(0.003, False, 0.914, 1.2)))
    assert [judgement.outcome for judgement in found.judgements] == ["holds"] * 3
    beside = "beside taper(heads=2/3), which costs the same"
    assert found.headline == f"C2 holds here: cascade-a2 is as good {beside}, and faster in generation."
    assert found.judgements[0].claim == f"C2: cascade-a2 has comparable perplexity {beside}"
    quality, latency, throughput = (judgement.evidence for judgement in found.judgements)
    assert "+0.003 bits per byte (95 % interval −0.007 to +0.013), no difference that matters" in quality
    assert "−8.6 % (−9.6 % to −7.6 %); the paper's figure lies in this interval" in latency
    assert "+20.0 %" in throughput
    assert "that is more than the paper's +9.4 %" in throughput


def test_a_difference_to_the_baseline_is_told_apart() -> None:
    said = judge(results(taper(-0.02, True))).sentences[0]
    assert said.startswith(
        "cascade-a2 (−20.0 % FLOPs a token) minus taper(heads=2/3) (both 100 FLOPs a token, 1,180 tokens): −0.020 bits"
    )
    assert "latency −10.0 % (−11.0 % to −9.0 %); throughput +10.0 % (+9.0 % to +11.0 %). Minus prenorm: −0.070" in said
    whole = "; −0.050 of it are taper(heads=2/3) minus prenorm (fewer heads, +18.0 % tokens), −0.020 the taper's."
    assert said.endswith(whole)
    other = taper(-0.02, True)
    other["only_taper"] = False
    assert judge(results(other)).sentences[0].endswith("(prenorm differs in more than the taper).")
    off = uniform()
    off["flops_per_token"] = 101
    assert "100 and 101 FLOPs a token, 1,180 and 1,180 tokens, +1.00 % in all" in judge(
        results(taper(0.0, False), control=off)
    ).sentences[0]  # fmt: skip


def test_what_the_control_has_too_is_no_merit_of_the_taper() -> None:
    # Far better and faster than the baseline, and no better than the uniform stack that costs as little.
    level = taper(0.0, False, 1.001, 1.001)
    level["difference"] = difference(-0.2, True)
    found = judge(results(level))
    assert [judgement.outcome for judgement in found.judgements] == ["holds", "does not hold", "does not hold"]
    assert "no difference that matters" in found.judgements[0].evidence
    assert found.headline.endswith("perplexity holds, latency does not hold, throughput does not hold")


@pytest.mark.parametrize(
    ("changes", "expected", "said"),
    [
        ({"mean": 0.1, "beyond": True}, "does not hold", "worse beyond noise"),
        ({"mean": -0.1, "beyond": True}, "holds", "better beyond noise"),
        ({"mean": 0.1, "beyond": None}, "open", "on one seed, which shows no interval"),
        ({"mean": 0.045, "beyond": False}, "open", "undecided"),
        ({"mean": 0.03, "beyond": True}, "holds", "no difference that matters"),
        ({"mean": 0.04, "beyond": True, "half": 0.02}, "open", "beyond noise, but smaller than what matters"),
        ({"mean": -0.04, "beyond": True, "half": 0.02}, "holds", "beyond noise, but smaller than what matters"),
        ({"mean": 0.0, "beyond": False, "half": 0.2}, "open", "undecided"),
    ],
)
def test_loss_is_judged_by_noise_and_by_what_matters(changes: dict[str, Any], expected: str, said: str) -> None:
    judgement = judge(results(taper(**changes))).judgements[0]
    assert judgement.outcome == expected
    assert said in judgement.evidence


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"latency": 1.005}, ["holds", "does not hold", "holds"]),
        ({"latency": 1.2, "throughput": 0.8}, ["holds", "does not hold", "does not hold"]),
    ],
)
def test_each_part_is_judged_by_itself(changes: dict[str, Any], expected: list[str]) -> None:
    assert outcomes(results(taper(0.0, False, **changes))) == expected


def test_rounds_too_noisy_to_tell_leave_a_claim_open() -> None:
    noisy = taper(0.0, False)
    noisy["generation"]["control"]["latency_ratio"] = ratio(0.95, 0.2)
    found = judge(results(noisy)).judgements[1]
    assert found.outcome == "open"
    assert "within noise; both 0 % and the paper's figure lie in this interval" in found.evidence
    noisy = taper(0.0, None)
    noisy["generation"] = None
    assert judge(results(noisy)).headline.endswith("is open: these runs are too few or too noisy to tell.")


def test_within_noise_is_said_of_speeds_too() -> None:
    found = judge(results(taper(0.0, False, 1.005, 0.995)))
    assert "Latency at batch 1 +0.5 % (−0.5 % to +1.5 %), within noise" in found.judgements[1].evidence
    assert "less than the paper's −8.6 %" in found.judgements[1].evidence


def test_without_the_claimed_design_the_claim_is_open() -> None:
    content = results(taper(0.0, False, name="cascade-f1"))
    assert outcomes(content) == ["open"] * 3
    assert (
        judge(content).headline == "As good as a uniform stack of the same cost and faster in generation: cascade-f1."
    )
    alone = taper(-0.1, True)
    alone |= {"control": None, "control_note": "no uniform stack costs the same", "against_control": None}
    content = results(alone)
    assert outcomes(content) == ["open"] * 3
    assert judge(content).judgements[0].evidence == (
        "cascade-a2 has no control, because no uniform stack costs the same."
    )
    assert judge(content).sentences[0].endswith("; no uniform stack costs the same.")
    assert judge(content).headline.startswith("No taper is shown to be both")


def test_failures_are_said() -> None:
    failed = judge(results(arm("cascade-a2", None, control=CONTROL)))
    assert failed.headline == "No taper finished: there is nothing to compare prenorm with."
    assert "cascade-a2 did not finish: the loss was not finite" in failed.sentences[0]
    assert any("Runs failed: cascade-a2." in sentence for sentence in failed.sentences)
    content = results(taper(0.0, False))
    content["arms"][0] = arm("prenorm", None)
    content["arms"][1]["difference"] = None
    judged = judge(content)
    assert judged.headline == "No verdict: the baseline prenorm did not finish."
    # The taper did finish; there is only nothing to hold it against.
    assert "Minus prenorm: no seed finished on both sides" in judged.sentences[0]
    lost = taper(0.0, False)
    lost["against_control"] = None
    judged = judge(results(lost, control=uniform(None)))
    assert judged.judgements[0].outcome == "open"
    assert "taper(heads=2/3) did not finish: the loss was not finite" in judged.sentences


def test_the_page_of_every_outcome_renders() -> None:
    from leadline.report.page import render

    for arms in (
        [taper(0.003, False)],
        [arm("cascade-a2", None, control=CONTROL)],
        [taper(0.1, None), arm("cascade-f1", None)],
    ):
        content = results(*arms)
        judged = judge(content)
        content |= {
            "leadline": "0",
            "created": "2026-01-01T00:00:00Z",
            "headline": judged.headline,
            "sentences": list(judged.sentences),
            "judgements": [dataclasses.asdict(judgement) for judgement in judged.judgements],
            "data": {"name": "x", "hash": "h", "train_tokens": 9, "heldout_tokens": 3, "tokenizer": "bytes"},
            "machine": {"cpu": "c", "cores": 2, "memory_bytes": 9, "platform": "p", "python": "3", "torch": "2"},
            "repeat": {"command": "leadline study cascade", "install": "pip"},
        }
        page = render(make_page(content))
        assert judged.headline in page.replace("&#39;", "'")
        for judgement in judged.judgements:
            assert f">{judgement.outcome}</span>" in page


def test_the_same_width_elsewhere_is_held_against_the_claimed_taper() -> None:
    other = taper(-0.01, True, name="cascade-reverse")
    for found, said in (
        (difference(0.03, False, 0.04), "+0.030 bits per byte (95 % interval −0.010 to +0.070), undecided"),
        (difference(0.08, True), "+0.080 bits per byte (95 % interval +0.070 to +0.090), worse beyond noise"),
        (difference(0.03, None), "+0.030 bits per byte on one seed, which shows no interval"),
    ):
        other["placement"] = found
        sentences = judge(results(taper(-0.04, True), other)).sentences
        placed = [
            text for text in sentences if text.startswith("cascade-reverse minus cascade-a2, which costs the same")
        ]
        assert len(placed) == 1
        assert said in placed[0]


def test_rounds_that_are_too_few_decide_nothing() -> None:
    fast = taper(-0.04, True, latency=0.5, throughput=2.0)
    assert outcomes(results(fast)) == ["holds", "holds", "holds"]
    for name in ("latency_ratio", "throughput_ratio"):
        fast["generation"]["control"][name]["coverage"] = 0.94
    judged = judge(results(fast))
    assert [judgement.outcome for judgement in judged.judgements] == ["holds", "open", "open"]
    assert "from rounds that are too few for an interval of 95 %" in judged.judgements[1].evidence


def test_what_decides_nothing_has_no_colour() -> None:
    ratios = {"high": 0.92, "low": 0.88, "median": 0.9}

    def tone(coverage: float) -> str:
        cell = _change({**ratios, "coverage": coverage}, more_is_better=False)
        assert isinstance(cell, Cell)
        return cell.tone

    assert tone(0.96) == "better"
    assert tone(0.94) == "plain"
    for mean, expected in ((-0.02, "plain"), (-0.1, "better"), (0.1, "worse")):
        shown = _difference(difference(mean, True))
        assert isinstance(shown, Cell)
        assert shown.tone == expected


def test_designs_that_differ_in_the_taper_alone() -> None:
    a2 = resolve("cascade-a2")
    assert differ_in_taper(resolve("prenorm"), a2)
    assert differ_in_taper(resolve("mgr"), resolve("mgr + cascade-a2"))
    assert not any(differ_in_taper(resolve(name), a2) for name in ("mgr", "peri-ln", "cascade-a1"))
