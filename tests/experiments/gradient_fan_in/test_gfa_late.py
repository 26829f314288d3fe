"""G2: late importance, what φ predicts for it, and what the verdict makes of both; on data made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from leadline.experiments.gradient_fan_in.arms import KINDS as ARMS
from leadline.experiments.gradient_fan_in.statistics import PARTS, against, late_count, late_importance
from leadline.experiments.gradient_fan_in.verdict_late import judge_late, restored
from leadline.probes import fan_in, repeat_last

Profile = Callable[[np.ndarray], np.ndarray]


def proportional(phi: np.ndarray) -> np.ndarray:
    return phi / 100


def arm(
    name: str,
    profile: Profile,
    *,
    blocks: int,
    repeat: tuple[int, int],
    noise: float = 0.02,
    seeds: int = 4,
    first: float = 1.0,
) -> dict[str, Any]:
    """An arm of `results.json` whose ΔM is `profile` of its φ, with noise, and the first block's times `first`."""
    last, times = repeat
    repeats = ARMS[name].role == "repeat"
    order = repeat_last(blocks, last, times if repeats else 1)
    phi = np.array(fan_in(blocks, order=order))
    runs = []
    for seed in range(seeds):
        draw = np.random.default_rng(1000 * seed + len(name))
        delta = profile(phi) * (1 + noise * draw.normal(size=blocks))
        delta[0] *= first
        counts = np.array([order.count(block) for block in range(blocks)])
        places = [float(delta[block] / counts[block]) for block in order]
        runs.append(
            {
                "seed": seed,
                "delta": {"nats": delta.tolist()},
                "place_delta": {"nats": places} if repeats else None,
                "order": order,
                "fan_in": phi.tolist(),
            }
        )
    late = late_importance(runs, late_count(blocks), last)
    found = {"name": name, "role": ARMS[name].role, "control": ARMS[name].control, "error": None, "late": late}
    return {**found, "late_blocks": late_count(blocks), "runs": runs, "against": None}


def judged(one: dict[str, Any], control: dict[str, Any], last: int) -> Any:
    one["against"] = against(one, control)
    return judge_late(one, {control["name"]: control}, last)


SIZES = [(24, (4, 2)), (24, (8, 2)), (12, (4, 2)), (9, (3, 3)), (48, (16, 2))]


@pytest.mark.parametrize(("blocks", "repeat"), SIZES)
def test_importance_in_proportion_to_fan_in_is_restored(blocks: int, repeat: tuple[int, int]) -> None:
    """What theory predicts must be able to pass, whatever is repeated how often."""
    control = arm("vanilla", proportional, blocks=blocks, repeat=repeat)
    found = arm("repeated", proportional, blocks=blocks, repeat=repeat)
    verdict = judged(found, control, repeat[0])
    assert verdict.outcome == "holds", verdict.evidence
    for part in ("last", "last_rest"):
        assert found["against"][part]["mean"] == pytest.approx(found["against"]["predicted"][part], abs=0.05)
    assert "φ predicts" in verdict.evidence


def test_the_prediction_is_phis_own() -> None:
    control = arm("vanilla", proportional, blocks=24, repeat=(4, 2), noise=0)
    found = arm("repeated", proportional, blocks=24, repeat=(4, 2), noise=0)
    found["against"] = against(found, control)
    # Of 28 places: 28 … 9 once, and for the last four blocks 8 … 5 and 4 … 1 together.
    phi = [*range(28, 8, -1), 8 + 4, 7 + 3, 6 + 2, 5 + 1]
    rise = np.mean(phi[-4:]) / np.mean(phi) - 2.5 / 12.5
    assert found["against"]["predicted"]["last"] == pytest.approx(rise)
    assert rise == pytest.approx(0.33, abs=0.005)
    assert found["against"]["predicted"]["third"] == pytest.approx(0.216, abs=0.001)
    for part in PARTS:
        assert found["against"][part]["mean"] == pytest.approx(found["against"]["predicted"][part])


@pytest.mark.parametrize(("blocks", "repeat"), SIZES)
def test_importance_as_in_the_control_is_not_restored(blocks: int, repeat: tuple[int, int]) -> None:
    def plain(phi: np.ndarray) -> np.ndarray:
        return np.arange(len(phi), 0, -1) / 100

    control = arm("vanilla", plain, blocks=blocks, repeat=repeat)
    assert judged(arm("repeated", plain, blocks=blocks, repeat=repeat), control, repeat[0]).outcome == "does not hold"


def test_noise_is_open() -> None:
    control = arm("vanilla", proportional, blocks=24, repeat=(8, 2))
    loud = arm("repeated", proportional, blocks=24, repeat=(8, 2), noise=2.5, seeds=2)
    assert judged(loud, control, 8).outcome == "open"
    one = arm("repeated", proportional, blocks=24, repeat=(8, 2), seeds=1)
    found = judged(one, arm("vanilla", proportional, blocks=24, repeat=(8, 2), seeds=1), 8)
    assert found.outcome == "open"
    assert "on one seed, without an interval" in found.evidence


def rising(phi: np.ndarray) -> np.ndarray:
    """Late blocks matter more than others."""
    return np.linspace(0.1, 0.16, len(phi))


@pytest.mark.parametrize("first", [1.0, 23.0])
@pytest.mark.parametrize("name", ["repeated", "equalised-updates"])
def test_a_control_without_a_deficit_refutes_nothing(name: str, first: float) -> None:
    """Also where block 0 is worth as much as all others, so that the whole seems to lack something."""
    control = arm("vanilla", rising, blocks=24, repeat=(8, 2), first=first)
    found = judged(arm(name, rising, blocks=24, repeat=(8, 2), first=first), control, 8)
    assert found.outcome == "no deficit at this size"
    assert "nothing is to be restored at this size" in found.evidence
    assert "If importance followed φ that would be 0.38" in found.evidence
    assert found.shown().tone == "plain"


def test_a_control_that_could_be_either_is_open() -> None:
    control = arm("vanilla", lambda phi: np.ones(len(phi)) / 10, blocks=24, repeat=(8, 2))
    same = arm("equalised-updates", lambda phi: np.ones(len(phi)) / 10, blocks=24, repeat=(8, 2))
    assert judged(same, control, 8).outcome == "open"


def test_a_verdict_that_hangs_on_block_0_says_so() -> None:
    """Block 0 outweighs all, so that with it nothing came back, and without it everything."""
    control = arm("vanilla", proportional, blocks=24, repeat=(8, 2))
    even = arm("equalised-adamw", lambda phi: np.ones(len(phi)) / 10, blocks=24, repeat=(8, 2), first=45)
    found = judged(even, control, 8)
    assert found.outcome == "depends on block 0", found.evidence
    assert "With all blocks" in found.evidence
    assert "Without block 0" in found.evidence


@pytest.mark.parametrize(("blocks", "repeat"), SIZES[:3])
def test_a_block_that_only_counts_twice_leaves_it_open(blocks: int, repeat: tuple[int, int]) -> None:
    """Each place is worth what it was in the control, so that leaving out both costs twice as much."""
    last, times = repeat

    def counted(phi: np.ndarray) -> np.ndarray:
        plain = np.arange(blocks, 0, -1) / 100
        plain[-last:] *= times
        return plain

    control = arm("vanilla", proportional, blocks=blocks, repeat=repeat, noise=0.005)
    found = judged(arm("repeated", counted, blocks=blocks, repeat=repeat, noise=0.005), control, last)
    assert found.outcome == "open", found.evidence
    assert "no more than that of two passes" in found.evidence


def test_equalising_is_held_against_what_the_control_lacks() -> None:
    control = arm("vanilla", proportional, blocks=24, repeat=(8, 2))
    same = arm("equalised-updates", proportional, blocks=24, repeat=(8, 2))
    back = arm("equalised-updates", lambda phi: np.ones(len(phi)) / 10, blocks=24, repeat=(8, 2))
    assert judged(same, control, 8).outcome == "holds"
    assert judged(same, control, 8).claim.startswith("G2 for equalised-updates: equalising updates does not restore")
    assert judged(back, control, 8).outcome == "does not hold"


def test_readings() -> None:
    def over(low: float | None, high: float | None, mean: float = 0.0) -> dict[str, Any]:
        return {"mean": mean, "low": low, "high": high}

    control = over(0.1, 0.3, 0.2)
    assert restored(over(0.1, 0.8, 0.45), control, 0.8) == "restored"
    assert restored(over(0.004, 0.016, 0.01), control, 0.8) == "partly restored"
    assert restored(over(-0.1, 0.3), control, 0.8) == "not restored"
    assert restored(over(-0.1, 0.5), control, 0.8) == "undecided"
    assert restored(over(-0.5, -0.1), control, 0.8) == "not restored"
    assert restored(over(None, None), control, 0.8) == "undecided"
    assert restored(over(0.1, 0.5, 0.3), over(1.0, 1.3, 1.1), 0.2) == "no deficit"
    assert restored(over(0.1, 0.5, 0.3), over(0.9, 1.3, 1.1), 0.2) == "undecided"
    assert restored(over(0.1, 0.5, 0.3), control, 0.0) == "undecided"
    assert restored(None, control, 0.8) == "undecided"


def test_importance_that_costs_nothing_is_said() -> None:
    control = arm("vanilla", proportional, blocks=24, repeat=(8, 2))
    flawed = arm("repeated", lambda phi: -phi / 100, blocks=24, repeat=(8, 2))
    found = judged(flawed, control, 8)
    assert found.outcome == "open"
    assert "leaving blocks out costs nothing on average" in found.evidence


def test_the_picture_has_a_mark_where_theory_puts_the_bar() -> None:
    from leadline.experiments.gradient_fan_in.pictures import SPECS, _bars, _late_rows
    from leadline.report.pictures import Entry

    control = arm("vanilla", proportional, blocks=24, repeat=(8, 2))
    found = arm("repeated", proportional, blocks=24, repeat=(8, 2))
    found["against"] = against(found, control)
    entries = [Entry(index=index, name=name) for index, name in enumerate(("vanilla", "repeated"))]
    arms = list(zip(entries, (control, found), strict=True))
    picture = _bars(arms, _late_rows(arms, {"last_blocks": 8}, ""), SPECS("late"))
    assert picture is not None
    assert str(picture.body).count("bar-expected") == 2  # one bar, in the wide picture and in the narrow one
    assert "expected" in picture.numbers.rows[0][1][1]
