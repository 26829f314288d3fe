"""Pruning one model: score, choose, check, heal, save, load again, compare; success is said last."""

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
from leadline.hub.agreement import check_same_logits
from leadline.hub.new_folder import check_new as check_new
from leadline.hub.new_folder import placed
from leadline.hub.text import Text
from leadline.pruning.candidates import Candidates, candidates
from leadline.pruning.criteria import READS_TEXT, Evidence, Ranking, check_criterion, rank
from leadline.pruning.gradient import kept_gradient
from leadline.pruning.healing import Healing, heal
from leadline.pruning.select import Amount, explicit, free_units, number_to_cut
from leadline.pruning.speed import Timing, compare_speed
from leadline.pruning.subject import RECORD, Subject
from leadline.pruning.text import Reading, quality
from leadline.stacks import Stack, Unit
from leadline.training.gradient_file import write_gradient
from leadline.training.gradient_steps import DEFINITIONS, Definition

CHECKED_TOKENS = 48

Say = Callable[[str], None]
"""Where progress goes: a line at a time."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is to be cut, and how that is judged.

    Attributes:
        amount: how much, or what.
        criterion: what chooses; None where `amount.blocks` names the units.
        unit: "block" or "sublayer".
        normalised, definition: of cfp, see `Evidence`.
        reading: how held-out text is read.
        calibration_tokens: that criteria read, from the training part.
        seed: of the calibration text and of `random`.
        heal: a fine-tune after the cut.
        speed: a measurement before and after.

    Raises:
        UsageError: neither a criterion nor a list, or both.
    """

    amount: Amount
    reading: Reading
    criterion: str | None = None
    unit: str = "block"
    normalised: bool = False
    definition: Definition = "sum"
    calibration_tokens: int = 8192
    seed: int = 0
    heal: Healing | None = None
    speed: Timing | None = None

    def __post_init__(self) -> None:
        if self.unit not in ("block", "sublayer"):
            raise UsageError(f"--unit {self.unit} is not known; block and sublayer work")
        if self.definition not in DEFINITIONS:
            raise UsageError(f"--gradient-definition {self.definition} is not known; {', '.join(DEFINITIONS)} work")
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
    units: list[Unit]
    ranking: Ranking | None
    read: int = 0


def prune(
    subject: Subject, data: DataSet, wish: Wish, out: Path | None, say: Say = lambda text: None
) -> dict[str, Any]:
    """Prunes the subject into the folder `out`, which appears whole or not at all.

    Args:
        out: a new or empty folder; None measures without cutting (passing the units by).
        say: progress.

    Returns:
        What `prune.json` holds.

    Raises:
        UsageError: an option that doesn't fit, or a folder that holds something.
        LeadlineError: the cut model does not say what passing by says, or does not come back the same from its folder.
    """
    if out is not None:
        check_new(out)
        subject.check_saving()
    if subject.has_gradient:
        subject.gradient()  # a damaged one is said now, not after minutes of measuring
    choice = choose(subject, data, wish, say)
    if out is not None:
        subject.check_cut(choice.units)
    stack = subject.stack
    say("perplexity of the whole model")
    text = subject.heldout(data, wish.reading)
    whole = quality(stack, text)
    say("perplexity with the cut passed by")
    with stack.skipping(choice.units):
        passed = quality(stack, text)
    record = _record(subject, data, wish, choice)
    record["before"], record["after"] = dataclasses.asdict(whole), dataclasses.asdict(passed)
    if out is not None:
        _operate(subject, data, text, wish, choice, out, record, say)
    return record


def choose(subject: Subject, data: DataSet, wish: Wish, say: Say = lambda text: None) -> Choice:
    """The units to cut. Errors as for `prune`."""
    stack, amount = subject.stack, wish.amount
    found = candidates(stack, wish.unit)
    if wish.criterion is None:
        cut = explicit(amount, stack, found)
        return Choice(found=found, cut=cut, units=found.expand(cut), ranking=None)
    free = free_units(found, stack.blocks, amount)
    count = number_to_cut(amount, len(found.units), len(free), wish.unit)
    evidence = evidence_for(subject, data, wish, wish.criterion, say)
    ranking = rank(wish.criterion, wish.unit, evidence, [count])
    cut = ranking.choose(count, free)
    return Choice(found=found, cut=cut, units=found.expand(cut), ranking=ranking, read=evidence.tokens)


def evidence_for(subject: Subject, data: DataSet, wish: Wish, criterion: str, say: Say = lambda text: None) -> Evidence:
    """What a criterion needs: the record of gradients for cfp, calibration text for those that read."""
    batches: list[Batch] = []
    if criterion in READS_TEXT:
        batches = subject.calibration(data, wish.reading, tokens=wish.calibration_tokens, seed=wish.seed)
    return Evidence(
        stack=subject.stack,
        batches=batches,
        gradient=subject.gradient() if criterion == "cfp" else None,
        seed=wish.seed,
        normalised=wish.normalised,
        definition=wish.definition,
        say=lambda done, of: say(f"{criterion}: {done} of {of}"),
    )


def _operate(
    subject: Subject,
    data: DataSet,
    text: Text,
    wish: Wish,
    choice: Choice,
    out: Path,
    record: dict[str, Any],
    say: Say,
) -> None:
    """The cut itself, with all its checks; fills the record and makes the folder."""
    stack = subject.stack
    tokens = text.batches[0].tokens[:2, :CHECKED_TOKENS].to(stack.device)
    with torch.no_grad(), stack.skipping(choice.units):
        expected = stack.logits(tokens)
    say("cutting")
    smaller = subject.cut(choice.units)
    with torch.no_grad():
        surgery = check_same_logits(expected, smaller.logits(tokens), "the cut model against passing by")
    parameters = sum(parameter.numel() for parameter in smaller.model.parameters())
    if choice.units and parameters >= subject.parameters:
        raise LeadlineError(f"the cut model has {parameters:,} parameters and the whole one {subject.parameters:,}")
    record["parameters"]["after"] = parameters
    if wish.heal is not None:
        record["healed"] = _heal(smaller, data, text, wish.heal, say)
    if wish.speed is not None:
        record["speed"] = compare_speed(stack, smaller, wish.speed, say)
    say("saving, loading again and comparing")
    with placed(out, "pruned") as hidden:
        _, reload = subject.save(smaller, choice.units, hidden, tokens, healed=wish.heal is not None)
        record["checked"] = {"surgery": surgery, "reload": reload, "tokens": tokens.numel()}
        if record["gradient"] is not None:
            write_gradient(hidden, record["gradient"])
        write_json(hidden / RECORD, record)


def _heal(smaller: Stack, data: DataSet, text: Text, healing: Healing, say: Say) -> dict[str, Any]:
    def told(step: int, steps: int, loss: float) -> None:
        say(f"healing: step {step} of {steps}, loss {loss:.4f}")

    heal(smaller, data.train, healing, told, begins=text.begins)
    try:
        healed = quality(smaller, text)
    except LeadlineError as error:
        raise LeadlineError(
            f"--heal-lr {healing.learning_rate:g} left a model whose held-out loss is no use; a lower one may do better"
        ) from error
    return {**dataclasses.asdict(healed), "healing": {**dataclasses.asdict(healing), "steps": healing.steps}}


def _record(subject: Subject, data: DataSet, wish: Wish, choice: Choice) -> dict[str, Any]:
    found, ranking = choice.found, choice.ranking
    text = None
    if wish.criterion in READS_TEXT:
        text = {"split": "train", "tokens": choice.read, "context": wish.reading.context}
    gradient = None
    if subject.has_gradient:
        gradient = kept_gradient(subject.gradient(), subject.stack, found, choice.cut)
    return {
        "leadline": __version__,
        "torch": torch.__version__,
        "origin": subject.origin,
        "criterion": wish.criterion or "blocks",
        "normalised": wish.normalised,
        "gradient_definition": wish.definition if wish.criterion == "cfp" else None,
        "unit": wish.unit,
        "amount": dataclasses.asdict(wish.amount),
        "seed": wish.seed,
        "blocks": subject.stack.blocks,
        "cut": [str(unit) for unit in choice.cut],
        "kept": [str(unit) for unit in found.kept(choice.cut)],
        "scores": None if ranking is None else {str(u): s for u, s in zip(found.units, ranking.scores, strict=True)},
        "windows": None if ranking is None or ranking.windows is None else _windows(ranking, len(choice.cut)),
        "data": {"name": data.name, "hash": data.hash, "heldout_tokens": wish.reading.tokens},
        "calibration": text,
        "before": None,
        "after": None,
        "healed": None,
        "parameters": {"before": subject.parameters, "after": None},
        "speed": None,
        "checked": None,
        "gradient": gradient,
    }


def _windows(ranking: Ranking, size: int) -> dict[str, Any] | None:
    """The angles that `angular` chose by."""
    if not size or ranking.windows is None:
        return None
    return {"blocks": size, "angles": list(ranking.windows[size])}
