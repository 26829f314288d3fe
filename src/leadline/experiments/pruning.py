"""`leadline study pruning`: models trained with their gradient shares, cut by every criterion (claim C1).

A few models that differ by seed alone are trained, then `leadline.pruning.sweep` cuts them at several ratios by every
criterion. Source of the claim: CascadeFlow Pruning, arXiv 2606.26538. The protocol is ours.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadline.designs import count_flops, preset_named, resolve, settings
from leadline.errors import LeadlineError, UsageError
from leadline.experiments import results as shared
from leadline.experiments.compare.plan import Precision, parse_seeds
from leadline.experiments.compare.results import INSTALL, finite
from leadline.experiments.engine import Arm, gather, run_config, run_folder, train_all
from leadline.experiments.folder import at_work
from leadline.experiments.statistics import SMALLEST_EFFECT
from leadline.ops.choice import Backend, check_backend
from leadline.pruning import Amount, Reading, Wish, open_subject
from leadline.pruning.report import headline, page
from leadline.pruning.select import number_to_cut
from leadline.pruning.sweep import SweepWish, asked_of, hash_of_task, sweep
from leadline.pruning.sweep_memory import MEMORY_FILE, SweepMemory
from leadline.pruning.tasks import Task, check_task

if TYPE_CHECKING:
    from leadline.data import DataSet

EVALUATIONS = 4
"""In a run."""
TOKENS = 307_200
"""Of each run at `tiny` by default: eight seeds, which tell differences that three don't."""


@dataclass(frozen=True, kw_only=True)
class PruningWish:
    """What a study is asked to be; see `leadline study pruning --help`.

    Attributes:
        tokens: of each run; the preset's unless given, at `tiny` 307,200.
        ratios: shares of the blocks to cut.
        criteria: all unless given.
        normalised: cfp takes the shares that tapered designs need, see `leadline.pruning.Evidence`.
        task: questions to answer at each ratio.
    """

    design: str = "prenorm"
    data: str = "sotu"
    preset: str = "tiny"
    blocks: int | None = None
    tokens: int | None = None
    seeds: str = "8"
    learning_rate: float | None = None
    ratios: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5)
    criteria: tuple[str, ...] | None = None
    unit: str = "block"
    protect_first: int = 0
    protect_last: int = 0
    normalised: bool = False
    task: Task | None = None
    calibration_tokens: int = 8_192
    evaluate_tokens: int = 32_768
    precision: Precision = "float32"
    backend: Backend = "auto"
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class PruningPlan:
    """A whole study; two equal plans share a folder.

    Attributes:
        slug: the design's, for folders.
        shape: what replaces the preset's.
        flops: of one run's training.
        task, task_hash: the name of the questions, and the hash of what they are; None without.
    """

    design: str
    slug: str
    data: str
    data_hash: str
    preset: str
    shape: dict[str, int]
    batch_size: int
    context: int
    tokens: int
    seeds: tuple[int, ...]
    learning_rate: float
    flops: float
    ratios: tuple[float, ...]
    criteria: tuple[str, ...] | None
    unit: str
    protect_first: int
    protect_last: int
    normalised: bool
    task: str | None
    task_hash: str | None
    calibration_tokens: int
    evaluate_tokens: int
    precision: Precision
    backend: Backend
    device: str


def make_plan(wish: PruningWish, data: DataSet) -> PruningPlan:
    """The plan of a study on opened data.

    Raises:
        UsageError: an option or a value is wrong; names it, and what works.
        LeadlineError: a choice of the task has no tokens; names its line.
    """
    design, preset = resolve(wish.design), preset_named(wish.preset)
    seeds = parse_seeds(wish.seeds)
    if len(seeds) < 2:
        raise UsageError(f"--seeds {wish.seeds} is one model; rank stability needs 2 or more")
    if wish.blocks is not None and wish.blocks < 2:
        raise UsageError(f"--blocks {wish.blocks} leaves nothing to choose from; 2 or more work")
    rate = settings(design, preset).learning_rate if wish.learning_rate is None else wish.learning_rate
    if not 0 < rate < math.inf:
        raise UsageError(f"--lr {rate:g} is out of range; it must be a finite number more than 0")
    check_backend(wish.backend, wish.device.partition(":")[0])
    blocks = preset.blocks if wish.blocks is None else wish.blocks
    shape = {} if blocks == preset.blocks else {"blocks": blocks}
    full = dataclasses.replace(preset.shape, blocks=blocks)
    batch_tokens = preset.batch_size * full.context
    known = TOKENS if preset.name == "tiny" else preset.tokens
    tokens = known if wish.tokens is None else wish.tokens
    if tokens < 1:
        raise UsageError(f"--tokens {tokens} is too small; 1 or more work")
    tokens = -(-tokens // batch_tokens) * batch_tokens
    plan = PruningPlan(
        design=design.expression,
        slug=design.slug,
        data=wish.data,
        data_hash=data.hash,
        preset=preset.name,
        shape=shape,
        batch_size=preset.batch_size,
        context=full.context,
        tokens=tokens,
        seeds=seeds,
        learning_rate=rate,
        flops=float(count_flops(design.decoder(full, data.vocab_size)).training_total) * tokens,
        ratios=wish.ratios,
        criteria=wish.criteria,
        unit=wish.unit,
        protect_first=wish.protect_first,
        protect_last=wish.protect_last,
        normalised=wish.normalised,
        task=None if wish.task is None else wish.task.name,
        task_hash=None if wish.task is None else hash_of_task(wish.task),
        calibration_tokens=wish.calibration_tokens,
        evaluate_tokens=wish.evaluate_tokens,
        precision=wish.precision,
        backend=wish.backend,
        device=wish.device,
    )
    # What is wrong with ratios, criteria and questions is said before anything is trained.
    _check_counts(asked(plan, wish.task), blocks)
    if wish.task is not None:
        check_task(wish.task, data.tokenizer)
    return plan


def _check_counts(wish: SweepWish, blocks: int) -> None:
    """Raises UsageError where a ratio cuts nothing or too much of so many blocks, or angular is to cut sublayers."""
    amount, kind = wish.base.amount, wish.base.unit
    each = 1 if kind == "block" else 2
    free = blocks - amount.protect_first - amount.protect_last
    if free < 1:
        raise UsageError(
            f"--protect-first {amount.protect_first} and --protect-last {amount.protect_last} protect all of {blocks} "
            f"blocks; together {blocks - 1} is the most"
        )
    for ratio in wish.ratios:
        share = dataclasses.replace(amount, ratio=ratio, count=None)
        number_to_cut(share, blocks * each, free * each, kind, "--sweep")
    if kind != "block" and "angular" in (wish.criteria or ()):
        raise UsageError("--criteria angular: it chooses contiguous blocks; --unit block works")


def asked(plan: PruningPlan, task: Task | None = None) -> SweepWish:
    """What the sweep is told.

    Raises:
        UsageError: ratios or criteria that don't work, or another task than the plan's.
    """
    if (None if task is None else hash_of_task(task)) != plan.task_hash:
        raise UsageError(f"the plan's task is {plan.task or 'none'}, with other questions than these")
    reading = Reading(context=plan.context, stride=plan.context, tokens=plan.evaluate_tokens, batch_size=8)
    amount = Amount(count=0, protect_first=plan.protect_first, protect_last=plan.protect_last)
    base = Wish(
        amount=amount,
        reading=reading,
        criterion="random",
        unit=plan.unit,
        normalised=plan.normalised,
        calibration_tokens=plan.calibration_tokens,
    )
    return SweepWish(ratios=plan.ratios, base=base, criteria=plan.criteria, task=task, smallest_effect=SMALLEST_EFFECT)


def run_study(
    plan: PruningPlan,
    out: Path,
    data: DataSet,
    *,
    task: Task | None = None,
    jobs: int | None = None,
    threads: int | None = None,
    command: str = "leadline study pruning",
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Trains what is missing, sweeps, and writes `results.json` and `report.html`.

    Args:
        task: the questions that the plan was made with.

    Returns:
        The content of `results.json`: what `leadline.pruning.sweep` gives as `sweep`, and the runs as `arm`.

    Raises:
        UsageError: the folder holds something else.
        LeadlineError: the folder cannot be written, or fewer than two models were trained.
        KeyboardInterrupt: interrupted; what was trained and measured has been saved, and the same call goes on.
    """
    wish = asked(plan, task)
    with at_work(out, "pruning", plan):
        arm = _arm(plan)
        errors = train_all([arm], plan.seeds, out, jobs=jobs, threads=threads)
        folders = [run_folder(out, arm, seed) for seed in plan.seeds]
        trained = [folder for folder in folders if (folder / "summary.json").is_file()]
        if len(trained) < 2:
            reasons = "; ".join(f"{name}: {error}" for name, error in errors.items())
            raise LeadlineError(f"rank stability needs 2 trained models, and there are {len(trained)} ({reasons})")
        subjects = [open_subject(folder, plan.device) for folder in trained]
        memory = SweepMemory(asked_of(subjects, data, wish), out / MEMORY_FILE)
        if memory.dropped:
            say(f"everything is measured anew; {MEMORY_FILE} is of another sweep: {'; '.join(memory.dropped)}")
        found = sweep(subjects, data, wish, say, memory)
        results = collect(plan, arm, out, data, found, errors, command)
        shown = dataclasses.replace(page(found, command), facts=shared.facts(results), install=INSTALL)
        shared.write(results, shown, out)
    return results


def collect(
    plan: PruningPlan,
    arm: Arm,
    out: Path,
    data: DataSet,
    found: dict[str, Any],
    errors: dict[str, str],
    command: str,
) -> dict[str, Any]:
    """The content of `results.json`."""
    measured = gather([arm], plan.seeds, out)[arm.name]
    results = {
        **shared.opening("pruning", command, data),
        "plan": dataclasses.asdict(plan),
        "arm": {key: value for key, value in measured.items() if key != "depth"},
        "failed": errors,
        "sweep": found,
        "headline": headline(found),
        "sentences": [f"left out: {name}, because {reason}" for name, reason in found["left_out"].items()],
        "judgements": shared.judgements_as_data([judged(found["verdict"])]),
    }
    plain: dict[str, Any] = finite(results)
    return plain


def judged(said: Mapping[str, Any]) -> shared.Judgement:
    """A sweep's verdict as a study has it."""
    return shared.Judgement(claim=said["claim"], paper="", outcome=said["verdict"], evidence=said["evidence"])


def _arm(plan: PruningPlan) -> Arm:
    config = run_config(
        design=plan.design,
        preset=plan.preset,
        shape=plan.shape,
        data=plan.data,
        tokens=plan.tokens,
        batch_size=plan.batch_size,
        context=plan.context,
        learning_rate=plan.learning_rate,
        evaluations=EVALUATIONS,
        evaluate_tokens=plan.evaluate_tokens,
        precision=plan.precision,
        backend=plan.backend,
        device=plan.device,
    )
    return Arm(name=plan.design, slug=plan.slug, config=config, flops=plan.flops)
