"""`leadline study cascade`: tapered stacks against uniform ones at equal training FLOPs (claim C2).

All arms are trained to the same FLOPs; then their trained models generate side by side. A taper is judged against its
uniform control, which costs the same a token, and compared with the baseline too. Source of the claim: CascadeFormer,
arXiv 2606.26538. The protocol is ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadline.designs import Design, ShapeConfig, preset_named, resolve
from leadline.designs.taper import UNTAPERED
from leadline.experiments import results as shared
from leadline.experiments.cascade.page import make_page
from leadline.experiments.cascade.plan import ArmPlan, CascadePlan
from leadline.experiments.cascade.speed import SpeedOptions, measure_speed, speed_of
from leadline.experiments.cascade.verdict import CLAIMED, judge
from leadline.experiments.compare.results import finite
from leadline.experiments.engine import (
    Arm,
    against,
    difference_as_data,
    gather,
    read_runs,
    run_config,
    run_folder,
    train_all,
)
from leadline.experiments.folder import at_work
from leadline.experiments.runs import RunResult
from leadline.experiments.statistics import SMALLEST_EFFECT, Difference

if TYPE_CHECKING:
    from leadline.data import DataSet


def run_study(
    plan: CascadePlan,
    out: Path,
    data: DataSet,
    *,
    speed: SpeedOptions,
    jobs: int | None = None,
    threads: int | None = None,
    command: str = "leadline study cascade",
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Trains what is missing, measures speeds, and writes `results.json` and `report.html`.

    Returns:
        The content of `results.json`; an arm whose runs failed is marked in it.

    Raises:
        UsageError: the folder holds something else.
        LeadlineError: the folder cannot be written.
        KeyboardInterrupt: interrupted; what ran has been saved, and the same call goes on.
    """
    with at_work(out, "cascade", plan):
        arms = [_runs(plan, arm) for arm in plan.arms]
        train_all(arms, plan.seeds, out, jobs=jobs, threads=threads)
        trained = {arm.name: _first_trained(arm, plan.seeds, out) for arm in arms}
        speeds = measure_speed(
            {name: folder for name, folder in trained.items() if folder is not None},
            data,
            dataclasses.replace(speed, context=plan.context, device=plan.device, backend=plan.backend),
            out / "speed.json",
            say=say,
        )
        found = collect(plan, arms, out, data, speeds, command)
        shared.write(found, make_page(found), out)
    return found


def collect(
    plan: CascadePlan, arms: Sequence[Arm], out: Path, data: DataSet, speeds: dict[str, Any], command: str
) -> dict[str, Any]:
    """The content of `results.json`."""
    baseline = plan.baseline.name
    runs = read_runs(arms, plan.seeds, out)
    measured, apart = gather(arms, plan.seeds, out), against(baseline, runs, plan.seeds)
    beside = against_controls(plan, runs)
    alike = equally_wide(plan.arms)
    placed = against(CLAIMED, {name: runs[name] for name in alike}, plan.seeds) if CLAIMED in alike else {}
    shape = dataclasses.replace(preset_named(plan.preset).shape, **_changes(plan.baseline.shape, plan.context))
    found = {
        **shared.opening("cascade", command, data),
        "baseline": baseline,
        "smallest_effect": SMALLEST_EFFECT,
        "seeds": list(plan.seeds),
        "preset": {"name": plan.preset, **dataclasses.asdict(shape)},
        "budget": {
            "by": plan.by,
            "flops": plan.baseline.flops_per_token * plan.baseline.tokens,
            "batch_tokens": plan.batch_tokens,
            "context": plan.context,
        },
        "speed": {key: value for key, value in speeds.items() if key not in ("latency", "throughput")},
        "arms": [
            {
                **dataclasses.asdict(arm),
                "summary": resolve(arm.design).summary,
                "notes": resolve(arm.design).notes(_shape(plan, arm)),
                "only_taper": differ_in_taper(resolve(baseline), resolve(arm.design)),
                **{key: value for key, value in measured[arm.name].items() if key != "depth"},
                "difference": difference_as_data(apart.get(arm.name)),
                "against_control": difference_as_data(beside.get(arm.name)),
                "placement": difference_as_data(placed.get(arm.name)),
                "generation": speed_of(speeds, arm.name, baseline, arm.control),
            }
            for arm in plan.arms
        ],
    }
    judged = judge(found)
    found["headline"], found["sentences"] = judged.headline, list(judged.sentences)
    found["judgements"] = shared.judgements_as_data(list(judged.judgements))
    plain: dict[str, Any] = finite(found)
    return plain


def differ_in_taper(uniform: Design, tapered: Design) -> bool:
    """Whether a design is another one without its taper, and is the same in everything else."""
    same = ("connection", "norm", "placement", "init", "qk_norm", "embedding_norm")
    alike = all(getattr(uniform, name) == getattr(tapered, name) for name in same)
    return alike and uniform.taper == UNTAPERED != tapered.taper


def against_controls(plan: CascadePlan, runs: Mapping[str, Sequence[RunResult]]) -> dict[str, Difference]:
    """Every taper minus its uniform control; tapers with the same control are one comparison."""
    found: dict[str, Difference] = {}
    for control in dict.fromkeys(arm.control for arm in plan.arms if arm.control is not None):
        names = [control, *(arm.name for arm in plan.arms if arm.control == control)]
        found |= against(control, {name: runs[name] for name in names}, plan.seeds)
    return found


def equally_wide(arms: Sequence[ArmPlan]) -> list[str]:
    """The tapers that have the claimed one's control and cost the same, itself too: the same width in other places."""
    costs = {arm.name: (arm.control, arm.flops_per_token, arm.parameters, arm.tokens) for arm in arms if arm.control}
    return [name for name, cost in costs.items() if cost == costs.get(CLAIMED)]


def _runs(plan: CascadePlan, arm: ArmPlan) -> Arm:
    config = run_config(
        design=arm.design,
        preset=plan.preset,
        shape=arm.shape,
        data=plan.data,
        tokens=arm.tokens,
        batch_size=plan.batch_size,
        context=plan.context,
        learning_rate=arm.learning_rate,
        evaluations=plan.evaluations,
        evaluate_tokens=plan.evaluate_tokens,
        precision=plan.precision,
        backend=plan.backend,
        device=plan.device,
    )
    return Arm(name=arm.name, slug=arm.slug, config=config, flops=float(arm.flops_per_token * arm.tokens))


def _first_trained(arm: Arm, seeds: Sequence[int], out: Path) -> Path | None:
    folders = (run_folder(out, arm, seed) for seed in seeds)
    return next((folder for folder in folders if (folder / "summary.json").is_file()), None)


def _shape(plan: CascadePlan, arm: ArmPlan) -> ShapeConfig:
    return dataclasses.replace(preset_named(plan.preset).shape, **_changes(arm.shape, plan.context))


def _changes(shape: dict[str, int], context: int) -> dict[str, Any]:
    return {**shape, "context": context}
