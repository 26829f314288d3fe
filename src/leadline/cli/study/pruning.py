"""`leadline study pruning`: its options, and running it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from leadline.cli.study.saying import check_workers, command_line, print_findings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pruning:
    """Models trained with their gradient shares, cut by every criterion: perplexity against ratio, and rank stability.

    Trains one model for each seed, then cuts them at every ratio by every criterion; cfp by every definition of the
    gradient share. Interrupted, the same command continues: what was trained stays.

    Example: leadline study pruning --seeds 3 --out runs/pruning
    """

    out: Path = Path("runs/pruning")
    """Where runs, results and the report go."""

    design: str = "prenorm"
    """The design of the models."""

    data: str = "sotu"
    """sotu, or a folder that `leadline data prepare` made."""

    preset: str = "tiny"
    """The models' size: tiny, S, M, L, 374M, 1B or 3B."""

    blocks: int | None = None
    """Transformer blocks; the preset's unless given, at tiny 24."""

    tokens: str | None = None
    """Training tokens of each model, such as 512k; the preset's unless given, at tiny 307,200."""

    seeds: str = "8"
    """How many models (3 means seeds 0, 1, 2), or which seeds (0,1,5); 2 or more."""

    lr: float | None = None
    """The peak learning rate; Leadline's table unless given."""

    sweep: str = "0.1,0.2,0.3,0.5"
    """Shares of the blocks to cut."""

    criteria: str | None = None
    """Which criteria, separated by commas; all that fit unless given."""

    unit: Literal["block", "sublayer"] = "block"
    """What is cut: whole blocks, or attention and MLP apart."""

    protect_first: int = 0
    """Blocks from the start that stay."""

    protect_last: int = 0
    """Blocks from the end that stay."""

    normalised: bool = False
    """For cfp: shares of norms divided by √(number of parameters), which tapered designs need."""

    task: Path | None = None
    """Questions to answer at every ratio, JSON lines with question, choices and answer (from 0)."""

    calibration_tokens: str = "8k"
    """Tokens that criteria read, from the training part."""

    evaluate_tokens: str = "32k"
    """Held-out tokens that perplexity is measured on."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """Of training; bfloat16 means autocast."""

    backend: Literal["auto", "reference", "lean", "compiled", "triton"] = "auto"
    """Of the operators along depth."""

    device: str = "cpu"
    """Where to run: cpu, cuda, mps."""

    jobs: int | None = None
    """Training runs at a time; two unless given, or one on one core."""

    threads: int | None = None
    """Threads of each training run, the cores divided by the jobs unless given."""


def run(asked: Pruning) -> int:
    """Runs the study. Returns 0, or 1 where a run failed."""
    from leadline.cli.counts import parse_count
    from leadline.cli.prune import Progress, numbers
    from leadline.data import resolve
    from leadline.experiments.pruning import PruningWish, make_plan, run_study
    from leadline.pruning.tasks import read_task
    from leadline.training.resolve import usable_device

    check_workers(asked.jobs, asked.threads)
    wish = PruningWish(
        design=asked.design,
        data=asked.data,
        preset=asked.preset,
        blocks=asked.blocks,
        tokens=None if asked.tokens is None else parse_count(asked.tokens, "--tokens"),
        seeds=asked.seeds,
        learning_rate=asked.lr,
        ratios=numbers(asked.sweep, "--sweep", float),
        criteria=None if asked.criteria is None else tuple(asked.criteria.replace(" ", "").split(",")),
        unit=asked.unit,
        protect_first=asked.protect_first,
        protect_last=asked.protect_last,
        normalised=asked.normalised,
        task=None if asked.task is None else read_task(asked.task),
        calibration_tokens=parse_count(asked.calibration_tokens, "--calibration-tokens"),
        evaluate_tokens=parse_count(asked.evaluate_tokens, "--evaluate-tokens"),
        precision=asked.precision,
        backend=asked.backend,
        device=asked.device,
    )
    usable_device(asked.device)
    data = resolve(asked.data)
    results = run_study(
        make_plan(wish, data),
        asked.out,
        data,
        task=wish.task,
        jobs=asked.jobs,
        threads=asked.threads,
        command=command_line("pruning", asked),
        say=Progress(),
    )
    print_findings(results, asked.out)
    return 1 if results["failed"] or results["arm"]["status"] != "ok" else 0
