"""Pruning one model: score, choose, remove, evaluate, heal, save, reload, compare; success is reported last.

In memory there are the whole model, whose weights the pruned one shares until it is healed, and the reloaded one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from leadline import __version__
from leadline.data import Batch, DataSet
from leadline.errors import LeadlineError, UsageError
from leadline.files import write_json
from leadline.hub.agreement import check_logits
from leadline.hub.new_folder import check_new as check_new
from leadline.hub.new_folder import placed
from leadline.hub.open import OpenedModel
from leadline.hub.text import Text, heldout_batches, training_batches
from leadline.pruning.criteria import READS_TEXT, Ranking, ScoringInputs, check_criterion, rank
from leadline.pruning.gradient import has_gradient, kept_gradient, recorded_gradient
from leadline.pruning.healing import Healing, heal
from leadline.pruning.seeds import RECORD, origin_of
from leadline.pruning.select import KINDS, Amount, Candidates, candidates, explicit, free_units, number_to_cut
from leadline.pruning.speed import Timing, compare_speed
from leadline.pruning.surgery import check_saving, own_weights, remove_units, write_and_reload
from leadline.pruning.text import EvaluationSettings, quality
from leadline.stacks import Stack, Unit
from leadline.training.gradient_file import write_gradient
from leadline.training.gradient_steps import DEFINITIONS, Definition

CHECKED_TOKENS = 48
MATCHES = "the pruned model against the original with the same units skipped"

Progress = Callable[[str], None]
"""Where progress goes: a line at a time."""


@dataclass(frozen=True, kw_only=True)
class PruneConfig:
    """What is to be cut, and how that is judged.

    Attributes:
        amount: how much, or what.
        evaluation: how held-out text is read.
        criterion: what chooses; None where `amount.blocks` names the units.
        unit: "block" or "sublayer".
        normalised, definition: of cfp, see `ScoringInputs`.
        calibration_tokens: that criteria read, from the training split.
        seed: of the calibration text and of `random`.
        heal: a fine-tune of the pruned model.
        speed: a measurement before and after.

    Raises:
        UsageError: neither a criterion nor a list, or both.
    """

    amount: Amount
    evaluation: EvaluationSettings
    criterion: str | None = None
    unit: str = "block"
    normalised: bool = False
    definition: Definition = "sum"
    calibration_tokens: int = 8192
    seed: int = 0
    heal: Healing | None = None
    speed: Timing | None = None

    def __post_init__(self) -> None:
        for option, value, known in (("unit", self.unit, KINDS), ("gradient-definition", self.definition, DEFINITIONS)):
            if value not in known:
                raise UsageError(f"--{option} {value} is not known; {', '.join(known)} work")
        if self.criterion is not None:
            check_criterion(self.criterion)
        if (self.criterion is None) == (self.amount.blocks is None):
            given = "--blocks says what to cut and --criterion chooses it; give one of them"
            raise UsageError(given if self.criterion else "--criterion is missing: it says what chooses the blocks")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is cut, and why. `cut` holds candidates; `units` all their runs; `read` counts the tokens scored on."""

    found: Candidates
    cut: list[Unit]
    ranking: Ranking | None = None
    read: int = 0

    @property
    def units(self) -> list[Unit]:
        return self.found.expand(self.cut)


def prune(
    opened: OpenedModel, data: DataSet, config: PruneConfig, out: Path | None, progress: Progress = lambda text: None
) -> dict[str, Any]:
    """Prunes a model into the folder `out`, which appears whole or not at all.

    Args:
        out: a new or empty folder; None evaluates without removing anything (the units are skipped).

    Returns:
        What `prune.json` holds.

    Raises:
        UsageError: an option that doesn't fit, or a folder that holds something.
        LeadlineError: the pruned model does not compute what the original computes with the same units skipped, or does
            not come back the same from its folder.
    """
    if out is not None:
        check_new(out)
        check_saving(opened)
    if has_gradient(opened):
        recorded_gradient(opened)  # a damaged one is reported now, not after minutes of measuring
    choice = choose(opened, data, config, progress)
    # Units that can't be removed are refused before anything is measured.
    pruned, changed = (None, {}) if out is None else remove_units(opened.stack, choice.units)
    text = heldout_batches(opened, data, **dataclasses.asdict(config.evaluation))
    record = _record(opened, data, config, choice)
    progress("perplexity of the whole model")
    record["before"] = dataclasses.asdict(quality(opened.stack, text))
    progress("perplexity with the chosen units skipped")
    with opened.stack.skipping(choice.units):
        record["after"] = dataclasses.asdict(quality(opened.stack, text))
    if out is not None and pruned is not None:
        with torch.no_grad(), opened.stack.skipping(choice.units):
            tokens = text.batches[0].tokens[:2, :CHECKED_TOKENS].to(opened.stack.device)
            expected = opened.stack.logits(tokens)
        with torch.no_grad():
            surgery = check_logits(expected, pruned.logits(tokens), MATCHES)
        record["parameters"]["after"] = after = parameters_of(pruned)
        if choice.units and after >= (before := parameters_of(opened.stack)):
            raise LeadlineError(f"the pruned model has {after:,} parameters and the whole one {before:,}")
        if config.heal is not None:
            pruned = own_weights(pruned)
            record["healed"] = _heal(pruned, data, text, config.heal, progress)
        if config.speed is not None:
            record["speed"] = compare_speed(opened.stack, pruned, config.speed, progress)
        progress("saving, reloading and comparing")
        with placed(out, "pruned") as hidden:
            reload = write_and_reload(pruned, changed, opened, hidden, tokens)
            record["checked"] = {"surgery": surgery, "reload": reload, "tokens": tokens.numel()}
            if record["gradient"] is not None:
                write_gradient(hidden, record["gradient"])
            write_json(hidden / RECORD, record)
    return record


def choose(opened: OpenedModel, data: DataSet, config: PruneConfig, progress: Progress = lambda text: None) -> Choice:
    """The units to cut. Errors as for `prune`."""
    stack, amount = opened.stack, config.amount
    found = candidates(stack, config.unit)
    if config.criterion is None:
        return Choice(found=found, cut=explicit(amount, stack, found))
    free = free_units(found, stack.blocks, amount)
    count = number_to_cut(amount, len(found.units), len(free), config.unit)
    inputs = scoring_inputs(opened, data, config, config.criterion, progress)
    ranking = rank(config.criterion, config.unit, inputs, [count])
    return Choice(found=found, cut=ranking.choose(count, free), ranking=ranking, read=inputs.tokens)


def scoring_inputs(
    opened: OpenedModel, data: DataSet, config: PruneConfig, criterion: str, progress: Progress = lambda text: None
) -> ScoringInputs:
    """What a criterion needs: the record of gradients for cfp, calibration text for those that read."""
    batches: list[Batch] = []
    if criterion in READS_TEXT:
        context, size = config.evaluation.context, config.evaluation.batch_size
        tokens, seed = config.calibration_tokens, config.seed
        batches = training_batches(opened, data, context=context, tokens=tokens, batch_size=size, seed=seed)
    return ScoringInputs(
        stack=opened.stack,
        batches=batches,
        gradient=recorded_gradient(opened) if criterion == "cfp" else None,
        seed=config.seed,
        normalised=config.normalised,
        definition=config.definition,
        progress=lambda done, of: progress(f"{criterion}: {done} of {of}"),
    )


def _heal(stack: Stack, data: DataSet, text: Text, healing: Healing, progress: Progress) -> dict[str, Any]:
    def report(step: int, steps: int, loss: float) -> None:
        progress(f"healing: step {step} of {steps}, loss {loss:.4f}")

    heal(stack, data.train, healing, report, begins=text.begins)
    try:
        healed = quality(stack, text)
    except LeadlineError as error:
        raise LeadlineError(
            f"--heal-lr {healing.learning_rate:g} left a model whose held-out loss is no use; a lower one may do better"
        ) from error
    return {**dataclasses.asdict(healed), "healing": {**dataclasses.asdict(healing), "steps": healing.steps}}


def _record(opened: OpenedModel, data: DataSet, config: PruneConfig, choice: Choice) -> dict[str, Any]:
    found, ranking, size = choice.found, choice.ranking, len(choice.cut)
    windows = None if ranking is None or ranking.windows is None or not size else ranking.windows[size]
    read = {"split": "train", "tokens": choice.read, "context": config.evaluation.context}
    gradient = None
    if has_gradient(opened):
        gradient = kept_gradient(recorded_gradient(opened), opened.stack, found, choice.cut)
    return {
        "leadline": __version__,
        "torch": torch.__version__,
        "origin": origin_of(opened),
        "criterion": config.criterion or "blocks",
        "normalised": config.normalised,
        "gradient_definition": config.definition if config.criterion == "cfp" else None,
        "unit": config.unit,
        "amount": dataclasses.asdict(config.amount),
        "seed": config.seed,
        "blocks": opened.stack.blocks,
        "cut": [str(unit) for unit in choice.cut],
        "kept": [str(unit) for unit in found.kept(choice.cut)],
        "scores": None if ranking is None else {str(u): s for u, s in zip(found.units, ranking.scores, strict=True)},
        "windows": None if windows is None else {"blocks": size, "angles": list(windows)},
        "data": {"name": data.name, "hash": data.hash, "heldout_tokens": config.evaluation.tokens},
        "calibration": read if config.criterion in READS_TEXT else None,
        "before": None,
        "after": None,
        "healed": None,
        "parameters": {"before": parameters_of(opened.stack), "after": None},
        "speed": None,
        "checked": None,
        "gradient": gradient,
    }


def parameters_of(stack: Stack) -> int:
    """How many a model has, shared ones once."""
    return sum(parameter.numel() for parameter in stack.model.parameters())
