"""`leadline probe`: what each block of a model does, measured."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import tyro

from leadline.cli.repeating import repeating

if TYPE_CHECKING:
    from leadline.experiments.probe.measuring import ProbeWish

LIVE_SECONDS = 0.2
PLAIN_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Measure one model or several along depth, and write one report that shows them side by side.

    Sizes of activations, likeness of blocks, the logit lens, gradients, what leaving out each block and sublayer costs,
    and what the connection shows of itself: depth weights, gates, streams.

    Example: leadline probe runs/prenorm runs/mgr --data sotu --out probe
    Example: leadline probe SmolLM2-135M --data sotu --parts activations,ablation --tokens 8k --out probe
    """

    models: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="MODEL [MODEL ...]", help_behavior_hint="(required)"),
    ]
    """Folders: a run's, a saved model's, or a Hugging Face one."""

    out: Path
    """Where results.json and report.html go."""

    data: str = "sotu"
    """sotu, a folder that `leadline data prepare` made, or text files; the held-out part is measured on."""

    tokens: str = "32k"
    """Held-out tokens at most."""

    ablation_tokens: str | None = None
    """How many of them ablation uses, which runs the model once for each block and sublayer; a quarter unless given."""

    context: int | None = None
    """Tokens in a sequence; each model's own, but 512 at most, unless given."""

    batch_size: int = 8
    """Sequences in a pass: time and memory. Of the results it changes those of gradients, each of a batch's mean."""

    parts: str = "all"
    """What to measure: all, or some of activations, similarity, lens, gradients, ablation, connection and bhyt, with
    commas between."""

    layers: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    """Where Hugging Face models keep their blocks, such as model.layers, if they are not found."""

    device: str = "cpu"
    """Where to run: cpu, cuda, cuda:1, mps."""

    seed: int = 0
    """Of the bootstrap intervals."""

    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write the results to this file."""


def run(arguments: Arguments) -> int:
    """Measures and prints what stands out. Returns 0, or 1 where one of several models failed."""
    from leadline.experiments.probe.measuring import check_out, check_paths, probe_models, write_probe
    from leadline.experiments.probe.report.findings import summary
    from leadline.experiments.probe.report.values import ProbeValues
    from leadline.files import write_json
    from leadline.training.resolve import usable_device

    asked = wish(arguments)
    check_out(arguments.out)
    check_paths(arguments.models)
    usable_device(arguments.device)
    progress = Progress(sys.stderr)
    try:
        results = probe_models(arguments.models, asked, command=command_line(arguments), progress=progress)
    finally:
        progress.close()
    write_probe(results, arguments.out)
    if arguments.json is not None:
        write_json(arguments.json, results)
    for line in summary(ProbeValues.read(results)):
        print(line)
    print(f"report: {arguments.out / 'report.html'}")
    return 1 if any(model["status"] == "failed" for model in results["models"]) else 0


def wish(arguments: Arguments) -> ProbeWish:
    """The arguments with counts as numbers.

    Raises:
        UsageError: a value that doesn't work, named with its option.
    """
    from leadline.cli.counts import parse_count
    from leadline.errors import UsageError
    from leadline.experiments.probe.measuring import ProbeWish

    tokens = parse_count(arguments.tokens, "--tokens")
    ablation = None
    if arguments.ablation_tokens is not None:
        ablation = parse_count(arguments.ablation_tokens, "--ablation-tokens")
        if ablation > tokens:
            raise UsageError(f"--ablation-tokens {ablation:,} is more than --tokens; up to {tokens:,} work")
    for option, value in (("--context", arguments.context), ("--batch-size", arguments.batch_size)):
        if value is not None and value < 1:
            raise UsageError(f"{option} {value} is too small; 1 or more work")
    if arguments.seed < 0:
        raise UsageError(f"--seed {arguments.seed} is negative; 0 or more work")
    return ProbeWish(
        data=arguments.data,
        tokens=tokens,
        ablation_tokens=ablation,
        context=arguments.context,
        batch_size=arguments.batch_size,
        parts=parts_of(arguments.parts),
        layers=arguments.layers,
        device=arguments.device,
        seed=arguments.seed,
    )


def parts_of(text: str) -> tuple[str, ...]:
    """The parts that `--parts` names, in the order in which they are measured.

    Raises:
        UsageError: one that isn't known, or none.
    """
    from leadline.errors import UsageError, did_you_mean
    from leadline.probes.measure_stack import PARTS

    named = [part.strip() for part in text.split(",") if part.strip()]
    for part in named:
        if part not in ("all", *PARTS):
            raise UsageError(
                f"--parts {part}: no such part; {', '.join(PARTS)} or all work.{did_you_mean(part, PARTS)}"
            )
    if not named:
        raise UsageError(f"--parts is empty; name some of {', '.join(PARTS)}, or all")
    return PARTS if "all" in named else tuple(part for part in PARTS if part in named)


def command_line(arguments: Arguments) -> str:
    """The command that repeats these arguments, quoted for a shell, without what is at its default."""
    return repeating(["probe", *map(str, arguments.models)], arguments, without=("models", "json"))


class Progress:
    """How far it is, on one line of a terminal, or a line every few seconds elsewhere.

    Args:
        stream: where to say it.
        clock: in seconds.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream = stream
        self.clock = clock
        self.live = stream.isatty()
        self.said: float | None = None
        self.shown = False

    def __call__(self, name: str, parts: str, done: int, total: int) -> None:
        """Tells of `done` batches of `total`, or of `parts` alone where there is no total."""
        now = self.clock()
        if self.said is not None and now - self.said < (LIVE_SECONDS if self.live else PLAIN_SECONDS):
            return
        self.said = now
        text = f"{name}: {parts}, batch {done} of {total}" if total else f"{name}: {parts}"
        if self.live:
            self.stream.write(f"\r\x1b[K{text}")
            self.shown = True
        else:
            self.stream.write(f"{text}\n")
        self.stream.flush()

    def close(self) -> None:
        """Takes the live line away."""
        if self.shown:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
            self.shown = False
