"""The importance of each block or sublayer by a criterion. The lowest scores are cut first.

    cfp         the share of the gradient that it received in training, ḡ (CascadeFlow Pruning, arXiv 2606.26538), by
                one of the definitions of `leadline.training.gradient_steps`
    similarity  Block Influence 1 - E cos(x_i, x_{i+1}) (arXiv 2403.03853)
    angular     the angle arccos(cos)/π across n contiguous blocks: it chooses all of them at once (arXiv 2403.17887)
    taylor      Σ|Σ_batches w·∂L/∂w|
    magnitude   Σ|w|
    ablation    ΔM: what the loss rises by without it
    random      a number from the seed

All but cfp, magnitude and random read calibration text.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leadline.errors import LeadlineError, UsageError, did_you_mean
from leadline.probes.watch import TokenBatch
from leadline.pruning.gradient import recorded_shares
from leadline.pruning.scores import Progress, ablation, magnitude, similarity, taylor, window_distances
from leadline.pruning.select import Candidates, candidates, lowest, lowest_window
from leadline.stacks import Stack, Unit
from leadline.training.gradient_steps import Definition

CRITERIA = ("cfp", "similarity", "angular", "taylor", "magnitude", "ablation", "random")
"""Names of the criteria that rank blocks or sublayers."""
READS_TEXT = ("similarity", "angular", "taylor", "ablation")


def check_criterion(name: str, option: str = "--criterion") -> None:
    """Raises UsageError for a name that is not a criterion."""
    if name not in CRITERIA:
        shown = name or "''"
        raise UsageError(f"{option} {shown} is not known; {', '.join(CRITERIA)} work.{did_you_mean(name, CRITERIA)}")


@dataclass(frozen=True, kw_only=True)
class ScoringInputs:
    """What a criterion may look at.

    Attributes:
        stack: the model.
        batches: calibration text.
        gradient: the content of `gradient.json`; None where there is none.
        seed: of `random`.
        normalised: take cfp's share of norms divided by √(number of parameters), which tapered models need.
        definition: of cfp's share.
        progress: receives how many of how many passes are done.
    """

    stack: Stack
    batches: Sequence[TokenBatch] = ()
    gradient: Mapping[str, Any] | None = None
    seed: int = 0
    normalised: bool = False
    definition: Definition = "sum"
    progress: Progress = field(default=lambda done, of: None)

    @property
    def tokens(self) -> int:
        """How many are in the calibration text."""
        return sum(batch.tokens.numel() for batch in self.batches)


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """What a criterion says of all candidates.

    Attributes:
        scores: one per candidate, in order. For `angular` the angle across each block alone, which ranks but doesn't
            choose.
        windows: for `angular`, by n, the angle across n blocks from each first one.
    """

    criterion: str
    candidates: Candidates
    scores: tuple[float, ...]
    windows: Mapping[int, Sequence[float]] | None = None

    def choose(self, count: int, free: Sequence[Unit]) -> list[Unit]:
        """The `count` free candidates to cut, in the order in which they run.

        Raises:
            UsageError: `angular` finds no window that long between the protected ends.
        """
        if self.windows is None or count == 0:
            return lowest(self.candidates.units, self.scores, free, count)
        return lowest_window(self.windows[count], count, free)


def rank(
    criterion: str, kind: str, inputs: ScoringInputs, counts: Sequence[int] = (), option: str = "--criterion"
) -> Ranking:
    """Scores every candidate.

    Args:
        counts: how many will be chosen, which `angular` needs to know; several for a sweep.
        option: what errors call the criterion by.

    Raises:
        UsageError: an unknown criterion, or one that does not fit the unit, the model or the inputs.
        LeadlineError: a score that is not finite.
    """
    check_criterion(criterion, option)
    found = candidates(inputs.stack, kind)
    windows: dict[int, list[float]] | None = None
    if criterion == "angular":
        others = "similarity, taylor, magnitude, ablation, cfp and random work"
        if kind != "block":
            raise UsageError(f"{option} angular chooses contiguous blocks; with --unit {kind} {others}")
        if found.repeats:
            raise UsageError(f"{option} angular needs blocks that run once in a pass, and here some repeat; {others}")
        sizes = {1, *(count for count in counts if count > 0)}
        windows = window_distances(inputs.stack, inputs.batches, sizes)
        scores = windows[1]
    else:
        scores = _scores(criterion, found, inputs, option)
    for unit, score in zip(found.units, scores, strict=True):
        if not math.isfinite(score):
            raise LeadlineError(f"{option} {criterion} is {score} for {kind} {unit}; are the weights finite?")
    return Ranking(criterion=criterion, candidates=found, scores=tuple(scores), windows=windows)


def _scores(criterion: str, found: Candidates, inputs: ScoringInputs, option: str) -> list[float]:
    stack, kind, groups = inputs.stack, found.kind, list(found.runs.values())
    if criterion == "cfp":
        return _recorded(found, inputs, option)
    if criterion == "ablation":
        return ablation(stack, inputs.batches, groups, inputs.progress)
    if criterion == "random":
        generator = random.Random(inputs.seed)
        return [generator.random() for _ in groups]
    if criterion == "similarity":
        every = similarity(stack, inputs.batches, kind)
    elif criterion == "taylor":
        every = taylor(stack, inputs.batches, kind, inputs.progress)
    else:
        every = magnitude(stack, kind)
    by_unit = dict(zip(stack.units(kind), every, strict=True))
    scores = [[by_unit[run] for run in runs] for runs in groups]
    # Weights that runs share count for the first of them; how much a unit changes the stream is a mean over its runs.
    return [sum(each) / len(each) if criterion == "similarity" else math.fsum(each) for each in scores]


def _recorded(found: Candidates, inputs: ScoringInputs, option: str) -> list[float]:
    """The gradient shares that training left."""
    if inputs.gradient is None:
        raise UsageError(f"{option} cfp needs the gradient shares of training, and there is no record of them")
    name, shares = recorded_shares(inputs.gradient, found.kind, inputs.definition, inputs.normalised)
    # Training too counts what repeats once.
    if not isinstance(shares, list) or len(shares) != len(found.units):
        has = f"{len(shares)} numbers" if isinstance(shares, list) else "no list"
        raise LeadlineError(
            f"gradient.json has {has} for {name}, and this model has {len(found.units)} {found.kind}s: the record is "
            "another model's"
        )
    for unit, share in zip(found.units, shares, strict=True):
        if not isinstance(share, int | float) or isinstance(share, bool) or share < 0:
            raise LeadlineError(
                f"gradient.json has no share for {found.kind} {unit}, which no gradient reached in training (frozen, "
                "or its gradients lived elsewhere); another criterion has to judge it"
            )
    if not any(share > 0 for share in shares):
        raise LeadlineError("gradient.json holds nothing but zeros, so it ranks nothing")
    return [float(share) for share in shares]
