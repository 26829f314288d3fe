"""Which criteria a sweep's models have what it takes for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from leadline.errors import LeadlineError, UsageError
from leadline.pruning.criteria import CRITERIA, Evidence, rank
from leadline.pruning.subject import Subject

if TYPE_CHECKING:
    from leadline.pruning.sweep import SweepWish


def fitting(subjects: Sequence[Subject], wish: SweepWish, repeats: bool) -> tuple[list[str], dict[str, str]]:
    """The criteria that fit, and why others don't.

    Args:
        repeats: whether a block runs more than once in a pass.

    Raises:
        UsageError: one that was asked for doesn't fit; says why, and which do.
    """
    reasons: dict[str, str] = {}
    lacking = [str(subject.path) for subject in subjects if not subject.has_gradient]
    if lacking:
        reasons["cfp"] = f"{', '.join(lacking)} has no record of gradients (gradient.json); `leadline train` keeps one"
    else:
        unusable = [reason for subject in subjects if (reason := _unusable(subject, wish)) is not None]
        if unusable:
            reasons["cfp"] = "; ".join(unusable)
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
    return names, {} if wish.criteria else reasons


def _unusable(subject: Subject, wish: SweepWish) -> str | None:
    """Why a model's record of gradients ranks nothing; None where it does."""
    try:
        evidence = Evidence(stack=subject.stack, gradient=subject.gradient(), normalised=wish.base.normalised)
        rank("cfp", wish.base.unit, evidence)
    except LeadlineError as error:
        return f"{subject.path}: {error}"
    return None


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
