"""`leadline probe`: what each block of a model does, measured."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TextIO

import tyro

from leadline.experiments.probe.config import ProbeConfig

LIVE_SECONDS = 0.2
PLAIN_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(ProbeConfig):
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

    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write the results to this file."""


def run(arguments: Arguments) -> int:
    """Measures and prints what stands out. Returns 0, or 1 where one of several models failed."""
    from leadline.experiments.calls import probe
    from leadline.experiments.probe.report.findings import summary
    from leadline.experiments.probe.report.values import ProbeValues
    from leadline.files import write_json

    asked = ProbeConfig(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(ProbeConfig)})
    progress = Progress(sys.stderr)
    try:
        results = probe(*arguments.models, out=arguments.out, config=asked, progress=progress).content
    finally:
        progress.close()
    if arguments.json is not None:
        write_json(arguments.json, results)
    for line in summary(ProbeValues.read(results)):
        print(line)
    print(f"report: {arguments.out / 'report.html'}")
    return 1 if any(model["status"] == "failed" for model in results["models"]) else 0


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
