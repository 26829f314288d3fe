"""Every verb as one call, with the options of the command line by their names, and a result that draws itself.

    run = ll.train("mgr", "runs/mgr", tokens=500_000)
    found = ll.compare("prenorm", "mgr", data="data/mine", tokens=500_000, seeds="3", out="runs/mine")
    ll.study("gfa", blocks=12, out="runs/gfa")
    ll.probe("runs/prenorm", "SmolLM2", parts="activations,ablation")
    ll.prune("runs/prenorm", out="smaller", criterion="cfp", ratio=0.25)

`to_pandas()` of a result is its table; in a notebook the result shows the report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadline.config import to_dict
from leadline.errors import UsageError
from leadline.experiments.outcomes import ExperimentResults, ProbeResults, PruneResults, TrainedRun

if TYPE_CHECKING:
    from leadline.experiments.engine import Experiment
    from leadline.experiments.options import ExperimentConfig
    from leadline.experiments.probe.config import ProbeConfig
    from leadline.experiments.pruning.options import PruneOptions
    from leadline.hub import OpenedModel
    from leadline.training import RunConfig


def train(config: RunConfig | str, out: Path | str, **options: Any) -> TrainedRun:
    """Trains one model, or resumes its training, in the folder `out`; see `leadline.training.train` for the rest.

    Raises:
        UsageError: an option doesn't work, or `out` holds something else.
        LeadlineError: a loss or gradient that is not finite, damaged files, a full disk, too little memory.
        KeyboardInterrupt: interrupted; the same call resumes.
    """
    from leadline.training import train

    return TrainedRun(**vars(train(config, out, **options)), out=Path(out))


def compare(*designs: str, **options: Any) -> ExperimentResults:
    """Trains designs side by side, as `leadline compare` does; see `CompareConfig` for the options.

    Raises:
        UsageError: an option doesn't work, or `out` holds something else.
        LeadlineError: the folder can't be written, or what it holds is damaged.
        KeyboardInterrupt: interrupted; the same call resumes.
    """
    from leadline.experiments.compare.config import CompareConfig

    return run_experiment(_asked(CompareConfig(designs=designs), options))


def _asked(config: ExperimentConfig, options: dict[str, Any]) -> ExperimentConfig:
    return config.replaced(**{name: Path(value) if name == "out" else value for name, value in options.items()})


def study(name: str, **options: Any) -> ExperimentResults:
    """Runs a study, as `leadline study NAME` does: "gfa", "cascade" or "pruning".

    Raises:
        UsageError: there is no such study; and as `compare`.
    """
    from leadline.experiments.studies import EXPERIMENTS

    studies = {kind.kind: config for config, kind in EXPERIMENTS.items() if kind.kind != "compare"}
    if name not in studies:
        raise UsageError(f"study {name!r} is not known; {', '.join(studies)} work")
    return run_experiment(_asked(studies[name](), options))


def probe(
    *models: Path | str | OpenedModel,
    out: Path | str | None = None,
    config: ProbeConfig | None = None,
    progress: Callable[[str, str, int, int], None] | None = None,
    **options: Any,
) -> ProbeResults:
    """Measures models along depth, as `leadline probe` does.

    Args:
        models: folders, or models that were opened with `leadline.hub.open_model`.
        out: where `results.json` and `report.html` go; nowhere unless given (`ProbeResults.write` does it later).
        options: of `ProbeConfig`, by their names.

    Raises:
        UsageError: an option doesn't work, a folder holds no model, or `out` holds something else.
        LeadlineError: the only model can't be measured.
    """
    from leadline.experiments.probe.config import ProbeConfig
    from leadline.experiments.probe.measuring import check_out, check_paths, path_of, probe_models, write_probe
    from leadline.repeating import repeating
    from leadline.training.resolve import usable_device

    chosen = dataclasses.replace(config or ProbeConfig(), **options)
    chosen.chosen_parts()
    named = [Path(model) if isinstance(model, str) else model for model in models]
    if out is not None:
        check_out(Path(out))
    check_paths(named)
    usable_device(chosen.device)
    command = repeating(["probe", *(str(path_of(model)) for model in named)], chosen, out=out)
    found = probe_models(named, chosen, command=command, progress=progress)
    if out is not None:
        write_probe(found, Path(out))
    return ProbeResults(to_dict(found), None if out is None else Path(out))


def prune(
    model: Path | str | OpenedModel,
    out: Path | str | None = None,
    *,
    config: PruneOptions | None = None,
    progress: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> PruneResults:
    """Cuts the least important units out of a model and checks what is left, as `leadline prune` does.

    Args:
        model: a folder, or a model that was opened with `leadline.hub.open_model`.
        out: a new or empty folder for the pruned model; without one the units are skipped and nothing is written.
        options: of `PruneOptions`, by their names.

    Raises:
        UsageError: an option doesn't work, or `out` holds something.
        LeadlineError: the pruned model does not compute what the original computes with the same units skipped.
    """
    from leadline.experiments.pruning.options import PruneOptions
    from leadline.hub import OpenedModel, dataset_for, open_model
    from leadline.pruning import cutting

    chosen = dataclasses.replace(config or PruneOptions(), **options)
    chosen.check_single()
    place = None if out is None else Path(out)
    if place is not None:
        cutting.check_new(place)
    opened = model if isinstance(model, OpenedModel) else open_model(model, chosen.device, layers=chosen.layers)
    data = dataset_for(opened, chosen.data, progress)
    return PruneResults(cutting.prune(opened, data, chosen.of(opened), place, progress), place)


def run_experiment(config: ExperimentConfig, say: Callable[[str], None] = lambda text: None) -> ExperimentResults:
    """The experiment that a configuration asks for, run or resumed. Raises as `compare`."""
    from leadline.data import resolve
    from leadline.experiments import engine
    from leadline.experiments.studies import EXPERIMENTS

    kind: Any = EXPERIMENTS[type(config)]
    found: Experiment[Any] = kind(config, resolve(config.data.data), say)
    content = engine.run(found, engine.command_of(found, config))
    return ExperimentResults(content, config.out, found.failed(content))


__all__: Sequence[str] = ("compare", "probe", "prune", "run_experiment", "study", "train")
