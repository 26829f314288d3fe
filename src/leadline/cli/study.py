"""`leadline study`: whole experiments, each with a report that says which of a paper's claims hold here."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cascade:
    """Tapered stacks against a uniform one at equal training FLOPs: loss over seeds, and speed of generation.

    Trains prenorm and every taper to the same FLOPs, then lets the trained models generate side by side. Interrupted,
    the same command continues where it was.

    Example: leadline study cascade --designs cascade-a2,cascade-af --tokens 512k --out runs/cascade
    """

    out: Path = Path("runs/cascade")
    """Where runs, results and the report go."""

    designs: str | None = None
    """Designs to compare, separated by commas; all tapers of `leadline designs` unless given."""

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
    """Attention heads; the preset's unless given, at tiny 6, which can be halved and cut in thirds."""

    tokens: str | None = None
    """Training tokens of the baseline, such as 512k or 1.2M; the preset's unless given."""

    seeds: str = "3"
    """How many seeds (3 means 0, 1, 2), or which (0,1,5). One seed shows no interval."""

    lr: str | None = None
    """A learning rate for all, or by design: prenorm=4e-3,cascade-a2=4e-3. Leadline's table unless given."""

    batch_size: int | None = None
    """Sequences in a step; the preset's unless given."""

    context: int | None = None
    """Tokens in a sequence; the preset's unless given."""

    evaluations: int = 8
    """How often in a run the held-out loss is measured."""

    evaluate_tokens: str = "65536"
    """Held-out tokens of each of these."""

    speed_rounds: int = 25
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pruning:
    """Models trained with their gradient shares, cut by every criterion: perplexity against ratio, and rank stability.

    Trains one model for each seed, then cuts them at every ratio by every criterion. Interrupted, the same command
    continues: what was trained stays.

    Example: leadline study pruning --tokens 307200 --seeds 3 --out runs/pruning
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
    """Training tokens of each model, such as 512k; the preset's unless given."""

    seeds: str = "3"
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
    """Which of vanilla, layerskip, equalised-adamw, vanilla-sgd, equalised-sgd, repeated and resnet50, separated by
    commas; all unless given. An arm's control comes with it. resnet50 needs the extra images."""

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

    repeat: str = "4x2"
    """Of the arm repeated: 4x2 runs the last 4 blocks twice."""

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


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Run a whole experiment, and write a report that says which of a paper's claims hold at this size."""

    study: tyro.conf.OmitArgPrefixes[
        Annotated[Gfa, tyro.conf.subcommand("gfa", prefix_name=False)]
        | Annotated[Cascade, tyro.conf.subcommand("cascade", prefix_name=False)]
        | Annotated[Pruning, tyro.conf.subcommand("pruning", prefix_name=False)]
    ]


def run(arguments: Arguments) -> int:
    """Runs the study. Returns 0, or 1 where a run failed."""
    if isinstance(arguments.study, Pruning):
        return _pruning(arguments.study)
    return _gfa(arguments.study) if isinstance(arguments.study, Gfa) else _cascade(arguments.study)


def _gfa(asked: Gfa) -> int:
    from leadline.cli.counts import parse_count
    from leadline.compare.plan import split_outside
    from leadline.data import resolve
    from leadline.study.gfa import GfaWish, make_plan, run_study
    from leadline.training.resolve import usable_device

    _check_workers(asked.jobs, asked.threads)
    wish = GfaWish(
        design=asked.design,
        arms=None if asked.arms is None else tuple(split_outside(asked.arms)),
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


def _cascade(asked: Cascade) -> int:
    from leadline.cli.counts import parse_count
    from leadline.compare.plan import split_outside
    from leadline.data import resolve
    from leadline.study.cascade import run_study
    from leadline.study.cascade_plan import DESIGNS, CascadeWish, make_plan
    from leadline.study.cascade_speed import SpeedOptions
    from leadline.training.resolve import usable_device

    _check_workers(asked.jobs, asked.threads)
    wish = CascadeWish(
        designs=DESIGNS if asked.designs is None else tuple(split_outside(asked.designs)),
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


def _pruning(asked: Pruning) -> int:
    from leadline.cli.counts import parse_count
    from leadline.cli.prune import Progress, numbers
    from leadline.data import resolve
    from leadline.study.pruning import PruningWish, make_plan, run_study
    from leadline.training.resolve import usable_device

    _check_workers(asked.jobs, asked.threads)
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
        jobs=asked.jobs,
        threads=asked.threads,
        command=command_line("pruning", asked),
        say=Progress(),
    )
    print_findings(results, asked.out)
    return 1 if results["failed"] else 0


def command_line(study: str, asked: Any) -> str:
    """The command that repeats these options, quoted for a shell, without what is at its default."""
    words = ["leadline", "study", study]
    for field in dataclasses.fields(asked):
        value = getattr(asked, field.name)
        if field.name != "out" and value != field.default:
            words += [f"--{field.name.replace('_', '-')}", str(value)]
    return shlex.join([*words, "--out", str(asked.out)])


def say(text: str) -> None:
    """Progress, on standard error: one line that is drawn anew on a terminal, lines elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def print_findings(results: dict[str, Any], out: Path) -> None:
    """The finding, the claims and what else is to be said, on standard output."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    print(results["headline"])
    for judgement in results["judgements"]:
        print(f"  {judgement['claim']}: {judgement['outcome'].upper()}. {judgement['evidence']}")
    for sentence in results["sentences"]:
        print(f"  {sentence}")
    print(f"report: {out / 'report.html'}")
    sys.stdout.flush()


def _check_workers(jobs: int | None, threads: int | None) -> None:
    from leadline.errors import UsageError

    for option, value in (("--jobs", jobs), ("--threads", threads)):
        if value is not None and value < 1:
            raise UsageError(f"{option} {value} is too small; 1 or more work")
