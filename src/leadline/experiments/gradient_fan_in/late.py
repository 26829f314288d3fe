"""How much the late blocks are worth, in four readings, and what φ predicts for each.

    third   the last third of the blocks: what the claim about equalised gradients is of
    last    the last K blocks, which the repeated arm repeats: what the claim about repeating is of
    single  the last K with one place of a repeated block left out at a time, the mean over its places

each as the mean ΔM of these blocks over the mean of all (`statistics.late`), and as `…_rest`
without the first block, which often outweighs all others. What φ predicts is the same ratio with ΔM in proportion to
φ, and a rise is that of the arm's φ over the control's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leadline.experiments.gradient_fan_in.statistics import Row, late, over_seeds, paired
from leadline.experiments.runs import mean_of

Run = Mapping[str, Any]
READINGS = ("third", "last", "single")
PARTS = tuple(f"{reading}{rest}" for reading in READINGS for rest in ("", "_rest"))


def late_importance(runs: Sequence[Run | None], third: int, last: int) -> dict[str, Any]:
    """By part `mean`, `low`, `high`, `by_seed` of the runs; beside them `predicted`, by part what φ says."""
    done = [run for run in runs if run is not None]
    found: dict[str, Any] = {
        part: over_seeds({run["seed"]: _ratio(part, run, _importance, third, last) for run in done}) for part in PARTS
    }
    predicted = {part: mean_of([_ratio(part, run, _fan_in, third, last) for run in done]) for part in PARTS}
    return {**found, "predicted": predicted}


def against(arm: Mapping[str, Any], control: Mapping[str, Any]) -> dict[str, Any]:
    """By part the arm's late importance minus the control's, by pairs of a seed, and the rise that φ predicts."""
    sides = [side["late"] or {} for side in (arm, control)]
    found: dict[str, Any] = {}
    for part in PARTS:
        found[part] = paired(*(_seeds(side.get(part)) for side in sides))
    expected = [side.get("predicted") or {} for side in sides]
    found["predicted"] = {
        part: expected[0][part] - expected[1][part]
        if expected[0].get(part) is not None and expected[1].get(part) is not None
        else None
        for part in PARTS
    }
    return found


def _seeds(found: Mapping[str, Any] | None) -> dict[int, float | None]:
    return {int(seed): value for seed, value in found["by_seed"].items()} if found else {}


def _ratio(part: str, run: Run, values: Callable[[Run, bool], Row], third: int, last: int) -> float | None:
    reading, _, rest = part.partition("_")
    row = values(run, reading == "single")
    return late(row, third if reading == "third" else last, drop_first=bool(rest))


def _importance(run: Run, single: bool) -> Row:
    """ΔM of every block; with one of its places left out, the mean over its places, where there are several."""
    if not single or run["place_delta"] is None:
        nats: Row = run["delta"]["nats"]
        return nats
    order, values = run["order"], run["place_delta"]["nats"]
    return [
        mean_of([value for place, value in zip(order, values, strict=True) if place == block])
        for block in range(len(run["fan_in"]))
    ]


def _fan_in(run: Run, single: bool) -> Row:
    """φ of every block, or its mean over the block's places."""
    phi: list[float] = run["fan_in"]
    return [value / run["order"].count(block) for block, value in enumerate(phi)] if single else phi
