"""`leadline study cascade`: tapered stacks against uniform ones at equal training FLOPs (claim C2).

All arms are trained to the same FLOPs; then their trained models generate side by side. A taper is judged against its
uniform control, which costs the same a token, and compared with the baseline too. Source of the claim: CascadeFormer,
arXiv 2606.26538. The protocol is ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from leadline.data import DataSet
from leadline.designs import Design, resolve
from leadline.designs.taper import UNTAPERED
from leadline.experiments.cascade.config import CascadeConfig
from leadline.experiments.cascade.page import make_page
from leadline.experiments.cascade.plan import TaperArm, plan
from leadline.experiments.cascade.speed import SpeedOptions, measure_speed, speed_of
from leadline.experiments.cascade.verdict import CLAIMED, judge
from leadline.experiments.engine import Experiment, Say
from leadline.experiments.results import difference_as_data, judged, opening
from leadline.experiments.runs import RunResult, against, measured
from leadline.experiments.statistics import SMALLEST_EFFECT, Difference
from leadline.report.page import render
from leadline.training.resolve import shape_of, usable_device

PLANNED = (
    "name", "design", "slug", "control", "control_note", "learning_rate", "shape", "tokens", "flops_per_token",
    "residual", "forward_flops", "parameters", "widths",
)  # fmt: skip
"""What `results.json` has of an arm before it is trained."""


class Cascade(Experiment[CascadeConfig]):
    """The study, see `CascadeConfig`."""

    kind = "cascade"
    arms: tuple[TaperArm, ...]

    def __init__(self, config: CascadeConfig, data: DataSet, say: Say = lambda text: None) -> None:
        budget, arms = plan(config, data)
        super().__init__(budget, data, arms, say)

    def collect(self, command: str) -> dict[str, Any]:
        """See `Experiment`; measures how fast the trained models generate."""
        config, baseline, runs = self.config, self.arms[0], self.runs()
        speeds = measure_speed(
            {name: done[0] for name, of in runs.items() if (done := [run.folder for run in of if run.summary])},
            self.data,
            SpeedOptions(
                rounds=config.speed_rounds,
                group=config.speed_group,
                batch=config.speed_batch,
                context=self.budget.context,
                device=str(usable_device(config.runtime.device)),
                backend=config.runtime.backend,
                threads=config.threads,
            ),
            self.out / "speed.json",
            say=self.say,
        )
        apart, beside = against(baseline.name, runs, self.seeds), against_controls(self.arms, runs, self.seeds)
        alike = equally_wide(self.arms)
        placed = against(CLAIMED, {name: runs[name] for name in alike}, self.seeds) if CLAIMED in alike else {}
        found = {
            **opening(self.kind, command, self.data, self.seeds),
            "baseline": baseline.name,
            "smallest_effect": SMALLEST_EFFECT,
            "preset": {"name": self.budget.preset.name, **dataclasses.asdict(self.budget.shape)},
            "budget": {
                "by": config.by,
                "flops": baseline.flops_per_token * baseline.tokens,
                "batch_tokens": self.budget.batch_tokens,
                "context": self.budget.context,
            },
            "speed": {key: value for key, value in speeds.items() if key not in ("latency", "throughput")},
            "arms": [
                {
                    **{name: getattr(arm, name) for name in PLANNED},
                    "summary": resolve(arm.design).summary,
                    "notes": resolve(arm.design).notes(shape_of(arm.config.model)),
                    "only_taper": differ_in_taper(resolve(baseline.design), resolve(arm.design)),
                    **measured(runs[arm.name], depth=False),
                    "difference": difference_as_data(apart.get(arm.name)),
                    "against_control": difference_as_data(beside.get(arm.name)),
                    "placement": difference_as_data(placed.get(arm.name)),
                    "generation": speed_of(speeds, arm.name, baseline.name, arm.control),
                }
                for arm in self.arms
            ],
        }
        return judged(found, judge(found))

    def page(self, results: dict[str, Any]) -> str:
        """See `Experiment`."""
        return render(make_page(results))


def differ_in_taper(uniform: Design, tapered: Design) -> bool:
    """Whether a design is another one without its taper, and is the same in everything else."""
    same = ("connection", "norm", "placement", "init", "qk_norm", "embedding_norm")
    alike = all(getattr(uniform, name) == getattr(tapered, name) for name in same)
    return alike and uniform.taper == UNTAPERED != tapered.taper


def against_controls(
    arms: Sequence[TaperArm], runs: Mapping[str, Sequence[RunResult]], seeds: Sequence[int]
) -> dict[str, Difference]:
    """Every taper minus its uniform control; tapers with the same control are one comparison."""
    found: dict[str, Difference] = {}
    for control in dict.fromkeys(arm.control for arm in arms if arm.control is not None):
        names = [control, *(arm.name for arm in arms if arm.control == control)]
        found |= against(control, {name: runs[name] for name in names}, seeds)
    return found


def equally_wide(arms: Sequence[TaperArm]) -> list[str]:
    """The tapers that have the claimed one's control and cost the same, itself too: the same width in other places."""
    costs = {arm.name: (arm.control, arm.flops_per_token, arm.parameters, arm.tokens) for arm in arms if arm.control}
    return [name for name, cost in costs.items() if cost == costs.get(CLAIMED)]
