"""All criteria at several ratios, over seeds: perplexity and accuracy against ratio, and how stable the rankings are.

A seed is a model that was trained with it where several models are given, and else another calibration text (and
another number for `random`) for the one model. Units are skipped, so the models stay whole.

    asked = asked_of(models, data, config)        # also makes sure that several models differ by seed alone
    results = sweep(models, data, config, memory=SweepMemory(asked, folder / MEMORY_FILE))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from leadline.data import Batch, DataSet
from leadline.errors import LeadlineError, UsageError
from leadline.hub.open import OpenedModel
from leadline.hub.text import heldout_batches
from leadline.pruning.claim import verdict
from leadline.pruning.criteria import CRITERIA, READS_TEXT, Ranking, ScoringInputs, check_criterion, rank
from leadline.pruning.cutting import Progress, PruneConfig, parameters_of, scoring_inputs
from leadline.pruning.gradient import has_gradient, recorded_gradient
from leadline.pruning.scores import similarity
from leadline.pruning.seeds import check_seeds, hash_of_data, identity, origin_of
from leadline.pruning.select import candidates, free_units, number_to_cut
from leadline.pruning.stability import stability
from leadline.pruning.sweep_memory import SweepMemory, versions
from leadline.pruning.tasks import Task, accuracy_on, check_task
from leadline.pruning.text import quality
from leadline.stacks import Unit
from leadline.training.gradient_steps import DEFINITIONS, Definition


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """What is swept.

    Attributes:
        ratios: shares of the units to cut, ascending.
        criteria: all that fit the models unless given.
        base: the options of a single pruning; of its amount only the protected ends matter, its criterion doesn't, and
            its seed, of calibration text, only with several models.
        seeds: of calibration text, for a single model; with several models each has its own.
        task: questions to answer at each ratio.
        smallest_effect: the difference of loss, in bits per byte, below which the verdict calls it none that matters.

    Raises:
        UsageError: a ratio out of range or twice, an unknown criterion, or `normalised` without cfp.
    """

    ratios: tuple[float, ...]
    base: PruneConfig
    criteria: tuple[str, ...] | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    task: Task | None = None
    smallest_effect: float = 0.0

    def __post_init__(self) -> None:
        for ratio in self.ratios:
            if not 0 < ratio < 1:
                raise UsageError(f"--sweep has {ratio:g}; ratios lie between 0 and 1, such as 0.1,0.2,0.3,0.5")
        if not self.ratios or len(set(self.ratios)) < len(self.ratios):
            raise UsageError("--sweep has to name ratios, each once, such as 0.1,0.2,0.3,0.5")
        object.__setattr__(self, "ratios", tuple(sorted(self.ratios)))
        for name in self.criteria or ():
            check_criterion(name, "--criteria")
        if len(set(self.criteria or ())) < len(self.criteria or ()):
            raise UsageError(f"--criteria {','.join(self.criteria or ())} names a criterion twice; once works")
        if self.base.normalised and "cfp" not in (self.criteria or CRITERIA):
            raise UsageError(
                f"--normalised divides the shares that cfp reads, and --criteria {','.join(self.criteria or ())} is "
                "without it; leave --normalised out, or name cfp too"
            )


def asked_of(models: Sequence[OpenedModel], data: DataSet, config: SweepConfig) -> dict[str, Any]:
    """All that decides a sweep's numbers, as data that JSON can hold: two sweeps that ask the same find the same.

    The record of gradients is not in it, nor the definition of its share: they decide the scores of cfp alone, which
    are kept under both.

    Raises:
        UsageError, LeadlineError: what `sweep` raises before it measures anything.
    """
    base, first, several = config.base, models[0], len(models) > 1
    identities = [identity(opened) for opened in models]
    check_seeds(models, identities, base.unit)
    _cuts(first, config)
    eligible(models, config, candidates(first.stack, base.unit).repeats)
    if config.task is not None:
        check_task(config.task, first.tokenizer)
    return {
        **versions(first.kind == "hugging-face"),
        "device": str(first.stack.device),
        "models": identities,
        "data": data.hash,
        "ratios": list(config.ratios),
        "criteria": None if config.criteria is None else list(config.criteria),
        "seeds": None if several else list(config.seeds),
        "seed": base.seed if several else None,
        "task": None if config.task is None else hash_of_task(config.task),
        "unit": base.unit,
        "protect_first": base.amount.protect_first,
        "protect_last": base.amount.protect_last,
        "normalised": base.normalised,
        "calibration_tokens": base.calibration_tokens,
        **dataclasses.asdict(base.evaluation),
    }


def _cuts(opened: OpenedModel, config: SweepConfig) -> tuple[list[Unit], list[int]]:
    """What can be cut, and how much of it at each ratio."""
    found, amount = candidates(opened.stack, config.base.unit), config.base.amount
    free = free_units(found, opened.stack.blocks, amount)
    shares = (dataclasses.replace(amount, ratio=ratio, count=None) for ratio in config.ratios)
    return free, [number_to_cut(s, len(found.units), len(free), config.base.unit, "--sweep") for s in shares]


def hash_of_task(task: Task) -> str:
    """SHA-256 of a task's questions, whatever it is called."""
    return hash_of_data(dataclasses.asdict(task)["questions"])


def sweep(
    models: Sequence[OpenedModel],
    data: DataSet,
    config: SweepConfig,
    progress: Progress = lambda text: None,
    memory: SweepMemory | None = None,
) -> dict[str, Any]:
    """Measures every criterion at every ratio for every seed.

    Args:
        memory: what an interrupted sweep measured before, and where this one keeps what it measures; made of
            `asked_of` these.

    Returns:
        What `results.json` holds: `criteria` with `scores` by seed, `points` by ratio (`cut`, `quality` by seed) and
        `stability`; the same of cfp by each definition of the gradient share in `definitions`, of which `definition` is
        the one in `criteria`; `whole` by seed; `left_out` with reasons; `verdict` on claim C1.

    Raises:
        UsageError: models that don't differ by seed alone, a ratio that cuts nothing or everything, a criterion that
            was asked for and can't be measured.
        LeadlineError: a score or a loss that is not finite, or a choice of the task without tokens.
    """
    memory = SweepMemory(asked_of(models, data, config)) if memory is None else memory
    first, base, task = models[0], config.base, config.task
    found = candidates(first.stack, base.unit)
    can = eligible(models, config, found.repeats)
    running = _Sweep(models, data, config, progress, memory)
    whole = [running.loss(opened, (), "perplexity of the whole model") for opened in models]
    definitions = {name: running.criterion("cfp", name) for name in can.definitions}
    measured = {
        name: definitions[base.definition] if name == "cfp" else running.criterion(name, "sum") for name in can.criteria
    }
    results = {
        **versions(first.kind == "hugging-face"),
        "device": str(first.stack.device),
        "models": [origin_of(opened) for opened in models],
        "seeds_are": "models" if len(models) > 1 else "calibration texts",
        "seeds": [seed for _, seed in running.runs],
        "unit": base.unit,
        "units": [str(unit) for unit in found.units],
        "protected": {"first": base.amount.protect_first, "last": base.amount.protect_last},
        "ratios": list(config.ratios),
        "counts": running.counts,
        "data": {"name": data.name, "hash": data.hash},
        "reading": dataclasses.asdict(base.evaluation),
        "calibration": {"split": "train", "tokens": running.read},
        "task": None if task is None else {"name": task.name, "questions": len(task.questions)},
        "parameters": parameters_of(first.stack),
        "whole": whole,
        "criteria": measured,
        "definition": base.definition,
        "definitions": definitions,
        "smallest_effect": config.smallest_effect,
        "left_out": can.left_out,
    }
    return {**results, "verdict": verdict(results)}


class _Sweep:
    """Rankings and losses, each of which is measured once: the same units of the same model too.

    Attributes:
        runs: the model and the seed of every run.
        counts: how many units are cut at each ratio.
        read: tokens of calibration text, at most.
    """

    def __init__(
        self, models: Sequence[OpenedModel], data: DataSet, config: SweepConfig, progress: Progress, memory: SweepMemory
    ) -> None:
        self.data, self.config, self.progress, self.memory = data, config, progress, memory
        self.several = len(models) > 1
        self.runs = [(m, i) for i, m in enumerate(models)] if self.several else [(models[0], s) for s in config.seeds]
        identities = memory.asked["models"]
        self.names = {id(m): f"model {hash_of_data(i)[:16]}" for m, i in zip(models, identities, strict=True)}
        self.free, self.counts = _cuts(models[0], config)
        self.text = heldout_batches(models[0], data, **dataclasses.asdict(config.base.evaluation))
        self.read = 0

    def criterion(self, name: str, definition: Definition) -> dict[str, Any]:
        """One criterion at every ratio."""
        rankings = [self._ranking(name, definition, opened, seed) for opened, seed in self.runs]
        points: list[dict[str, Any]] = []
        for ratio, count in zip(self.config.ratios, self.counts, strict=True):
            cuts = [ranking.choose(count, self.free) for ranking in rankings]
            qualities = [
                self.loss(opened, ranking.candidates.expand(cut), f"{name}, {count} cut, seed {seed}")
                for (opened, seed), ranking, cut in zip(self.runs, rankings, cuts, strict=True)
            ]
            named = [[str(unit) for unit in cut] for cut in cuts]
            points.append({"ratio": ratio, "count": count, "cut": named, "quality": qualities})
        scores = [list(ranking.scores) for ranking in rankings]
        stable = stability(scores, {f"{p['ratio']:g}": p["cut"] for p in points})
        return {
            "scores": scores,
            "points": points,
            "stability": None if stable is None else dataclasses.asdict(stable),
            "reads_text": name in READS_TEXT,
        }

    def loss(self, opened: OpenedModel, units: Sequence[Unit], doing: str) -> dict[str, Any]:
        """How good a model is with some units skipped."""

        def measure() -> dict[str, Any]:
            self.progress(f"{opened.path.name}: {doing}")
            task = self.config.task
            with opened.stack.skipping(units):
                found = dataclasses.asdict(quality(opened.stack, self.text))
                found["task"] = None if task is None else accuracy_on(opened.stack, opened, task)
            return found

        without = " ".join(map(str, units)) or "nothing"
        return self.memory.recall(f"{self.names[id(opened)]} without {without}", measure)

    def _ranking(self, name: str, definition: Definition, opened: OpenedModel, seed: int) -> Ranking:
        """What a criterion says of a model's candidates."""
        # Models are compared on the same calibration text; `random` draws again for each.
        own = self.config.base.seed if self.several and name != "random" else seed
        base = dataclasses.replace(self.config.base, seed=own, definition=definition)
        inputs = scoring_inputs(opened, self.data, base, name, self.progress)
        self.read = max(self.read, inputs.tokens)

        def measure() -> dict[str, Any]:
            self.progress(f"{opened.path.name}: scores by {name}, seed {own}")
            found = rank(name, base.unit, inputs, self.counts, "--criteria")
            windows = None if found.windows is None else {str(n): list(row) for n, row in found.windows.items()}
            return {"scores": list(found.scores), "windows": windows}

        about = f"{name}, seed {own}"
        if inputs.gradient is not None:
            about += f", {definition} of record {hash_of_data(inputs.gradient)[:16]}"
        kept = self.memory.recall(f"{self.names[id(opened)]} scores by {about}", measure)
        return Ranking(
            criterion=name,
            candidates=candidates(opened.stack, base.unit),
            scores=tuple(kept["scores"]),
            windows=kept["windows"] and {int(n): row for n, row in kept["windows"].items()},
        )


@dataclass(frozen=True, kw_only=True)
class Eligible:
    """What can be measured, and what can't.

    Attributes:
        criteria: those that can.
        definitions: those of the gradient share by which cfp ranks; empty without cfp.
        left_out: why others can't, by name; that of a definition is `cfp by clipped`.
    """

    criteria: list[str]
    definitions: list[Definition]
    left_out: dict[str, str]


def eligible(models: Sequence[OpenedModel], config: SweepConfig, repeats: bool) -> Eligible:
    """The criteria that can be measured, and why others can't.

    Args:
        repeats: whether a block runs more than once in a pass.

    Raises:
        UsageError: one that was asked for can't; says why, and which can.
    """
    reasons: dict[str, str] = {}
    unranked: dict[Definition, str] = {}
    lacking = [str(opened.path) for opened in models if not has_gradient(opened)]
    if lacking:
        reasons["cfp"] = f"{', '.join(lacking)} has no record of gradients (gradient.json); `leadline train` keeps one"
    else:
        found = {name: "; ".join(_unusable(models, config, name)) for name in DEFINITIONS}
        unranked = {name: reason for name, reason in found.items() if reason}
        if config.base.definition in unranked:
            reasons["cfp"] = unranked[config.base.definition]
    if config.base.unit != "block":
        reasons["angular"] = "it chooses contiguous blocks"
        if (reason := _not_additive(models[0])) is not None:
            reasons["similarity"] = reason
    elif repeats:
        reasons["angular"] = "it needs blocks that run once in a pass"
    for name in config.criteria or ():
        if name in reasons:
            others = ", ".join(other for other in CRITERIA if other not in reasons)
            raise UsageError(f"--criteria {name}: {reasons[name]}; {others} work")
    names = [name for name in config.criteria or CRITERIA if name not in reasons]
    left_out = {} if config.criteria else reasons
    if "cfp" not in names:
        return Eligible(criteria=names, definitions=[], left_out=left_out)
    left_out |= {f"cfp by {name}": reason for name, reason in unranked.items()}
    return Eligible(criteria=names, definitions=[d for d in DEFINITIONS if d not in unranked], left_out=left_out)


def _unusable(models: Sequence[OpenedModel], config: SweepConfig, definition: Definition) -> list[str]:
    """Why records of gradients rank nothing by a definition; empty where all do."""
    base, reasons = config.base, []
    for opened in models:
        inputs = ScoringInputs(
            stack=opened.stack, gradient=recorded_gradient(opened), normalised=base.normalised, definition=definition
        )
        try:
            rank("cfp", base.unit, inputs)
        except LeadlineError as error:
            reasons.append(f"{opened.path}: {error}")
    return reasons


def _not_additive(opened: OpenedModel) -> str | None:
    """Why similarity can't score this model's sublayers; None where it can."""
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    try:
        similarity(opened.stack, [Batch(tokens, tokens)], "sublayer")
    except UsageError:
        return "its stream is not the sum of its sublayers' outputs"
    except LeadlineError as error:
        return str(error)
    return None
