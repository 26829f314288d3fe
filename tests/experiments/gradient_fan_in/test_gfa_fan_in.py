"""G1: ḡ by definition and phase, the shape of fan-in, and what the verdict makes of them; on data made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leadline.errors import LeadlineError
from leadline.experiments.gradient_fan_in.shares import beside, by_definition, by_phase, fits, shares_of
from leadline.experiments.gradient_fan_in.verdict import judge, judge_fan_in
from leadline.probes import fan_in
from leadline.training import StepNorms
from leadline.training.gradient_steps import DEFINITIONS

BLOCKS, STEPS, WARMUP = 12, 100, 5
PHI = np.array(fan_in(BLOCKS), dtype=np.float64)
DELTA = np.random.default_rng(0).permutation(BLOCKS) + 1.0
"""Importance that has nothing to do with fan-in."""
GRADIENT = {"window": {"from": 1, "until": None}, "clip": 1.0, "warmup_steps": WARMUP}


def noisy(row: np.ndarray, seed: int) -> np.ndarray:
    return row * (1 + 0.02 * np.random.default_rng(seed).normal(size=row.shape))


def run(folder: Path, seed: int, early: np.ndarray, late: np.ndarray, **more: Any) -> dict[str, Any]:
    """A run whose norms follow `early` in the first tenth of the steps and `late` after it; early ones are large."""
    rows = np.stack([noisy(20 * early if step < 10 else late, 1000 * seed + step) for step in range(STEPS)])
    total = np.sqrt((rows**2).sum(axis=1))
    norms = StepNorms(np.arange(1, STEPS + 1), *(part.astype(np.float32) for part in (total, rows, rows)))
    place = folder / str(seed)
    place.mkdir()
    norms.save(place)
    return {
        "share_per_parameter": (rows.sum(axis=0) / rows.sum()).tolist(),
        "effective_rank": noisy(DELTA, seed).tolist(),
        "cosine": None,
        "fan_in": PHI.tolist(),
        "exit_weights": None,
        "delta": {"nats": noisy(DELTA, seed + 77).tolist()},
        **shares_of(place, GRADIENT),
        **more,
    }


def arm(runs: list[dict[str, Any]]) -> dict[str, Any]:
    definitions = by_definition(runs)
    return {
        "name": "vanilla",
        "role": "plain",
        "control": "",
        "status": "ok",
        "error": None,
        "blocks": BLOCKS,
        "runs": runs,
        "correlations": {**definitions["sum"], **beside(runs)},
        "definitions": definitions,
        "phases": by_phase(runs),
        "fits": fits(runs),
        "first_share": 0.3,
        "late": None,
        "against": None,
    }


def three(folder: Path, early: np.ndarray, late: np.ndarray, **more: Any) -> dict[str, Any]:
    return arm([run(folder, seed, early, late, **more) for seed in range(3)])


def test_a_verdict_that_hangs_on_the_definition_says_so(tmp_path: Path) -> None:
    both = three(tmp_path, PHI, PHI + 1.5 * DELTA)
    # Early steps are twenty times as large: the sum follows φ alone, steps that count alike follow ΔM too.
    words = {name: pairs["share_delta"]["spearman"]["value"] for name, pairs in both["definitions"].items()}
    assert words["mean-of-shares"] > words["sum"] + 0.2
    found = judge_fan_in(both)[0]
    assert found.outcome == "depends on the definition"
    assert "By sum it is open" in found.evidence
    assert "By mean-of-shares it holds" in found.evidence
    assert found.shown().tone == "plain"
    headline = judge([both], 3, 4).headline
    assert headline == "G1 depends on the definition for vanilla"


def test_a_verdict_that_is_the_same_for_all_definitions_stands(tmp_path: Path) -> None:
    delta = {"delta": {"nats": (PHI**1.5).tolist()}}
    assert judge_fan_in(three(tmp_path, PHI, PHI, **delta))[0].outcome == "holds"


def test_phases_are_told_apart(tmp_path: Path) -> None:
    found = three(tmp_path, PHI, DELTA)
    early, late = found["phases"]
    assert (early["from"], early["to"], late["from"], late["to"]) == (1, 10, 11, 100)
    assert early["weight"] == pytest.approx(200 / 290, rel=0.02)
    assert early["weight"] + late["weight"] == pytest.approx(1)
    assert early["share_fan_in"]["spearman"]["value"] > 0.95 > early["share_delta"]["spearman"]["value"] + 0.3
    assert late["share_delta"]["spearman"]["value"] > 0.95 > late["share_fan_in"]["spearman"]["value"] + 0.3
    assert "Steps 1 to 10 hold 69 % of the sum" in judge_fan_in(found)[0].evidence


def exits(folder: Path, share: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> dict[str, Any]:
    weights = [1.0] * BLOCKS
    quadratic = np.array(fan_in(BLOCKS, exit_weights=weights), dtype=np.float64)
    row = share(PHI / PHI.sum(), quadratic / quadratic.sum())
    return three(folder, row, row, fan_in=quadratic.tolist(), exit_weights=weights)


@pytest.mark.parametrize(
    ("share", "outcome"),
    [
        (lambda linear, quadratic: quadratic, "holds"),
        (lambda linear, quadratic: linear, "does not hold"),
        (lambda linear, quadratic: np.random.default_rng(4).permutation(quadratic), "open"),
    ],
)
def test_linear_and_quadratic_fan_in_are_told_apart(tmp_path: Path, share: Any, outcome: str) -> None:
    found = judge_fan_in(exits(tmp_path, share))[1]
    assert found.claim == "G1 for vanilla: the gradient share follows exit-weighted fan-in better than linear"
    assert found.outcome == outcome, found.evidence


def test_a_stack_without_exits_is_held_against_quadratic_fan_in(tmp_path: Path) -> None:
    found = three(tmp_path, PHI, PHI)
    assert found["fits"]["sum"]["own"] > 0.99
    assert judge_fan_in(found)[1].claim.endswith("follows linear fan-in better than quadratic")
    assert judge_fan_in(found)[1].outcome == "holds"


def test_a_share_that_rises_with_depth_is_explained_by_no_fan_in(tmp_path: Path) -> None:
    """R² alone would praise a line that falls where φ rises."""
    found = three(tmp_path, PHI[::-1], PHI[::-1])
    for fit in found["fits"].values():
        assert (fit["own"], fit["other"]) == (0.0, 0.0)
    assert judge_fan_in(found)[1].outcome == "open"


def test_two_seeds_decide_no_shape(tmp_path: Path) -> None:
    two = arm([run(tmp_path, seed, PHI, PHI) for seed in range(2)])
    assert judge_fan_in(two)[1].outcome == "open"


def test_rank_and_diversity_are_held_against_fan_in_and_importance(tmp_path: Path) -> None:
    found = three(tmp_path, PHI, PHI)
    assert found["correlations"]["rank_delta"]["spearman"]["value"] > 0.9
    assert "rank_fan_in" in found["correlations"]
    assert "cosine_delta" not in found["correlations"]
    sentences = judge([found], 3, 4).sentences
    assert any(
        sentence.startswith("In vanilla the Spearman of the gradient's effective rank is") for sentence in sentences
    )


def test_where_blocks_were_dropped_each_definition_also_counts_the_steps_they_were_in(tmp_path: Path) -> None:
    rows = np.tile(np.arange(BLOCKS, 0, -1, dtype=np.float32), (STEPS, 1))
    rows[::2, -1] = np.nan
    StepNorms(np.arange(1, STEPS + 1), np.ones(STEPS, np.float32), rows, rows).save(tmp_path)
    found = shares_of(tmp_path, GRADIENT)
    assert set(found["definitions_when_present"]) == set(DEFINITIONS)
    last = found["definitions"]["sum"][-1] / found["definitions"]["sum"][0]
    present = found["definitions_when_present"]["sum"][-1] / found["definitions_when_present"]["sum"][0]
    assert present == pytest.approx(2 * last)


def test_a_run_of_an_earlier_version_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LeadlineError, match=r"earlier version.*name another --out"):
        shares_of(tmp_path, GRADIENT)
