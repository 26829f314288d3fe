"""`leadline train`: one run."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from leadline.progress import StatusLine
from leadline.report.words import duration
from leadline.sections import Positive
from leadline.training.config import RunConfig

if TYPE_CHECKING:
    from leadline.training.resolve import Run

EVALUATION_SECONDS = 3.0
"""An evaluation that takes less is not spoken of."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(RunConfig):
    """Train one model. Stopped with Ctrl-C, rerun the same command to resume.

    Example: leadline train "mgr(streams=8)" --data sotu --preset tiny --tokens 1.2M --out runs/mgr8

    Where the gradient goes in depth, and what changes it (docs/gradient-fan-in.md):
      leadline train prenorm --optimizer sgd --equalise --out runs/equal
      leadline train prenorm --repeat 4x2 --gradient-every 50 --out runs/repeat
      leadline train prenorm --layer-dropout 0.2 --exit-loss 0.5 --out runs/layerskip

    A run that has ended, made longer: leadline train mgr --out runs/mgr --extend 2M
    """

    out: Path
    """Where everything goes: records, checkpoints, the summary."""

    resume: Literal["newest", "previous", "never"] = "newest"
    """A run in --out resumes at its newest checkpoint, the one before it (if damaged), or not at all."""

    extend: Positive | None = None
    """Tokens to train on beyond the end of the run in --out, with its own options (docs/training.md)."""

    nproc: Positive | None = None
    """Start so many processes on this machine, which train together; torchrun does so on several."""

    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write the summary to this file."""


def run(arguments: Arguments) -> int:
    """Trains; returns 0."""
    from leadline.config import to_dict
    from leadline.distributed.world import ranks
    from leadline.files import write_json
    from leadline.training import train

    config = RunConfig(design=arguments.design, seed=arguments.seed, **arguments.sections())
    if (arguments.nproc or 1) > 1 and ranks() == (0, 0, 1):
        return _launched(arguments, config)
    with progress() as told:
        try:
            summary = train(
                config,
                arguments.out,
                resume=arguments.resume,
                extend=arguments.extend,
                on_step=told,
                on_evaluation=told.evaluating,
                on_evaluated=told.evaluated,
                on_start=told.starting,
            )
        except KeyboardInterrupt:
            print(f"\nstopped; rerun the same command to resume what is saved in {arguments.out}", file=sys.stderr)
            raise
    if ranks()[0] > 0:
        return 0
    print(
        f"{config.design}: {summary.bits_per_byte:.4f} bits per byte held out, loss {summary.loss:.4f}, "
        f"{summary.tokens:,} tokens at {summary.tokens_per_second:,.0f} a second, "
        f"{summary.parameters:,} parameters, {summary.flops_per_token:,} FLOPs a token"
    )
    for note in summary.notes:
        print(f"note: {note}")
    if arguments.json is not None:
        write_json(arguments.json, to_dict(summary))
    return 0


def _launched(arguments: Arguments, config: RunConfig) -> int:
    """Trains in several processes; what does not work is said once, before any of them starts."""
    from leadline.distributed import World, launch
    from leadline.distributed.world import layout
    from leadline.experiments.machine import cores
    from leadline.repeating import repeating
    from leadline.training.resolve import check_parallel, decide

    size = arguments.nproc or 1
    layout(config.parallel.replicate, config.parallel.shard, size)
    if arguments.extend is None:
        check_parallel(decide(config), World(size=size))
    words = shlex.split(repeating(["train", config.design], arguments, without=("design", "nproc")))
    return launch(words[1:], size, max(1, cores() // size))


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """Returns what to call after each step. On standard error: one live line on a terminal, else a line now and then.

    What is worth keeping, such as a held-out loss, is a line of its own on a terminal too.
    """
    with contextlib.closing(StatusLine()) as line:
        yield Progress(line.show, line.every, keep=line.keep)


class Progress:
    """Says how far a run is: what it will do, a step's record, held-out losses, or that it evaluates.

    Args:
        say: takes a line.
        every: seconds between two lines.
        clock: in seconds.
        keep: takes a line that must not be replaced by the next; `say` unless given.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        every: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        keep: Callable[[str], None] | None = None,
    ) -> None:
        self.say, self.every = say, every
        self.keep = say if keep is None else keep
        self.clock = clock
        self.said = -math.inf
        self.first: tuple[float, int] | None = None

    def starting(self, run: Run) -> None:
        """Before the model is built."""
        for line in plan_lines(run):
            self.keep(line)

    def evaluated(self, told: dict[str, Any]) -> None:
        """After an evaluation."""
        self.keep(f"step {told['step']}  held-out loss {told['loss']:.4f}  {told['bits_per_byte']:.4f} bits per byte")

    def __call__(self, told: dict[str, Any]) -> None:
        """After a step."""
        if self.due(told):
            self.say(self.line(told))

    def evaluating(self, step: int, seconds: float) -> None:
        """During the evaluation after step `step`, `seconds` since it began."""
        if seconds >= EVALUATION_SECONDS and self.passed(self.every):
            self.say(f"step {step}  evaluating for {duration(seconds)}  Ctrl-C takes effect after it")

    def due(self, told: dict[str, Any]) -> bool:
        """Whether to say something of this step: the first, the last, and one in `every` seconds."""
        if self.first is None:
            self.first = (self.clock(), told["step"])
        return self.passed(0.0 if told["step"] == told["steps"] else self.every)

    def passed(self, every: float) -> bool:
        """Whether `every` seconds have passed since something was said; then something is said now."""
        now = self.clock()
        if now - self.said < every:
            return False
        self.said = now
        return True

    def line(self, told: dict[str, Any]) -> str:
        """The step in words. The time left is judged by the steps after this command's first, which is slow."""
        words = [f"step {told['step']}/{told['steps']}"]
        begin, step = self.first or (0.0, 0)
        if told["step"] > step:
            each = (self.clock() - begin) / (told["step"] - step)
            words.append(f"{duration(each * (told['steps'] - told['step']))} left")
        words += [
            f"loss {told['loss']:.4f}",
            f"lr {told['lr']:.2e}",
            f"norm {told['grad_norm']:.2f}",
            f"{told['tokens_per_second']:,.0f} tokens/s",
        ]
        return "  ".join(words)


def plan_lines(run: Run) -> list[str]:
    """What a run will do, before its first step: how long it is, what evaluations read, and whether it compiles."""
    from leadline.distributed.world import layout, ranks
    from leadline.training.extending import extension
    from leadline.training.resolve import EVALUATE_TOKENS

    config, train, heldout = run.config.runtime, run.data.train, run.data.heldout
    length = f"{run.steps:,} steps of {run.batch_tokens:,} tokens"
    if run.epochs > 1:
        length += f": {run.epochs:,.1f} epochs of {train.windows(run.context) * run.context:,} tokens"
    whole = heldout.windows(run.context) * run.context
    read = min(max(run.evaluate_tokens // run.context, 1) * run.context, whole)
    every = "step" if run.evaluate_every == 1 else f"{run.evaluate_every:,} steps"
    evaluations = f"an evaluation every {every}, on {read:,} held-out tokens"
    if read < min(EVALUATE_TOKENS, whole):
        evaluations += f" of {whole:,} (--evaluate-tokens sets how many)"
    lines = [*filter(None, [extension(run)]), length, evaluations]
    size = ranks()[2]
    if size > 1:
        copies, parts = layout(run.config.parallel.replicate, run.config.parallel.shard, size)
        each = run.batch_size // size
        lines.append(f"{size} processes: replicate {copies} × shard {parts}, {each} of {run.batch_size} sequences each")
    if config.compile or config.compile_blocks or config.backend == "compiled":
        what = "the model" if config.compile or config.compile_blocks else "the depth operators"
        lines.append(f"compiling {what}: nothing more is said until the first step is done, which can take minutes")
    return lines
