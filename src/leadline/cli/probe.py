"""`leadline probe`: what each block of a model does, measured."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from leadline.experiments.probe.config import ProbeConfig
from leadline.progress import StatusLine


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(ProbeConfig):
    """Measure one model or several along depth, and write one report that shows them side by side.

    Sizes of activations, similarity of blocks, the logit lens, gradients, what leaving out each block and sublayer
    costs, and what the connection shows of itself: depth weights, gates, streams.

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
    from leadline.experiments.probe.results import ProbeValues
    from leadline.files import write_json

    asked = ProbeConfig(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(ProbeConfig)})
    with contextlib.closing(StatusLine()) as line:

        def progress(name: str, parts: str, done: int, total: int) -> None:
            line(f"{name}: {parts}, batch {done} of {total}" if total else f"{name}: {parts}")

        results = probe(*arguments.models, out=arguments.out, config=asked, progress=progress).content
    if arguments.json is not None:
        write_json(arguments.json, results)
    for sentence in summary(ProbeValues.read(results)):
        print(sentence)
    print(f"report: {arguments.out / 'report.html'}")
    return 1 if any(model["status"] == "failed" for model in results["models"]) else 0
