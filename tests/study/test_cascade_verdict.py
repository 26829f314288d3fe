"""The verdict on claim C2, from made-up results."""

from __future__ import annotations

from typing import Any

import pytest

from leadline.designs import resolve
from leadline.drawing.page import Cell, Entry
from leadline.study.cascade import differ_in_taper
from leadline.study.cascade_report import _change, make_page
from leadline.study.cascade_verdict import judge


def ratio(median: float, spread: float = 0.01) -> dict[str, Any]:
    return {"median": median, "low": median - spread, "high": median + spread, "coverage": 0.96, "values": 20}


def arm(name: str, bits: float | None, **changes: Any) -> dict[str, Any]:
    over = None if bits is None else {"mean": bits, "low": bits - 0.01, "high": bits + 0.01, "values": [bits] * 3}
    return {
        "name": name,
        "slug": name,
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
        "placement": None,
        "generation": None,
        **changes,
    }


def taper(
    mean: float, beyond: bool | None, latency: float = 0.9, throughput: float = 1.1, name: str = "cascade-a2"
) -> dict[str, Any]:
    speed = {
        "milliseconds_per_token": ratio(2.0),
        "tokens_per_second": ratio(500.0),
        "latency_ratio": ratio(latency),
        "throughput_ratio": ratio(throughput),
        "latency_rounds": [latency] * 5,
    }
    low, high = (None, None) if beyond is None else (mean - 0.01, mean + 0.01)
    difference = {"mean": mean, "low": low, "high": high, "beyond_noise": beyond, "p_value": None, "pairs": [mean]}
    return arm(name, 2.0 + mean, difference=difference, generation=speed, forward_flops=24)


def results(*arms: dict[str, Any], seeds: int = 3) -> dict[str, Any]:
    return {
        "arms": [arm("prenorm", 2.0), *arms],
        "baseline": "prenorm",
        "tests_claim": True,
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
    assert found.headline.startswith("C2 holds here")
    quality, latency, throughput = (judgement.evidence for judgement in found.judgements)
    assert "+0.003 bits per byte" in quality
    assert "within noise (95 % interval −0.007 to +0.013)" in quality
    assert "−8.6 % (−9.6 % to −7.6 %); the paper's figure lies in this interval" in latency
    assert "+20.0 %" in throughput
    assert "that is more than the paper's +9.4 %" in throughput
    assert "cascade-a2 (−20.0 % FLOPs a token)" in found.sentences[0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"mean": 0.1, "beyond": True}, ["does not hold", "holds", "holds"]),
        ({"mean": -0.1, "beyond": True}, ["holds", "holds", "holds"]),
        ({"mean": 0.1, "beyond": None}, ["open", "holds", "holds"]),
        ({"mean": 0.045, "beyond": False}, ["open", "holds", "holds"]),
        ({"mean": 0.0, "beyond": False, "latency": 1.005}, ["holds", "does not hold", "holds"]),
        (
            {"mean": 0.0, "beyond": False, "latency": 1.2, "throughput": 0.8},
            ["holds", "does not hold", "does not hold"],
        ),
    ],
)
def test_each_part_is_judged_by_itself(changes: dict[str, Any], expected: list[str]) -> None:
    assert outcomes(results(taper(**changes))) == expected


def test_rounds_too_noisy_to_tell_leave_a_claim_open() -> None:
    noisy = taper(0.0, False)
    noisy["generation"]["latency_ratio"] = ratio(0.95, 0.2)
    found = judge(results(noisy)).judgements[1]
    assert found.outcome == "open"
    assert "within noise; both 0 % and the paper's figure lie in this interval" in found.evidence
    noisy = taper(0.0, None)
    noisy["generation"] = None
    assert judge(results(noisy)).headline == "C2 for cascade-a2 is open: these runs are too few or too noisy to tell."


def test_within_noise_is_said_of_speeds_too() -> None:
    found = judge(results(taper(0.0, False, 1.005, 0.995)))
    assert "Latency at batch 1 +0.5 % (−0.5 % to +1.5 %), within noise" in found.judgements[1].evidence
    assert "less than the paper's −8.6 %" in found.judgements[1].evidence
    assert found.headline == "C2 for cascade-a2: perplexity holds, latency does not, throughput does not"


def test_without_the_claimed_design_the_claim_is_open() -> None:
    content = results(taper(0.0, False, name="cascade-f1"))
    assert outcomes(content) == ["open"] * 3
    assert judge(content).headline == "As good as prenorm at equal training FLOPs and faster in generation: cascade-f1."


def test_failures_are_said() -> None:
    failed = judge(results(arm("cascade-a2", None)))
    assert failed.headline == "Only prenorm finished: there is nothing to compare it with."
    assert "cascade-a2 did not finish: the loss was not finite" in failed.sentences[0]
    assert any("Runs failed: cascade-a2." in sentence for sentence in failed.sentences)
    content = results(taper(0.0, False))
    content["arms"][0] = arm("prenorm", None)
    content["arms"][1]["difference"] = None
    judged = judge(content)
    assert judged.headline == "No verdict: the baseline prenorm did not finish."
    # The taper did finish; there is only nothing to hold it against.
    assert "cascade-a2 (−20.0 % FLOPs a token): no seed finished on both sides" in judged.sentences[0]


def test_the_page_of_every_outcome_renders() -> None:
    from leadline.drawing.page import render
    from leadline.study.results import judgements_as_data

    for arms in ([taper(0.003, False)], [arm("cascade-a2", None)], [taper(0.1, None), arm("cascade-f1", None)]):
        content = results(*arms)
        judged = judge(content)
        content |= {
            "leadline": "0",
            "created": "2026-01-01T00:00:00Z",
            "headline": judged.headline,
            "sentences": list(judged.sentences),
            "judgements": judgements_as_data(list(judged.judgements)),
            "data": {"name": "x", "hash": "h", "train_tokens": 9, "heldout_tokens": 3, "tokenizer": "bytes"},
            "machine": {"cpu": "c", "cores": 2, "memory_bytes": 9, "platform": "p", "python": "3", "torch": "2"},
            "repeat": {"command": "leadline study cascade", "install": "pip"},
        }
        page = render(make_page(content))
        assert judged.headline in page.replace("&#39;", "'")
        for judgement in judged.judgements:
            assert f">{judgement.outcome}</span>" in page


@pytest.mark.parametrize(
    ("mean", "beyond", "said"),
    [
        (0.03, False, "+0.030 bits per byte (+0.020 to +0.040), within noise."),
        (0.03, True, "+0.030 bits per byte (+0.020 to +0.040), worse beyond noise."),
        (-0.03, True, "−0.030 bits per byte (−0.040 to −0.020), better beyond noise."),
        (0.03, None, "+0.030 bits per byte on one seed."),
    ],
)
def test_the_same_width_elsewhere_is_held_against_the_claimed_taper(
    mean: float, beyond: bool | None, said: str
) -> None:
    other = taper(-0.01, True, name="cascade-reverse")
    other["placement"] = {"mean": mean, "low": mean - 0.01, "high": mean + 0.01, "beyond_noise": beyond}
    sentences = judge(results(taper(-0.04, True), other)).sentences
    assert f"cascade-reverse minus cascade-a2, which costs the same: {said}" in sentences
    assert sum("minus" in sentence for sentence in sentences) == 1


def test_rounds_that_are_too_few_decide_nothing() -> None:
    fast = taper(-0.04, True, latency=0.5, throughput=2.0)
    assert outcomes(results(fast)) == ["holds", "holds", "holds"]
    for name in ("latency_ratio", "throughput_ratio"):
        fast["generation"][name]["coverage"] = 0.94
    judged = judge(results(fast))
    assert [judgement.outcome for judgement in judged.judgements] == ["holds", "open", "open"]
    assert "from rounds that are too few for an interval of 95 %" in judged.judgements[1].evidence


def test_what_decides_nothing_has_no_colour() -> None:
    ratios = {"high": 0.92, "low": 0.88, "median": 0.9}
    entry = Entry(index=1, name="cascade-a2")

    def tone(coverage: float) -> str:
        cell = _change({**ratios, "coverage": coverage}, entry, more_is_better=False)
        assert isinstance(cell, Cell)
        return cell.tone

    assert tone(0.96) == "better"
    assert tone(0.94) == "plain"


def test_the_claim_is_not_tested_where_more_than_the_taper_differs() -> None:
    judged = judge({**results(taper(-0.04, True, latency=0.5, throughput=2.0)), "tests_claim": False})
    assert [judgement.outcome for judgement in judged.judgements] == ["open"] * 3
    assert "differ in more than the taper" in judged.judgements[0].evidence
    assert "C2" not in judged.headline
    a2 = resolve("cascade-a2")
    assert differ_in_taper(resolve("prenorm"), a2)
    assert differ_in_taper(resolve("mgr"), resolve("mgr + cascade-a2"))
    assert not any(differ_in_taper(resolve(name), a2) for name in ("mgr", "peri-ln", "cascade-a1"))
