"""Which criteria a sweep's models have what it takes for, and by which definitions of the gradient share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from leadline.errors import LeadlineError, UsageError
from leadline.pruning.criteria import CRITERIA, Evidence, rank
from leadline.pruning.subject import Subject
from leadline.training.gradient_steps import DEFINITIONS, Definition

if TYPE_CHECKING:
    from leadline.pruning.sweep import SweepWish


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What fits, and what doesn't.

    Attributes:
        criteria: those that fit.
        definitions: those of the gradient share by which cfp ranks; empty without cfp.
        left_out: why others don't fit, by name; that of a definition is `cfp by clipped`.
    """

    criteria: list[str]
    definitions: list[Definition]
    left_out: dict[str, str]


def fitting(subjects: Sequence[Subject], wish: SweepWish, repeats: bool) -> Fit:
    """The criteria that fit, and why others don't.

    Args:
        repeats: whether a block runs more than once in a pass.

    Raises:
        UsageError: one that was asked for doesn't fit; says why, and which do.
    """
    reasons: dict[str, str] = {}
    unranked: dict[Definition, str] = {}
    lacking = [str(subject.path) for subject in subjects if not subject.has_gradient]
    if lacking:
        reasons["cfp"] = f"{', '.join(lacking)} has no record of gradients (gradient.json); `leadline train` keeps one"
    else:
        found = {name: "; ".join(_unusable(subjects, wish, name)) for name in DEFINITIONS}
        unranked = {name: reason for name, reason in found.items() if reason}
        if wish.base.definition in unranked:
            reasons["cfp"] = unranked[wish.base.definition]
    if wish.base.unit != "block":
        reasons["angular"] = "it chooses contiguous blocks"
    elif repeats:
        reasons["angular"] = "it needs blocks that run once in a pass"
    if wish.base.unit != "block":
        plain = _additive(subjects[0], wish)
        if plain is not None:
            reasons["similarity"] = plain
    for name in wish.criteria or ():
        if name in reasons:
            fit = ", ".join(other for other in CRITERIA if other not in reasons)
            raise UsageError(f"--criteria {name}: {reasons[name]}; {fit} work")
    names = [name for name in wish.criteria or CRITERIA if name not in reasons]
    left_out = {} if wish.criteria else reasons
    if "cfp" not in names:
        return Fit(criteria=names, definitions=[], left_out=left_out)
    left_out |= {f"cfp by {name}": reason for name, reason in unranked.items()}
    return Fit(criteria=names, definitions=[d for d in DEFINITIONS if d not in unranked], left_out=left_out)


def _unusable(subjects: Sequence[Subject], wish: SweepWish, definition: Definition) -> list[str]:
    """Why records of gradients rank nothing by a definition; empty where all do."""
    reasons = []
    for subject in subjects:
        evidence = Evidence(
            stack=subject.stack,
            gradient=subject.gradient(),
            normalised=wish.base.normalised,
            definition=definition,
        )
        try:
            rank("cfp", wish.base.unit, evidence)
        except LeadlineError as error:
            reasons.append(f"{subject.path}: {error}")
    return reasons


def _additive(subject: Subject, wish: SweepWish) -> str | None:
    """Why similarity can't score this model's sublayers; None where it can."""
    from leadline.probes.passes import run_measures
    from leadline.probes.watch import TokenBatch
    from leadline.pruning.turning import SublayerTurns

    @dataclass
    class One:
        tokens: torch.Tensor
        targets: torch.Tensor

    tokens = torch.zeros(1, 2, dtype=torch.int64)
    batch: TokenBatch = One(tokens, tokens)
    try:
        run_measures(subject.stack, [batch], [SublayerTurns(subject.stack)])
    except UsageError:
        return "its stream is not the sum of its sublayers' outputs"
    except LeadlineError as error:
        return str(error)
    return None
