"""A comparison from its plan to its report: learning rates first where they are swept, then all runs, then results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadline.config import to_dict
from leadline.errors import LeadlineError
from leadline.experiments.compare.plan import DesignPlan, Plan, check_out, keep_plan
from leadline.experiments.compare.results import collect, run_folder, write_results
from leadline.experiments.compare.speed import SPEED_ROUNDS, measured_speeds
from leadline.experiments.jobs import Job, run_jobs, start_anew
from leadline.experiments.machine import cores
from leadline.experiments.progress import display_for
from leadline.experiments.runs import read_run
from leadline.interrupt import termination_interrupts
from leadline.lock import claimed

if TYPE_CHECKING:
    from leadline.data import DataSet

COST = {"additive": 1.0, "attention-residuals": 1.2, "multi-gate": 1.2, "hyper-connections": 1.4}
"""Time per FLOP against the plain stream, roughly, on a small model: connections launch many small operations."""
COST_OF_ALL_SOURCES = 1.7
COST_OF_OTHERS = 1.6


def compare(
    plan: Plan,
    out: Path,
    data: DataSet,
    *,
    jobs: int | None = None,
    threads: int | None = None,
    rerun: bool = False,
    speed_rounds: int = SPEED_ROUNDS,
    command: str = "leadline compare",
) -> dict[str, Any]:
    """Runs what is missing of a comparison, and writes `results.json`, `results.csv` and `report.html`.

    Args:
        jobs: runs at a time; by default two where there are two cores.
        threads: of each run; by default the cores divided by the jobs.
        rerun: train runs that failed or are damaged from the start; failed ones go on where they were otherwise, and
            damaged ones stay.
        speed_rounds: in which all designs take turns at a step, after the runs; 0 measures no speed.
        command: that repeats it, for the report.

    Returns:
        The content of `results.json`. A design whose runs failed or are damaged is marked in it; nothing is raised
        for that.

    Raises:
        UsageError: the folder holds another comparison, or something else.
        LeadlineError: the folder cannot be written, or a run of the sweep of learning rates is damaged.
        KeyboardInterrupt: interrupted; what ran has been saved.
    """
    slots = min(2, cores()) if jobs is None else jobs
    threads = max(1, cores() // slots) if threads is None else threads
    with claimed(out, "compare", lambda: check_out(plan, out)), termination_interrupts():
        keep_plan(plan, out)
        sweeps: list[dict[str, Any]] = []
        rates = {design.name: design.learning_rate for design in plan.designs}
        if any(design.sweep for design in plan.designs):
            _run(_sweep_jobs(plan, out), slots, threads, rerun)
            sweeps = [_swept(plan, out, design) for design in plan.designs]
            rates = {curve["design"]: curve["chosen"] for curve in sweeps}
        _run(_jobs(plan, out, rates), slots, threads, rerun)
        speeds = measured_speeds(out, _finished(plan, out, rates), speed_rounds, slots * threads)
        results = collect(plan, out, data, rates, sweeps, command, speeds)
        write_results(results, plan, out, rates)
        from leadline.experiments.compare.report import write_report

        write_report(results, out / "report.html")
    return results


def _jobs(plan: Plan, out: Path, rates: Mapping[str, float]) -> list[Job]:
    measure = {"tokens": plan.measure_tokens, "removal_tokens": plan.removal_tokens}
    return [
        Job(
            label=f"{design.name}, seed {seed}",
            folder=run_folder(out, design, seed),
            content={"config": run_config(plan, design, seed, rates[design.name]), "measure": measure},
            tokens=design.tokens,
            cost=_cost(plan, design),
            turn=turn,
        )
        for turn, seed in enumerate(plan.seeds)
        for design in plan.designs
    ]


def _finished(plan: Plan, out: Path, rates: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """A configuration of every design that finished on some seed."""
    return {
        design.name: run_config(plan, design, plan.seeds[0], rates[design.name])
        for design in plan.designs
        if any(read_run(run_folder(out, design, seed)).summary is not None for seed in plan.seeds)
    }


def _sweep_jobs(plan: Plan, out: Path) -> list[Job]:
    return [
        Job(
            label=f"{design.name} at {rate:g}",
            folder=run_folder(out, design, plan.sweep_seed, rate),
            content={"config": run_config(plan, design, plan.sweep_seed, rate), "measure": None},
            tokens=design.tokens,
            cost=_cost(plan, design),
            measured=False,
        )
        for design in plan.designs
        for rate in design.sweep
    ]


def _swept(plan: Plan, out: Path, design: DesignPlan) -> dict[str, Any]:
    """A design's losses over the grid and the best rate; the planned one where no run finished."""
    runs = {rate: read_run(run_folder(out, design, plan.sweep_seed, rate)) for rate in design.sweep}
    if damaged := [str(run.error) for run in runs.values() if run.status == "damaged"]:
        raise LeadlineError(f"{'; '.join(damaged)}; the same command with --rerun trains the run again")
    bits = {rate: run.value("bits_per_byte") for rate, run in runs.items()}
    points = [{"learning_rate": rate, "bits_per_byte": value} for rate, value in bits.items()]
    known = [(value, rate) for rate, value in bits.items() if value is not None]
    chosen = min(known)[1] if known else design.learning_rate
    return {"design": design.name, "points": points, "chosen": chosen, "source": f"this run, seed {plan.sweep_seed}"}


def run_config(plan: Plan, design: DesignPlan, seed: int, rate: float) -> dict[str, Any]:
    """The configuration of one run, as plain data."""
    from leadline.training import RunConfig

    steps = design.tokens // plan.batch_tokens
    every = max(1, steps // plan.evaluations)
    config = RunConfig(
        design=design.name,
        preset=plan.preset,
        shape=plan.shape,
        data=plan.data,
        tokens=design.tokens,
        batch_size=plan.batch_size,
        context=plan.context,
        learning_rate=rate,
        seed=seed,
        evaluate_every=every,
        evaluate_tokens=plan.evaluate_tokens,
        checkpoint_every=every,
        keep=1,
        precision=plan.precision,
        backend=plan.backend,
        device=plan.device,
    )
    content: dict[str, Any] = to_dict(config)
    return content


def _cost(plan: Plan, design: DesignPlan) -> float:
    from leadline.designs import preset_named, resolve

    connection = resolve(design.name).connection_for(plan.shape.get("blocks", preset_named(plan.preset).blocks))
    cost = COST.get(connection.kind, COST_OF_OTHERS)
    if getattr(connection, "block_size", 0) is None:
        cost = COST_OF_ALL_SOURCES
    return design.tokens * design.flops_per_token * cost


def _run(jobs: Sequence[Job], slots: int, threads: int, rerun: bool) -> None:
    if rerun:
        start_anew(jobs, lambda folder: read_run(folder).status)
    if all(job.done for job in jobs):
        return
    display = display_for(jobs, slots)
    try:
        run_jobs(jobs, slots=slots, threads=threads, display=display)
    finally:
        display.close()
