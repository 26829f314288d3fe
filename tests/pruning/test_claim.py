"""The verdict on claim C1 says what the numbers say, and "within noise" where that is all there is to say."""

from __future__ import annotations

import random
from typing import Any

import pytest

from leadline.pruning.claim import best, undecided, verdict

ORDER, OTHER, BACK = [4.0, 3.0, 2.0, 1.0], [3.0, 4.0, 1.0, 2.0], [1.0, 2.0, 3.0, 4.0]
STEADY, SHAKY = [ORDER] * 4, [ORDER, OTHER, BACK, OTHER]


def criterion(losses: list[float], scores: list[list[float]] = STEADY) -> dict[str, Any]:
    return {"points": [{"quality": [{"loss": loss} for loss in losses]}] * 2, "scores": scores[: len(losses)]}


def results(seeds_are: str = "models", left_out: dict[str, str] | None = None, **criteria: Any) -> dict[str, Any]:
    return {"criteria": criteria, "seeds_are": seeds_are, "left_out": left_out or {}}


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
    assert said["loss"]["taylor"]["mean"] == pytest.approx(-0.5, abs=0.05)
    assert said["stability"]["taylor"]["mean"] > 0.5
    assert (said["verdict"], said["tone"]) == ("holds", "better")
    assert "Loss: CFP is better than similarity (−0.469 nats, −0.521 to −0.417)" in said["evidence"]
    assert "Rank stability (Kendall τ-b): CFP is better than similarity (+" in said["evidence"]
    assert "after Holm's correction over the 6 comparisons" in said["evidence"]


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
        assert "Rank stability (Kendall τ-b): CFP is worse than similarity (−" in said["evidence"]


def test_better_in_part_is_open_and_says_in_which() -> None:
    rivals = all_rivals(losses(2.0, 1), FIRM) | {"magnitude": criterion(losses(2.5), FIRM)}
    said = verdict(results(cfp=criterion(losses(2.0), FIRM), **rivals))
    assert (said["verdict"], said["tone"]) == ("open", "plain")
    assert "Loss: CFP is better than magnitude (−0." in said["evidence"]
    assert "; within noise of similarity (" in said["evidence"]
    # In loss alone it is no more.
    said = verdict(results(cfp=criterion(losses(2.0), FIRM), **all_rivals(losses(2.5), FIRM)))
    assert said["verdict"] == "open"


def test_one_interval_of_several_is_judged_after_holm() -> None:
    near, far = criterion([2.01, 1.97, 2.02]), criterion([2.2273, 2.165, 2.1027])
    said = verdict(results(cfp=criterion([2.0] * 3), similarity=near, taylor=near, magnitude=far))
    assert "within noise of" in said["evidence"]
    assert "magnitude (−0.165 nats, −0.320 to −0.010)" in said["evidence"]
    assert said["verdict"] == "within noise"
    # p = 0.045 is the smallest of six.
    assert said["loss"]["magnitude"]["p_value"] == pytest.approx(6 * 0.0446, abs=2e-3)


def test_a_gap_that_never_changes_is_no_evidence() -> None:
    said = verdict(results(cfp=criterion([2.0] * 4), **all_rivals([2.001] * 4, STEADY)))
    assert said["verdict"] == "open"
    assert "too few seeds for an interval, or the same gap in each" in said["evidence"]


def test_it_does_not_hold() -> None:
    said = verdict(results(cfp=criterion(HIGH), **all_rivals(LOW, STEADY)))
    assert (said["verdict"], said["tone"]) == ("does not hold", "worse")
    assert "Loss: CFP is worse than similarity (+0.50" in said["evidence"]


def test_within_noise() -> None:
    said = verdict(results(cfp=criterion(LOW), **all_rivals(NOISY, STEADY)))
    assert (said["verdict"], said["tone"]) == ("within noise", "plain")
    assert "Loss: CFP is within noise of similarity" in said["evidence"]
    assert "Rank stability (Kendall τ-b): CFP is within noise of similarity (0.000" in said["evidence"]


def test_one_seed_leaves_it_open() -> None:
    said = verdict(results(cfp=criterion(LOW[:1]), **all_rivals(HIGH[:1], STEADY)))
    assert said["verdict"] == "open"
    assert "too few seeds for an interval" in said["evidence"]


def test_calibration_texts_of_one_model_leave_it_open() -> None:
    said = verdict(results("calibration texts", cfp=criterion(LOW), **all_rivals(HIGH, STEADY)))
    assert (said["verdict"], said["tone"]) == ("open", "plain")
    assert "needs models trained with several seeds" in said["evidence"]
    assert said["stability"] == {"similarity": None, "taylor": None, "magnitude": None}
    # The same cut every time differs by the same amount every time, which is no evidence over seeds.
    said = verdict(results("calibration texts", cfp=criterion([2.5] * 3), **all_rivals([2.4] * 3, STEADY)))
    assert (said["verdict"], said["tone"]) == ("open", "plain")


def test_cfp_is_missing() -> None:
    said = verdict(results(left_out={"cfp": "no record"}, **all_rivals(LOW, STEADY)))
    assert (said["verdict"], said["evidence"]) == ("open", "CFP was not measured: no record.")
    said = verdict(results(cfp=criterion(LOW)))
    assert (said["verdict"], said["evidence"]) == ("open", "Similarity, taylor and magnitude were not measured.")


def test_the_best() -> None:
    measured = {"a": criterion(HIGH), "b": criterion(LOW), "c": criterion(NOISY), "d": criterion(LOW)}
    assert best(measured) == "b"
    assert undecided(measured, "b") == ["c", "d"]
