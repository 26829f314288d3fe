"""The training runs of a study: arms by seeds, in worker processes, and what came out of them.

An arm is what a study varies: a design, a training option. Every arm runs on every seed; all arms of one seed see the
same data in the same order.

    arms = [Arm(name="prenorm", slug="prenorm", config=config, flops=1e13), …]
    train_all(arms, seeds, out)
    found = gather(arms, seeds, out)          # per arm, as `results.json` keeps it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadline.config import to_dict
from leadline.experiments.jobs import Job, run_jobs
from leadline.experiments.machine import cores
from leadline.experiments.progress import display_for
from leadline.experiments.runs import RunResult, measured, read_run
from leadline.experiments.statistics import Difference, differences

if TYPE_CHECKING:
    from leadline.training import RunConfig


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One thing that a study trains, on every seed.

    Attributes:
        name: for people.
        slug: for folders; unique in a study.
        config: of a run; the seed is replaced.
        flops: of a whole run's training, or anything else that says how long it takes beside the others.
    """

    name: str
    slug: str
    config: RunConfig
    flops: float


def run_config(*, tokens: int, batch_size: int, context: int, evaluations: int, **options: Any) -> RunConfig:
    """A run that is evaluated, and saved, so many times on its way, and keeps its newest checkpoint.

    Args:
        options: the rest of `leadline.training.RunConfig`.
    """
    from leadline.training import RunConfig

    every = max(1, tokens // (batch_size * context) // evaluations)
    return RunConfig(
        tokens=tokens,
        batch_size=batch_size,
        context=context,
        evaluate_every=every,
        checkpoint_every=every,
        keep=1,
        **options,
    )


def run_folder(out: Path, arm: Arm, seed: int) -> Path:
    """Where a run lies."""
    return out / "runs" / f"{arm.slug}-seed{seed}"


def train_all(
    arms: Sequence[Arm],
    seeds: Sequence[int],
    out: Path,
    *,
    jobs: int | None = None,
    threads: int | None = None,
    measure: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """Trains what is not trained yet, the longest first; shows how far it is on standard error.

    A run that fails does not stop the others.

    Args:
        jobs: runs at a time; by default two where there are two cores.
        threads: of each run; by default the cores divided by the jobs.
        measure: `tokens` and `removal_tokens` for measurements along depth at the end of each run; none without.

    Returns:
        The errors of those that failed, by the name of their folder.

    Raises:
        KeyboardInterrupt: interrupted; every run has saved, and the same call goes on.
    """
    slots = min(2, cores()) if jobs is None else jobs
    queue = [_job(out, arm, seed, measure) for arm in arms for seed in seeds]
    if all(job.done for job in queue):
        return {}
    display = display_for(queue, slots)
    try:
        return run_jobs(
            queue, slots=slots, threads=max(1, cores() // slots) if threads is None else threads, display=display
        )
    finally:
        display.close()


def _job(out: Path, arm: Arm, seed: int, measure: Mapping[str, int] | None) -> Job:
    return Job(
        label=f"{arm.name}, seed {seed}",
        folder=run_folder(out, arm, seed),
        content={
            "config": to_dict(dataclasses.replace(arm.config, seed=seed)),
            "measure": None if measure is None else dict(measure),
        },
        tokens=arm.config.tokens or 1,
        cost=arm.flops,
        measured=measure is not None,
    )


def read_runs(arms: Sequence[Arm], seeds: Sequence[int], out: Path) -> dict[str, list[RunResult]]:
    """Every arm's runs, in the order of the seeds."""
    return {arm.name: [read_run(run_folder(out, arm, seed)) for seed in seeds] for arm in arms}


def gather(arms: Sequence[Arm], seeds: Sequence[int], out: Path) -> dict[str, dict[str, Any]]:
    """For every arm what `measured` gives: status, losses with intervals, speeds, curves."""
    return {name: measured(runs) for name, runs in read_runs(arms, seeds, out).items()}


def against(
    baseline: str,
    runs: Mapping[str, Sequence[RunResult]],
    seeds: Sequence[int],
    value: Callable[[RunResult], float | None] = lambda run: run.value("bits_per_byte"),
) -> dict[str, Difference]:
    """Every other arm minus the baseline, by pairs of the same seed; see `leadline.experiments.statistics`."""
    by_seed = {
        name: {seed: v for seed, run in zip(seeds, of_arm, strict=True) if (v := value(run)) is not None}
        for name, of_arm in runs.items()
    }
    return differences(by_seed, baseline)


def difference_as_data(found: Difference | None) -> dict[str, Any] | None:
    """A difference as `results.json` keeps it."""
    if found is None:
        return None
    return {
        "mean": found.interval.mean,
        "low": found.interval.low,
        "high": found.interval.high,
        "beyond_noise": found.beyond_noise,
        "p_value": found.p_value,
        "pairs": list(found.pairs),
    }
