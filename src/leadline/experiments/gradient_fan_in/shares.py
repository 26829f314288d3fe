"""ḡ by every definition and in two phases of training, and what goes with it.

definitions   `leadline.training.gradient_steps`: the paper's text does not say which norms are summed, so a
              verdict has to be the same for all of them
phases        the first tenth of the steps (the warm-up, where that is longer) and the rest: norms are largest at
              the start, so a sum over all steps is mostly about it
fits          R² of a line through ḡ over φ: the arm's own φ against the other shape, linear against quadratic. A
              rank correlation can't tell the two apart
directions    effective rank and diversity of the gradients against φ and ΔM, which the paper names as next
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leadline.errors import LeadlineError, UsageError
from leadline.experiments.gradient_fan_in.statistics import Numbers, Row, complete, correlation, covering, resampled
from leadline.probes import fan_in
from leadline.probes.correlation import coefficients
from leadline.training.gradient_steps import DEFINITIONS, StepNorms, load_norms, shares

EARLY = 0.1
"""The first phase's share of the steps, at least."""
Run = dict[str, Any]


def shares_of(folder: Path, gradient: dict[str, Any]) -> dict[str, Any]:
    """What a run's norms say of every block.

    Args:
        gradient: the content of the run's `gradient.json`.

    Returns:
        `definitions`, ḡ by name; `definitions_when_present`, the same for each step in which a block took part, or
        None where all did in all steps; `phases`, two of `from`, `to`, `weight` (its part of the sum over all
        steps) and `share`.

    Raises:
        LeadlineError: the run has no norms of every step, as those of an earlier version.
    """
    try:
        window = gradient["window"]
        norms = load_norms(folder).between(window["from"], window["until"] or math.inf)
        clip, warmup = gradient["clip"], gradient["warmup_steps"]
    except (UsageError, KeyError) as error:
        raise LeadlineError(
            f"{folder} was trained by an earlier version, which kept no norms of single steps; name another --out"
        ) from error
    plain, present = (
        {name: shares(norms, name, clip=clip, warmup=warmup, when_present=present) for name in DEFINITIONS}
        for present in (False, True)
    )
    return {
        "definitions": plain,
        "definitions_when_present": present if np.isnan(norms.block).any() else None,
        "phases": _phases(norms, warmup),
    }


def _phases(norms: StepNorms, warmup: int) -> list[dict[str, Any]]:
    if len(norms.step) == 0:
        return []
    first, last = int(norms.step[0]), int(norms.step[-1])
    edge = min(last, max(warmup, first - 1 + math.ceil(EARLY * (last - first + 1))))
    whole = float(np.nansum(norms.block, dtype=np.float64))
    found = []
    for begin, end in ((first, edge), (edge + 1, last)):
        part = norms.between(begin, end)
        weight = float(np.nansum(part.block, dtype=np.float64)) / whole if whole > 0 else 0.0
        found.append({"from": begin, "to": end, "weight": weight, "share": shares(part, "sum")})
    return found if edge < last else found[:1]


def by_definition(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """For each definition, its correlations with φ and ΔM, by the names that `results.json` has."""
    found: dict[str, dict[str, Any]] = {name: {} for name in DEFINITIONS}
    for name, pairs in found.items():
        share, present = [run["definitions"][name] for run in runs], _when_present(runs, name)
        for other, values in _against(runs).items():
            pairs[f"share_{other}"] = correlation(share, values)
            pairs[f"share_{other}_rest"] = correlation(share, values, drop_first=True)
            if present != share:
                pairs[f"share_{other}_when_present"] = correlation(present, values)
    return found


def _against(runs: Sequence[Run]) -> dict[str, list[Row]]:
    return {"delta": [run["delta"]["nats"] for run in runs], "fan_in": [run["fan_in"] for run in runs]}


def _when_present(runs: Sequence[Run], name: str) -> list[Row]:
    """ḡ for each step in which a block took part, where blocks were dropped."""
    return [(run["definitions_when_present"] or run["definitions"])[name] for run in runs]


def beside(runs: Sequence[Run]) -> dict[str, Any]:
    """Correlations with φ and ΔM of ḡ in the √parameters form, and of the gradients' effective rank and diversity."""
    rows = {"share_{}_per_parameter": "share_per_parameter", "rank_{}": "effective_rank", "cosine_{}": "cosine"}
    return {
        name.format(other): correlation([run[of] for run in runs], values)
        for name, of in rows.items()
        if all(run[of] for run in runs)
        for other, values in _against(runs).items()
    }


def by_phase(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """For each phase `from`, `to`, `weight` (mean over runs), and its correlations with φ and ΔM."""
    found = []
    for phases in zip(*(run["phases"] for run in runs), strict=True):
        rows, weight = [phase["share"] for phase in phases], float(np.mean([phase["weight"] for phase in phases]))
        pairs = {f"share_{name}": correlation(rows, values) for name, values in _against(runs).items()}
        found.append({"from": phases[0]["from"], "to": phases[0]["to"], "weight": weight, **pairs})
    return found


def shapes(run: Run) -> tuple[Row, Row]:
    """The arm's own φ, and the other shape: linear where there are exits, quadratic (an exit everywhere) where not."""
    blocks = len(run["fan_in"])
    return run["fan_in"], fan_in(blocks) if run["exit_weights"] else fan_in(blocks, exit_weights=[1.0] * blocks)


def fits(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """For each definition: R² of ḡ over the arm's own φ and over the other shape, and their difference.

    Where blocks were dropped, ḡ is that for each step in which a block took part.

    Returns:
        `own` and `other`, means over runs, and `difference` with `value`, `low`, `high` and `runs`; the interval is
        as a correlation's (`leadline.experiments.gradient_fan_in.statistics`).
    """
    found: dict[str, dict[str, Any]] = {}
    for name in DEFINITIONS:
        share = _when_present(runs, name)
        own, other = (_explained(share, [shapes(run)[shape] for run in runs]) for shape in (0, 1))
        if own is not None and other is not None:
            of_runs = own[0] - other[0]
            low, high = covering(own[1] - other[1], of_runs, bounded=False)
            difference = {"value": float(of_runs.mean()), "low": low, "high": high, "runs": of_runs.tolist()}
            found[name] = {"own": float(own[0].mean()), "other": float(other[0].mean()), "difference": difference}
    return found


def _explained(share: list[Row], shape: list[Row]) -> tuple[Any, Any] | None:
    """R² by run, and its mean over runs in every resample of blocks and seeds; None where it isn't defined."""
    rows = complete(share, shape)
    if not rows or len(rows[0][0]) < 3:
        return None
    of_runs = _squared(
        np.array([coefficients("pearson", np.array(x), np.array(y), np.ones((1, len(x))))[0] for x, y in rows])
    )
    return None if np.isnan(of_runs).any() else (of_runs, resampled(rows, "pearson", _squared))


def _squared(r: Numbers) -> Numbers:
    """R² of a line that rises with φ; one that falls explains nothing."""
    return np.where(r < 0, 0.0, r**2)
