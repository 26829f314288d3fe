"""`leadline train`: one run."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from leadline.training import RunConfig
    from leadline.training.resolve import Run

LIVE_SECONDS = 0.2
PLAIN_SECONDS = 5.0
EVALUATION_SECONDS = 3.0
"""An evaluation that takes less is not spoken of."""
EXITS, SGD, WSD = "--exit-loss", "--optimizer sgd", "--schedule wsd"
PARTNERS = {EXITS: ("exit_curriculum", "exit_every", "exit_weights"), SGD: ("momentum",), WSD: ("decay",)}
"""Options that do nothing without another one."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Train one model. Stopped with Ctrl-C, the same command goes on where it was.

    Example: leadline train "mgr(streams=8)" --data sotu --preset tiny --tokens 1.2M --out runs/mgr8

    Where the gradient goes in depth, and what changes it (docs/gradient-fan-in.md):
    leadline train prenorm --optimizer sgd --equalise --out runs/equal
    leadline train prenorm --repeat 4x2 --gradient-every 50 --out runs/repeat
    leadline train prenorm --layer-dropout 0.2 --exit-loss 0.5 --out runs/layerskip
    """

    design: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DESIGN")]
    """A design's name or expression; `leadline designs` lists them."""

    out: Path
    """Where everything goes: records, checkpoints, the summary."""

    data: str = "sotu"
    """`sotu`, or a folder that `leadline data prepare` wrote."""

    preset: str = "tiny"
    """The model's shape: tiny, S, M, L, 374M, 1B or 3B."""

    tokens: str | None = None
    """Tokens to train on: 1.2M, 500k. The preset's own number unless given."""

    steps: str | None = None
    """Optimiser steps, instead of tokens."""

    blocks: int | None = None
    """Transformer blocks, instead of the preset's."""

    batch_size: int | None = None
    """Sequences in one step, instead of the preset's."""

    context: int | None = None
    """Tokens in a sequence, instead of the preset's."""

    accumulation: int = 1
    """Passes that one step is made of; the result stays the same, the memory falls."""

    lr: float | None = None
    """The peak learning rate; the design's own for this preset unless given."""

    warmup: float = 0.05
    """Share of the steps in which the learning rate rises."""

    schedule: Literal["cosine", "wsd"] = "cosine"
    """cosine, or wsd: steady, then linear decay."""

    decay: float | None = None
    """Share of the steps in which wsd decays; 0.2 unless given."""

    final_fraction: float = 0.1
    """The learning rate at the end, as a share of the peak."""

    weight_decay: float = 0.1
    """On matrices; norms, gains, biases, embeddings and connections take none."""

    decay_embeddings: bool = False
    """Weight decay on the embedding too."""

    clip: float | None = 1.0
    """The largest gradient norm; None clips nothing."""

    seed: int = 0
    """Of the weights and of the order of the data."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 is autocast; parameters stay float32."""

    backend: Literal["auto", "reference", "lean", "compiled", "triton"] = "auto"
    """Of the operators along depth. On a CPU auto is lean; compiled is faster and takes half a minute to start."""

    compile: bool = False
    """Run the model through torch.compile, as a whole."""

    compile_blocks: bool = False
    """Compile block by block, once for each kind of block: it starts sooner where many blocks are alike."""

    loss_chunk: int | None = None
    """Tokens whose logits exist at once; less memory with a large vocabulary. Large batches are cut anyway."""

    recompute: bool = False
    """Recompute each block in the backward pass: less memory, more time."""

    evaluate_every: int | None = None
    """Steps between evaluations on held-out text; ten in a run unless given."""

    evaluate_tokens: str | None = None
    """Held-out tokens that one evaluation reads at most. Unless given 65,536, or as many as cost a fifth of the steps
    between two evaluations, if that is fewer."""

    record_every: int = 50
    """Steps between depth records; 0 keeps none."""

    checkpoint_every: int | None = None
    """Steps between checkpoints; unless given, one every ten minutes. At the end and at Ctrl-C there is one anyway."""

    keep: int = 2
    """How many checkpoints stay."""

    resume: Literal["newest", "previous", "never"] = "newest"
    """Where a run that is in --out goes on: at its newest checkpoint, at the one before it (where the newest is
    damaged), or not at all."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    """sgd is with momentum; its learning rate is another one than AdamW's."""

    momentum: float | None = None
    """Of sgd; 0.9 unless given."""

    equalise: bool = False
    """Rescale the gradients of all blocks to the same norm in each step. AdamW nearly undoes it; sgd does not."""

    equalise_updates: bool = False
    """Rescale the updates of all blocks to the same norm in each step, weight decay apart."""

    repeat: Annotated[str | None, tyro.conf.arg(metavar="KxR")] = None
    """4x2 runs the last 4 blocks twice, with the same parameters."""

    layer_dropout: float = 0.0
    """LayerSkip: how often the last block is dropped, for a whole batch; earlier ones less, the first never."""

    exit_loss: float = 0.0
    """LayerSkip: what the losses at early exits weigh together, beside the final loss's 1; 0 has no exits."""

    exit_curriculum: Literal["rotational", "gradual", "all"] | None = None
    """Which exits a step has: one in --exit-every in turn, which is rotational and what it is unless given; from the
    last to the first over half the run; or all."""

    exit_every: int | None = None
    """Of the rotational curriculum; a quarter of the blocks unless given."""

    exit_weights: Literal["even", "depth"] | None = None
    """How a step's exits share --exit-loss: evenly, unless given, or the more the deeper they are."""

    gradient_from: int = 1
    """The first step that the gradient share counts."""

    gradient_until: int | None = None
    """The last step that it counts; all unless given."""

    gradient_every: int = 0
    """Steps between records of the gradients' effective rank and diversity, which cost time; 0 keeps none."""

    device: str = "cpu"
    """Where to run: cpu, cuda."""

    tensorboard: bool = False
    """Also write TensorBoard events into the folder."""

    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write the summary to this file."""


def run(arguments: Arguments) -> int:
    """Trains; returns 0."""
    from leadline.config import to_dict
    from leadline.files import write_json
    from leadline.training import train

    config = configuration(arguments)
    with progress() as told:
        try:
            summary = train(
                config,
                arguments.out,
                resume=arguments.resume,
                on_step=told,
                on_evaluation=told.evaluating,
                on_evaluated=told.evaluated,
                on_start=told.starting,
            )
        except KeyboardInterrupt:
            print(f"\nstopped; the same command goes on from the newest checkpoint in {arguments.out}", file=sys.stderr)
            raise
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


def configuration(arguments: Arguments) -> RunConfig:
    """The run that the arguments describe.

    Raises:
        UsageError: a value doesn't work, or tokens and steps are both given.
    """
    from leadline.cli.counts import parse_count
    from leadline.designs import preset_named
    from leadline.errors import UsageError
    from leadline.training import RunConfig

    _check_partners(arguments)
    tokens = None if arguments.tokens is None else parse_count(arguments.tokens, "--tokens")
    if arguments.steps is not None:
        if tokens is not None:
            raise UsageError("--tokens and --steps both say how long to train; give one")
        preset = preset_named(arguments.preset)
        sequence = preset.context if arguments.context is None else arguments.context
        sequences = preset.batch_size if arguments.batch_size is None else arguments.batch_size
        for option, value in (("--context", sequence), ("--batch-size", sequences)):
            if value < 1:
                raise UsageError(f"{option} {value} is too small; 1 or more work")
        tokens = parse_count(arguments.steps, "--steps") * sequence * sequences
    fields = {f.name for f in dataclasses.fields(RunConfig)}
    values: dict[str, Any] = {f.name: getattr(arguments, f.name) for f in dataclasses.fields(arguments)}
    unset = [name for names in PARTNERS.values() for name in names if getattr(arguments, name) is None]
    values = {name: value for name, value in values.items() if name in fields and name not in unset}
    values["tokens"] = tokens
    if arguments.evaluate_tokens is not None:
        values["evaluate_tokens"] = parse_count(arguments.evaluate_tokens, "--evaluate-tokens")
    shape = {} if arguments.blocks is None else {"blocks": arguments.blocks}
    return RunConfig(**values, learning_rate=arguments.lr, shape=shape)


def _check_partners(arguments: Arguments) -> None:
    """Raises UsageError where an option is given that does nothing without another."""
    from leadline.errors import UsageError

    absent = {
        EXITS: arguments.exit_loss == 0,
        SGD: arguments.optimizer != "sgd",
        WSD: arguments.schedule != "wsd",
    }
    for partner, names in PARTNERS.items():
        for name in names:
            value = getattr(arguments, name)
            if absent[partner] and value is not None:
                option = f"--{name.replace('_', '-')} {value}"
                raise UsageError(f"{option} does nothing without {partner}; give both, or none of them")
    if arguments.decay_embeddings and arguments.weight_decay == 0:
        raise UsageError("--decay-embeddings does nothing with --weight-decay 0; give one of them")
    if arguments.exit_every is not None and arguments.exit_curriculum not in (None, "rotational"):
        raise UsageError(
            f"--exit-every {arguments.exit_every} belongs to --exit-curriculum rotational; give one of them"
        )


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """Returns what to call after each step. On standard error: one live line on a terminal, else a line now and then.

    What is worth keeping, such as a held-out loss, is a line of its own on a terminal too.
    """
    if not sys.stderr.isatty():
        yield Progress(lambda line: print(line, file=sys.stderr, flush=True), PLAIN_SECONDS)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        yield Progress(
            lambda line: live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True),
            LIVE_SECONDS,
            keep=lambda line: live.console.print(Text(line)),
        )


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
        self.pace = Pace(clock)

    def starting(self, run: Run) -> None:
        """Before the model is built."""
        for line in plan_lines(run):
            self.keep(line)

    def evaluated(self, told: dict[str, Any]) -> None:
        """After an evaluation."""
        self.keep(f"step {told['step']}  held-out loss {told['loss']:.4f}  {told['bits_per_byte']:.4f} bits per byte")

    def __call__(self, told: dict[str, Any]) -> None:
        """After a step."""
        if self.pace.due(told, self.every):
            self.say(self.pace.line(told))

    def evaluating(self, step: int, seconds: float) -> None:
        """During the evaluation after step `step`, `seconds` since it began."""
        if seconds >= EVALUATION_SECONDS and self.pace.passed(self.every):
            self.say(f"step {step}  evaluating for {duration(seconds)}  Ctrl-C takes effect after it")


def plan_lines(run: Run) -> list[str]:
    """What a run will do, before its first step: how long it is, what evaluations read, and whether it compiles."""
    from leadline.training.resolve import EVALUATE_TOKENS

    config, train, heldout = run.config, run.data.train, run.data.heldout
    length = f"{run.steps:,} steps of {run.batch_tokens:,} tokens"
    if run.epochs > 1:
        length += f": {run.epochs:,.1f} epochs of {train.windows(run.context) * run.context:,} tokens"
    whole = heldout.windows(run.context) * run.context
    read = min(max(run.evaluate_tokens // run.context, 1) * run.context, whole)
    every = "step" if run.evaluate_every == 1 else f"{run.evaluate_every:,} steps"
    evaluations = f"an evaluation every {every}, on {read:,} held-out tokens"
    if read < min(EVALUATE_TOKENS, whole):
        evaluations += f" of {whole:,} (--evaluate-tokens sets how many)"
    lines = [length, evaluations]
    if config.compile or config.compile_blocks or config.backend == "compiled":
        what = "the model" if config.compile or config.compile_blocks else "the operators along depth"
        lines.append(f"compiling {what}: nothing more is said until the first step is done, which can take minutes")
    return lines


class Pace:
    """When to say something, and how long the run still takes.

    Args:
        clock: in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.said = -math.inf
        self.first: tuple[float, int] | None = None

    def due(self, told: dict[str, Any], every: float) -> bool:
        """Whether to say something of this step: the first, the last, and one in `every` seconds."""
        if self.first is None:
            self.first = (self.clock(), told["step"])
        return self.passed(0.0 if told["step"] == told["steps"] else every)

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


def duration(seconds: float) -> str:
    """`4 min 10 s`, as people say it."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
