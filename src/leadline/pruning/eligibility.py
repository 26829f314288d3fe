"""Which criteria a sweep's models are eligible for, and by which definitions of the gradient share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from leadline.data import Batch
from leadline.errors import LeadlineError, UsageError
from leadline.hub.open import OpenedModel
from leadline.pruning.criteria import CRITERIA, ScoringInputs, rank
from leadline.pruning.gradient import has_gradient, recorded_gradient
from leadline.pruning.similarity import similarity
from leadline.training.gradient_steps import DEFINITIONS, Definition

if TYPE_CHECKING:
    from leadline.pruning.sweep import SweepConfig


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
