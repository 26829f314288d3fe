"""What every experiment is: arms × seeds → train → measure → collect → judge → page.

An arm is what an experiment varies: a design, a training option. Every arm runs on every seed; all arms of one seed
see the same data in the same order. An experiment supplies its arms, what it measures once they are trained, its
results and its page (`Experiment`); `run` does the rest: the folder, the workers, what was interrupted, what is there.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from leadline.config import to_dict
from leadline.experiments.folder import at_work
from leadline.experiments.jobs import Job, run_jobs, start_anew
from leadline.experiments.machine import cores
from leadline.experiments.options import Budget, ExperimentConfig, chosen_devices
from leadline.experiments.progress import display_for
from leadline.experiments.results import write
from leadline.experiments.runs import RunResult, read_run
from leadline.experiments.worker import PROBES, TRAIN
from leadline.progress import note
from leadline.repeating import repeating

if TYPE_CHECKING:
    from leadline.data import DataSet

Say = Callable[[str], None]
C = TypeVar("C", bound=ExperimentConfig)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One thing that an experiment trains, on every seed.

    Attributes:
        name: for people.
        slug: for folders; unique in an experiment.
        config: of a run; the seed is replaced.
        tokens: that a run trains on, or whatever `unit` names.
        cost: of a whole run, in any unit that is the same for all arms, such as FLOPs.
        measure: `tokens` and `removal_tokens` for measurements along depth at the end of a run; none without.
        task: what a worker does, see `leadline.experiments.worker`; `files` are there when it is done.
        more: what the task needs beside.
    """

    name: str
    slug: str
    config: Any
    tokens: int
    cost: float
    unit: str = "tokens"
    measure: Mapping[str, int] | None = None
    task: str = TRAIN
    files: tuple[str, ...] = ()
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def folder(self, out: Path, seed: int) -> Path:
        """Where a run lies."""
        return out / "runs" / f"{self.slug}-seed{seed}"

    def runs(self, out: Path, seeds: Sequence[int]) -> list[RunResult]:
        """What the runs' folders hold, in the order of the seeds."""
        return [read_run(self.folder(out, seed)) for seed in seeds]

    def job(self, out: Path, seed: int, turn: int = 0) -> Job:
        """A run as a worker does it."""
        measure = None if self.measure is None else dict(self.measure)
        content = {"config": to_dict(dataclasses.replace(self.config, seed=seed)), "measure": measure}
        return Job(
            label=f"{self.name}, seed {seed}",
            folder=self.folder(out, seed),
            content={"task": self.task, **content, **self.more},
            tokens=self.tokens,
            cost=self.cost,
            files=(*self.files, *((PROBES,) if measure else ())),
            unit=self.unit,
            turn=turn,
        )


class Experiment(ABC, Generic[C]):
    """An experiment on opened data.

    Attributes:
        kind: its name, as `leadline study` or `leadline` has it.
        config: its options, with everything filled in that decides its runs.
        arms: what it trains.
        hashes: of all that it reads; a folder with others is another experiment's.
    """

    kind: str

    def __init__(self, budget: Budget, data: DataSet, arms: Sequence[Arm], say: Say = lambda text: None) -> None:
        self.budget, self.data, self.arms, self.say = budget, data, tuple(arms), say
        self.config: C = budget.config
        self.hashes = {"data": data.hash}

    @property
    def out(self) -> Path:
        """Its folder."""
        return self.config.out

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of every arm."""
        return self.config.seed_numbers

    def train(self) -> dict[str, str]:
        """Trains what is missing; the errors of the runs that failed, by the names of their folders."""
        return self.work([arm.job(self.out, seed) for arm in self.arms for seed in self.seeds])

    def runs(self) -> dict[str, list[RunResult]]:
        """Every arm's runs, in the order of the seeds."""
        return {arm.name: arm.runs(self.out, self.seeds) for arm in self.arms}

    @abstractmethod
    def collect(self, command: str) -> dict[str, Any]:
        """The content of `results.json`, verdict included, once everything is trained; measures what else it takes."""

    @abstractmethod
    def page(self, results: dict[str, Any]) -> str:
        """`report.html`, from that content."""

    def failed(self, results: dict[str, Any]) -> bool:
        """Whether a run failed."""
        return any(arm["status"] != "ok" for arm in results["arms"])

    @property
    def slots(self) -> int:
        """Runs at a time."""
        return self.config.jobs or len(self.devices) or min(2, cores())

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPUs that runs are spread over; none where `--devices` names none."""
        return chosen_devices(self.config.devices, self.config.runtime.device)

    @property
    def threads(self) -> int:
        """Of each run."""
        return self.config.threads or max(1, cores() // self.slots)

    def work(self, queue: Sequence[Job], estimate: Callable[[Sequence[Job]], str] | None = None) -> dict[str, str]:
        """Does the jobs that are not done, and shows how far they are on standard error.

        Args:
            estimate: says how long they will take, before they start.

        Raises:
            KeyboardInterrupt: interrupted; every run has saved, and the same call resumes.
        """
        if self.config.rerun:
            start_anew(queue, lambda folder: read_run(folder).status)
        if all(job.done for job in queue):
            return {}
        if estimate is not None:
            note(estimate(queue))
        display = display_for(queue, self.slots)
        try:
            return run_jobs(queue, slots=self.slots, threads=self.threads, display=display, devices=self.devices)
        finally:
            display.close()


def command_of(experiment: Experiment[Any], config: ExperimentConfig) -> str:
    """The command that repeats an experiment as it was asked for."""
    if experiment.kind != "compare":
        return repeating(["study", experiment.kind], config, without=("rerun",))
    return repeating(["compare", *getattr(config, "designs", ())], config, without=("designs", "rerun"))


def run(experiment: Experiment[Any], command: str = "") -> dict[str, Any]:
    """Runs what is missing of an experiment, and writes `results.json` and `report.html`.

    Args:
        command: that repeats it, for the report.

    Returns:
        The content of `results.json`. An arm whose runs failed is marked in it; nothing is raised for that.

    Raises:
        UsageError: the folder holds another experiment, or something else.
        LeadlineError: the folder cannot be written, or what it holds is damaged.
        KeyboardInterrupt: interrupted; what ran has been saved, and the same call resumes.
    """
    with at_work(experiment.out, experiment.kind, experiment.config, experiment.hashes):
        experiment.train()
        results = experiment.collect(command)
        write(results, experiment.page(results), experiment.out)
    return results
