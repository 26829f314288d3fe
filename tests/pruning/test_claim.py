"""The verdict on claim C1 says what the numbers say, and "within noise" where that is all there is to say."""

from __future__ import annotations

import random
from typing import Any

import pytest

from leadline.pruning.claim import best, level, verdict

ORDER, OTHER, BACK = [4.0, 3.0, 2.0, 1.0], [3.0, 4.0, 1.0, 2.0], [1.0, 2.0, 3.0, 4.0]
STEADY, SHAKY = [ORDER] * 4, [ORDER, OTHER, BACK, OTHER]


def criterion(losses: list[float], scores: list[list[float]] = STEADY) -> dict[str, Any]:
    return {"points": [{"quality": [{"bits_per_byte": loss} for loss in losses]}] * 2, "scores": scores[: len(losses)]}


def results(seeds_are: str = "models", left_out: dict[str, str] | None = None, **criteria: Any) -> dict[str, Any]:
    """Of one definition; more can be put into `definitions`."""
    definitions = {"sum": criteria["cfp"]} if "cfp" in criteria else {}
    return {
        "criteria": criteria,
        "seeds_are": seeds_are,
        "left_out": left_out or {},
        "definitions": definitions,
        "smallest_effect": 0.05,
    }


def by_sum(said: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = said["definitions"]["sum"]
    return found


def all_rivals(losses: list[float], scores: list[list[float]]) -> dict[str, Any]:
    return {name: criterion(losses, scores) for name in ("similarity", "taylor", "magnitude")}


LOW, HIGH = [2.0, 2.1, 2.0, 2.1], [2.5, 2.61, 2.5, 2.6]
NOISY = [2.4, 1.7, 1.8, 2.3]


SEEDS = 10
FIRM, LOOSE = [ORDER] * SEEDS, [random.Random(seed).sample(ORDER, 4) for seed in range(SEEDS)]


def losses(mean: float, salt: int = 0) -> list[float]:
    generator = random.Random(f"{mean} {salt}")
    return [mean + generator.gauss(0, 0.05) for _ in range(SEEDS)]


def test_it_holds() -> None:
    said = verdict(results(cfp=criterion(losses(2.0), FIRM), **all_rivals(losses(2.5), LOOSE)))
    assert by_sum(said)["loss"]["taylor"]["mean"] == pytest.approx(-0.5, abs=0.05)
    assert by_sum(said)["stability"]["taylor"]["mean"] > 0.5
    assert (said["verdict"], said["tone"]) == ("holds", "better")
    opening = "By sum, holds: CFP is in loss (bits per byte) better than similarity (−0.469, −0.521 to −0.417)"
    assert said["evidence"].startswith(opening)
    assert "in rank stability (Kendall τ-b) better than similarity (+" in said["evidence"]
    assert "after Holm's correction over 6 comparisons" in said["evidence"]


def test_a_rival_that_was_not_measured_leaves_it_open() -> None:
    rivals = all_rivals(losses(2.5), LOOSE)
    del rivals["taylor"], rivals["similarity"]
    said = verdict(results(cfp=criterion(losses(2.0), FIRM), **rivals))
    assert (said["verdict"], said["tone"]) == ("open", "plain")
    assert said["evidence"].endswith("Similarity and taylor were not measured.")
    # One that is better refutes the claim, whatever the others are.
    said = verdict(results(cfp=criterion(losses(3.0), FIRM), **rivals))
    assert (said["verdict"], said["tone"]) == ("does not hold", "worse")


def test_worse_stability_refutes_it() -> None:
    for mean in (2.0, 2.5):
        said = verdict(results(cfp=criterion(losses(mean, 1), LOOSE), **all_rivals(losses(2.5), FIRM)))
        assert (said["verdict"], said["tone"]) == ("does not hold", "worse")
        assert "in rank stability (Kendall τ-b) worse than similarity (−" in said["evidence"]


def test_better_in_part_is_open_and_says_in_which() -> None:
    rivals = all_rivals([2.0 + 0.1 * (-1) ** seed for seed in range(SEEDS)], FIRM) | {
        "magnitude": criterion(losses(2.5), FIRM)
    }
    said = verdict(results(cfp=criterion(losses(2.0), FIRM), **rivals))
    assert (said["verdict"], said["tone"]) == ("open", "plain")
    assert "in loss (bits per byte) better than magnitude (−0." in said["evidence"]
    assert ", undecided against similarity (" in said["evidence"]
    # In loss alone it is no more.
    said = verdict(results(cfp=criterion(losses(2.0), FIRM), **all_rivals(losses(2.5), FIRM)))
    assert said["verdict"] == "open"


def test_one_interval_of_several_is_judged_after_holm() -> None:
    near, far = criterion([2.01, 1.97, 2.02]), criterion([2.2273, 2.165, 2.1027])
    said = verdict(results(cfp=criterion([2.0] * 3), similarity=near, taylor=near, magnitude=far))
    assert "in loss (bits per byte) undecided against similarity" in said["evidence"]
    assert "and magnitude (−0.165, −0.320 to −0.010)" in said["evidence"]
    assert said["verdict"] == "undecided"
    # p = 0.045 is the smallest of six.
    assert by_sum(said)["loss"]["magnitude"]["p_value"] == pytest.approx(6 * 0.0446, abs=2e-3)


def test_a_gap_that_never_changes_is_no_evidence() -> None:
    said = verdict(results(cfp=criterion([2.0] * 4), **all_rivals([2.001] * 4, STEADY)))
    assert said["verdict"] == "open"
    assert "too few seeds for an interval, or the same gap in each" in said["evidence"]


def test_it_does_not_hold() -> None:
    said = verdict(results(cfp=criterion(HIGH), **all_rivals(LOW, STEADY)))
    assert (said["verdict"], said["tone"]) == ("does not hold", "worse")
    assert "in loss (bits per byte) worse than similarity (+0.50" in said["evidence"]


def test_undecided() -> None:
    said = verdict(results(cfp=criterion(LOW), **all_rivals(NOISY, STEADY)))
    assert (said["verdict"], said["tone"]) == ("undecided", "plain")
    assert "in loss (bits per byte) undecided against similarity" in said["evidence"]
    assert "in rank stability (Kendall τ-b) undecided against similarity (0.000" in said["evidence"]


def test_a_difference_that_does_not_matter_refutes_nothing_and_holds_nothing() -> None:
    for apart in (0.02, -0.02):  # beyond noise, either way
        cfp = criterion([value + apart for value in losses(2.0, 1)], FIRM)
        said = verdict(
            results(cfp=cfp, **all_rivals([v + 0.001 * (-1) ** i for i, v in enumerate(losses(2.0, 1))], LOOSE))
        )
        assert by_sum(said)["loss"]["taylor"]["p_value"] < 0.01
        assert said["verdict"] == "no difference that matters"
        assert "in loss (bits per byte) not different by what matters from similarity (" in said["evidence"]
        assert by_sum(said)["effects"]["taylor"] == "no difference that matters"


def test_a_verdict_that_depends_on_the_definition_says_so() -> None:
    content = results(cfp=criterion(HIGH), **all_rivals(LOW, STEADY))
    content["definitions"]["clipped"] = criterion(NOISY)
    said = verdict(content)
    assert (said["verdict"], said["tone"]) == ("depends on the definition", "plain")
    assert "By sum, does not hold: CFP is in loss (bits per byte) worse than similarity" in said["evidence"]
    assert "By clipped, undecided: CFP is in loss (bits per byte) undecided against similarity" in said["evidence"]
    content["definitions"]["clipped"] = criterion(HIGH)
    assert verdict(content)["verdict"] == "does not hold"
    # At each ratio too: both are alike here.
    ratios = said["definitions"]["clipped"]["ratios"]["taylor"]
    assert [gap["mean"] for gap in ratios] == [pytest.approx(sum(NOISY) / 4 - sum(LOW) / 4)] * 2


def test_one_seed_leaves_it_open() -> None:
    said = verdict(results(cfp=criterion(LOW[:1]), **all_rivals(HIGH[:1], STEADY)))
    assert said["verdict"] == "open"
    assert "too few seeds for an interval" in said["evidence"]


def test_calibration_texts_of_one_model_leave_it_open() -> None:
    said = verdict(results("calibration texts", cfp=criterion(LOW), **all_rivals(HIGH, STEADY)))
    assert (said["verdict"], said["tone"]) == ("open", "plain")
    assert "needs models trained with several seeds" in said["evidence"]
    assert by_sum(said)["stability"] == {"similarity": None, "taylor": None, "magnitude": None}
    # The same cut every time differs by the same amount every time, which is no evidence over seeds.
    said = verdict(results("calibration texts", cfp=criterion([2.5] * 3), **all_rivals([2.4] * 3, STEADY)))
    assert (said["verdict"], said["tone"]) == ("open", "plain")


def test_cfp_is_missing() -> None:
    said = verdict(results(left_out={"cfp": "no record"}, **all_rivals(LOW, STEADY)))
    assert (said["verdict"], said["evidence"]) == ("open", "CFP was not measured: no record.")
    said = verdict(results(cfp=criterion(LOW)))
    assert said["verdict"] == "open"
    assert said["evidence"].endswith("Similarity, taylor and magnitude were not measured.")


def test_the_best() -> None:
    measured = {"a": criterion(HIGH), "b": criterion(LOW), "c": criterion(NOISY), "d": criterion(LOW)}
    assert best(measured) == "b"
    assert level(measured, "b", 0.05) == ["c", "d"]
    near = {"b": criterion(LOW), "e": criterion([value + 0.02 + 0.001 * i for i, value in enumerate(LOW)])}
    assert (level(near, "b", 0.0), level(near, "b", 0.05)) == ([], ["e"])
