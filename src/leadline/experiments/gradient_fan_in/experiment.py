"""Trains and measures every arm on every seed, and gathers it: `results.json`.

study, leadline, command, created, machine, data, repeat     as `leadline.experiments.results.opening`
design, preset, blocks, seeds    what was trained
repeated, last_blocks            "4x2", and how many blocks that repeats
ablation_tokens                  held-out tokens for ΔM
arms                             one each, in order:
    name, summary, role, control, loss_per      the last is "byte", or "image" where bits_per_byte is bits per image
    status, error                "ok", "partial" or "failed", and the first error
    blocks, late_blocks          how many, and how many of them are late (the last third)
    tokens, learning_rate, parameters, flops_per_token
    loss, bits_per_byte          held-out: mean, low, high, values by seed; null where no run finished
    tokens_per_second, seconds, curve
    runs                         one a seed; null where it failed:
        seed, folder, loss (of the text that ΔM is on)
        share, share_per_parameter, sublayer_share      ḡ, also for norms over √parameters; raw gradients
        definitions              ḡ by each definition's name (`leadline.training.gradient_steps`)
        definitions_when_present  the same for each step in which a block took part; null where all did in all steps
        phases                   `from`, `to`, `weight` and `share` of the first steps and of the rest
        equalised_share          ḡ of the gradients after equalising; null elsewhere
        steps_without_gradient   by block
        effective_rank, cosine   by block, mean over the run's records; null without
        fan_in, order, exit_weights
        delta, place_delta       nats, low, high (see `leadline.experiments.gradient_fan_in.measure`)
    correlations                 share_delta, share_fan_in, and both with `_rest`, without the first block, and
                                 `_per_parameter`, of the √parameters form, and `_when_present` where blocks were
                                 dropped, all of the definition `sum`; rank_ and cosine_, effective rank and diversity
                                 with both; each has pearson, spearman, kendall (value, low, high, reason, runs),
                                 `over`, and `blocks`, how many were compared. Null where no run finished
    definitions                  by name: share_delta, share_fan_in, their `_rest` and `_when_present`
    phases                       `from`, `to`, `weight`, share_delta, share_fan_in
    fits                         by definition's name `own`, `other` (R²) and `difference` (value, low, high, runs)
    first_share                  the first block's share, mean over seeds
    late                         by part (see `late`: third, last, single, each also `_rest`, without the first block)
                                 mean, low, high, by_seed; and `predicted`, by part what φ says.
                                 Null where no run finished
    against                      minus the control, by pairs of a seed: by part, and bits_per_byte, mean, low, high,
                                 by_seed or null; and `predicted`, by part the rise that φ says. Null without a control
    g1                           by definition's name, the words for fan_in and delta
headline, sentences, judgements  the verdicts
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadline.errors import LeadlineError
from leadline.experiments import results as shared
from leadline.experiments.compare.results import finite
from leadline.experiments.folder import at_work
from leadline.experiments.gradient_fan_in.arm import ArmPlan, amount_of
from leadline.experiments.gradient_fan_in.estimate import estimate_words
from leadline.experiments.gradient_fan_in.late import against, late_importance
from leadline.experiments.gradient_fan_in.measure import MEASURE_FILE, MeasureFile
from leadline.experiments.gradient_fan_in.page import make_page
from leadline.experiments.gradient_fan_in.plan import GfaPlan
from leadline.experiments.gradient_fan_in.registry import ARMS
from leadline.experiments.gradient_fan_in.shares import beside, by_definition, by_phase, fits, shares_of
from leadline.experiments.gradient_fan_in.statistics import late_count, paired
from leadline.experiments.gradient_fan_in.verdict import judge
from leadline.experiments.gradient_fan_in.verdict_fan_in import parts
from leadline.experiments.jobs import Job, run_jobs
from leadline.experiments.machine import cores
from leadline.experiments.progress import display_for
from leadline.experiments.runs import RunResult, mean_of, measured, read_run
from leadline.files import check_sum
from leadline.reading import read_json
from leadline.training.gradient_file import GRADIENT

if TYPE_CHECKING:
    from leadline.data import DataSet

SHARES_READ = ("share", "share_per_parameter", "sublayer_share", "steps", "steps_without_gradient")
"""Of a run's `gradient.json`."""
WORKER = ("-m", "leadline.experiments.gradient_fan_in.worker")


class GfaJob(Job):
    """A run that is done once it is trained and its blocks are measured."""

    @property
    def done(self) -> bool:
        """See `Job`."""
        return all((self.folder / name).is_file() for name in ("summary.json", MEASURE_FILE))


def run_study(
    plan: GfaPlan,
    out: Path,
    data: DataSet,
    *,
    jobs: int | None = None,
    threads: int | None = None,
    command: str = "leadline study gfa",
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Trains and measures what is missing, and writes `results.json` and `report.html`.

    Args:
        jobs: runs at a time; by default two where there are two cores.
        threads: of each run; by default the cores divided by the jobs.
        say: is told how long it will take, before it starts.

    Returns:
        The content of `results.json`; an arm whose runs failed is marked in it.

    Raises:
        UsageError: the folder holds something else.
        LeadlineError: the folder cannot be written.
        KeyboardInterrupt: interrupted; every run has saved, and the same call goes on.
    """
    slots = min(2, cores()) if jobs is None else jobs
    threads = max(1, cores() // slots) if threads is None else threads
    with at_work(out, "gfa", plan):
        _train(plan, out, slots, threads, say)
        found = collect(plan, out, data, command)
        shared.write(found, make_page(found), out)
    return found


def _train(plan: GfaPlan, out: Path, slots: int, threads: int, say: Callable[[str], None]) -> None:
    queue = [_job(plan, arm, seed, out) for arm in plan.arms for seed in plan.seeds]
    if all(job.done for job in queue):
        return
    steps = (ARMS[arm.name].step(arm) for arm in plan.arms)
    step = next((step for step in steps if step is not None), None)
    say(estimate_words(queue, slots, threads, step))
    display = display_for(queue, slots)
    try:
        run_jobs(queue, slots=slots, threads=threads, display=display, worker=(sys.executable, *WORKER))
    finally:
        display.close()


def _job(plan: GfaPlan, arm: ArmPlan, seed: int, out: Path) -> Job:
    return GfaJob(
        label=f"{arm.name}, seed {seed}",
        folder=run_folder(out, arm.name, seed),
        content={"arm": arm.name, "config": {**arm.config, "seed": seed}, "ablation_tokens": plan.ablation_tokens},
        tokens=arm.tokens,
        cost=arm.cost,
        unit=amount_of(ARMS[arm.name].loss_per),
    )


def run_folder(out: Path, arm: str, seed: int) -> Path:
    """Where a run lies."""
    return out / "runs" / f"{arm}-seed{seed}"


def collect(plan: GfaPlan, out: Path, data: DataSet, command: str) -> dict[str, Any]:
    """The content of `results.json`."""
    gathered: dict[str, dict[str, Any]] = {}
    for arm in plan.arms:
        gathered[arm.name] = _arm(plan, arm, out)
    for arm in plan.arms:
        gathered[arm.name]["against"] = _against(gathered[arm.name], gathered.get(arm.control))
    found: dict[str, Any] = {
        **shared.opening("gfa", command, data),
        "design": plan.design,
        "preset": plan.preset,
        "blocks": plan.blocks,
        "seeds": list(plan.seeds),
        "last_blocks": plan.last,
        "repeated": plan.repeat,
        "ablation_tokens": plan.ablation_tokens,
        "arms": list(gathered.values()),
    }
    judged = judge(found["arms"], len(plan.seeds), plan.last)
    found["headline"], found["sentences"] = judged.headline, list(judged.sentences)
    found["judgements"] = shared.judgements_as_data(list(judged.judgements))
    plain: dict[str, Any] = finite(found)
    return plain


def _arm(plan: GfaPlan, arm: ArmPlan, out: Path) -> dict[str, Any]:
    kind = ARMS[arm.name]
    results = [read_run(run_folder(out, arm.name, seed)) for seed in plan.seeds]
    runs = [_run(result, seed, out) for result, seed in zip(results, plan.seeds, strict=True)]
    done = [run for run in runs if run is not None]
    found = {
        "name": arm.name,
        "summary": kind.summary,
        "role": kind.role,
        "control": arm.control,
        "loss_per": kind.loss_per,
        **{key: value for key, value in measured(results).items() if key != "depth"},
        "blocks": arm.blocks,
        "late_blocks": late_count(arm.blocks),
        "tokens": arm.tokens,
        "learning_rate": arm.learning_rate,
        "parameters": arm.parameters,
        "flops_per_token": arm.flops_per_token,
        "runs": runs,
        **(_correlations(done) if done else NOTHING),
        "first_share": mean_of([run["share"][0] for run in done]),
        "late": late_importance(runs, late_count(arm.blocks), min(plan.last, arm.blocks)) if done else None,
        "against": None,
    }
    found["g1"] = {name: parts(pairs) for name, pairs in found["definitions"].items()} if done else None
    return found


def _run(result: RunResult, seed: int, out: Path) -> dict[str, Any] | None:
    """What one run's folder says; None where it did not finish or was not measured."""
    if result.summary is None or result.gradient is None:
        return None
    try:
        own = read_json(result.folder / MEASURE_FILE, MeasureFile, advice="remove it to measure this run again")
        check_sum(result.folder / MEASURE_FILE)
    except FileNotFoundError:
        return None
    gradient = result.gradient
    if lacking := [name for name in SHARES_READ if name not in gradient]:
        raise LeadlineError(f"{result.folder / GRADIENT} is damaged: it lacks {', '.join(lacking)}")
    details = gradient.get("details") or []
    return {
        "seed": seed,
        "folder": str(result.folder.relative_to(out)),
        "loss": own["loss"],
        "share": gradient["share"],
        "share_per_parameter": gradient["share_per_parameter"],
        "sublayer_share": gradient["sublayer_share"],
        **shares_of(result.folder, gradient),
        "equalised_share": (gradient.get("equalised") or {}).get("share"),
        "steps_without_gradient": gradient["steps_without_gradient"]["block"],
        "effective_rank": mean_of([detail.get("effective_rank") for detail in details]),
        "cosine": mean_of([detail.get("cosine") for detail in details]),
        "fan_in": own["fan_in"],
        "order": own["order"],
        "exit_weights": own["exit_weights"],
        "delta": own["delta"],
        "place_delta": own["place_delta"],
    }


def _correlations(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    by_name = by_definition(runs)
    return {
        "correlations": {**by_name["sum"], **beside(runs)},
        "definitions": by_name,
        "phases": by_phase(runs),
        "fits": fits(runs),
    }


NOTHING: dict[str, Any] = {"correlations": None, "definitions": None, "phases": [], "fits": {}}


def _against(arm: dict[str, Any], control: dict[str, Any] | None) -> dict[str, Any] | None:
    if control is None:
        return None
    return {**against(arm, control), "bits_per_byte": paired(_bits(arm), _bits(control))}


def _bits(arm: dict[str, Any]) -> dict[int, float | None]:
    runs, bits = arm["runs"], arm["bits_per_byte"]
    if bits is None:
        return {}
    return {run["seed"]: value for run, value in zip(runs, bits["values"], strict=True) if run is not None}
