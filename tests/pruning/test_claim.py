"""The verdict on claim C1 says what the numbers say, and "within noise" where that is all there is to say."""

from __future__ import annotations

from typing import Any

import pytest

from leadline.pruning.claim import best, verdict

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


def test_it_holds() -> None:
    said = verdict(results(cfp=criterion(LOW), **all_rivals(HIGH, SHAKY)))
    assert said["loss"]["taylor"]["mean"] == pytest.approx(-0.5025)
    assert said["stability"]["taylor"]["mean"] > 0
    assert "Loss: CFP is better than similarity (−0.503 nats, −0.511 to −0.495)" in said["evidence"] or (
        "Loss: CFP is better than similarity (−0.502 nats" in said["evidence"]
    )
    # Four seeds of such rankings are too few to be sure of the stability.
    assert (said["verdict"], said["tone"]) in (("holds", "better"), ("holds in perplexity", "better"))


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
    assert verdict(results(cfp=criterion(LOW)))["evidence"] == "no rival was measured."


def test_the_best() -> None:
    assert best({"a": criterion(HIGH), "b": criterion(LOW)}) == "b"
