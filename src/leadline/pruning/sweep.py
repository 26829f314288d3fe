"""All criteria at several ratios, over seeds: perplexity and accuracy against ratio, and how stable the rankings are.

A seed is a model that was trained with it where several models are given, and else another calibration text (and
another number for `random`) for the one model. Cuts are passed by, so the models stay whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from leadline.data import DataSet
from leadline.errors import LeadlineError, UsageError
from leadline.hub.text import Text
from leadline.pruning.candidates import candidates
from leadline.pruning.claim import verdict
from leadline.pruning.criteria import CRITERIA, READS_TEXT, Evidence, Ranking, check_criterion, rank
from leadline.pruning.cutting import Wish, evidence_for
from leadline.pruning.select import free_units, number_to_cut
from leadline.pruning.stability import stability
from leadline.pruning.subject import Subject
from leadline.pruning.sweep_memory import SweepMemory, hash_of_file, hash_of_weights, versions
from leadline.pruning.tasks import Task, accuracy_on
from leadline.pruning.text import quality
from leadline.stacks import Unit
from leadline.training.gradient_file import GRADIENT

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class SweepWish:
    """What is swept.

    Attributes:
        ratios: shares of the units to cut, ascending.
        criteria: all that fit the models unless given.
        base: what a single cut is told too; of its amount only the protected ends matter, and its criterion doesn't.
        seeds: of calibration text, for a single model; with several models each has its own.
        task: questions to answer at each ratio.

    Raises:
        UsageError: a ratio out of range or twice, or an unknown criterion.
    """

    ratios: tuple[float, ...]
    base: Wish
    criteria: tuple[str, ...] | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    task: Task | None = None

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
            raise UsageError(f"--criteria {','.join(self.criteria or ())} names a criterion twice")


def asked_of(subjects: Sequence[Subject], data: DataSet, wish: SweepWish) -> dict[str, Any]:
    """All that decides a sweep's numbers, as data that JSON can hold: two sweeps that ask the same find the same."""
    task = None if wish.task is None else dataclasses.asdict(wish.task)
    return {
        **versions(),
        "models": [
            {
                "model": str(subject.path),
                "weights": hash_of_weights(subject.stack.model),
                "gradient": hash_of_file(subject.path / GRADIENT) if subject.has_gradient else None,
            }
            for subject in subjects
        ],
        "data": data.hash,
        "ratios": list(wish.ratios),
        "criteria": None if wish.criteria is None else list(wish.criteria),
        "seeds": list(wish.seeds),
        "task": task,
        "options": dataclasses.asdict(wish.base),
    }


def sweep(
    subjects: Sequence[Subject],
    data: DataSet,
    wish: SweepWish,
    say: Say = lambda text: None,
    memory: SweepMemory | None = None,
) -> dict[str, Any]:
    """Measures every criterion at every ratio for every seed.

    Args:
        memory: what an interrupted sweep of the same measured before, and where this one keeps what it measures.

    Returns:
        What `results.json` holds: `criteria` with `scores` by seed, `points` by ratio (`cut`, `quality` by seed) and
        `stability`; `whole` by seed; `left_out` with reasons; `verdict` on claim C1.

    Raises:
        UsageError: models that differ in depth, a ratio that cuts nothing or everything, no criterion that fits.
        LeadlineError: a score or a loss that is not finite.
    """
    kind = wish.base.unit
    found = candidates(subjects[0].stack, kind)
    for subject in subjects[1:]:
        if candidates(subject.stack, kind).runs != found.runs:
            raise UsageError(
                f"{subject.path} has other {kind}s than {subjects[0].path}; the models of a sweep differ by seed alone"
            )
        if subject.opened.tokenizer.hash != subjects[0].opened.tokenizer.hash:
            raise UsageError(
                f"{subject.path} has another tokenizer than {subjects[0].path}; the models of a sweep differ by seed "
                "alone"
            )
    free = free_units(found, subjects[0].stack.blocks, wish.base.amount)
    counts = [
        number_to_cut(
            dataclasses.replace(wish.base.amount, ratio=r, count=None), len(found.units), len(free), kind, "--sweep"
        )
        for r in wish.ratios
    ]
    runs = [(s, i) for i, s in enumerate(subjects)] if len(subjects) > 1 else [(subjects[0], s) for s in wish.seeds]
    names, left_out = _fitting(subjects, wish, found.repeats)
    text = subjects[0].heldout(data, wish.base.reading)
    memory = SweepMemory() if memory is None else memory
    measuring = _Measuring(subjects, text, wish, memory, say)
    whole = [measuring.cut(subject, (), "perplexity of the whole model") for subject in subjects]
    measured: dict[str, Any] = {}
    read = 0
    for name in names:
        rankings = []
        for subject, seed in runs:
            # Models are compared on the same calibration text.
            own = dataclasses.replace(wish.base, seed=wish.base.seed if len(subjects) > 1 else seed)
            evidence = dataclasses.replace(evidence_for(subject, data, own, name, say), seed=seed)
            read = max(read, evidence.tokens)
            rankings.append(measuring.ranking(name, kind, evidence, counts, subject))
        measured[name] = _points(name, rankings, runs, free, counts, wish, measuring)
    results = {
        **versions(),
        "models": [subject.origin for subject in subjects],
        "seeds_are": "models" if len(subjects) > 1 else "calibration texts",
        "seeds": [seed for _, seed in runs],
        "unit": kind,
        "units": [str(unit) for unit in found.units],
        "protected": {"first": wish.base.amount.protect_first, "last": wish.base.amount.protect_last},
        "ratios": list(wish.ratios),
        "counts": counts,
        "data": {"name": data.name, "hash": data.hash},
        "reading": dataclasses.asdict(wish.base.reading),
        "calibration": {"split": "train", "tokens": read},
        "task": None if wish.task is None else {"name": wish.task.name, "questions": len(wish.task.questions)},
        "parameters": subjects[0].parameters,
        "whole": whole,
        "criteria": measured,
        "left_out": left_out,
    }
    return {**results, "verdict": verdict(results)}


def _points(
    name: str,
    rankings: Sequence[Ranking],
    runs: Sequence[tuple[Subject, int]],
    free: Sequence[Unit],
    counts: Sequence[int],
    wish: SweepWish,
    measuring: _Measuring,
) -> dict[str, Any]:
    """One criterion at every ratio."""
    points: list[dict[str, Any]] = []
    for ratio, count in zip(wish.ratios, counts, strict=True):
        cuts = [ranking.choose(count, free) for ranking in rankings]
        qualities = [
            measuring.cut(subject, ranking.candidates.expand(cut), f"{name}, {count} cut, seed {seed}")
            for (subject, seed), ranking, cut in zip(runs, rankings, cuts, strict=True)
        ]
        points.append(
            {"ratio": ratio, "count": count, "cut": [[str(u) for u in cut] for cut in cuts], "quality": qualities}
        )
    scores = [list(ranking.scores) for ranking in rankings]
    stable = stability(scores, {f"{p['ratio']:g}": p["cut"] for p in points})
    return {
        "scores": scores,
        "points": points,
        "stability": None if stable is None else dataclasses.asdict(stable),
        "reads_text": name in READS_TEXT,
    }


class _Measuring:
    """Rankings and losses, each of which is worked out once: the same cut of the same model too."""

    def __init__(self, subjects: Sequence[Subject], text: Text, wish: SweepWish, memory: SweepMemory, say: Say) -> None:
        self.numbers = {id(subject): number for number, subject in enumerate(subjects)}
        self.text, self.task, self.memory, self.say = text, wish.task, memory, say

    def cut(self, subject: Subject, units: Sequence[Unit], doing: str) -> dict[str, Any]:
        """How good a model is with some units passed by."""

        def measure() -> dict[str, Any]:
            self.say(f"{subject.path.name}: {doing}")
            with subject.stack.skipping(units):
                found = dataclasses.asdict(quality(subject.stack, self.text))
                found["task"] = None if self.task is None else accuracy_on(subject.stack, subject.opened, self.task)
            return found

        without = " ".join(map(str, units)) or "nothing"
        return self.memory.recall(f"model {self.numbers[id(subject)]} without {without}", measure)

    def ranking(self, name: str, kind: str, evidence: Evidence, counts: Sequence[int], subject: Subject) -> Ranking:
        """What a criterion says of a model's candidates."""

        def measure() -> dict[str, Any]:
            self.say(f"{subject.path.name}: scores by {name}, seed {evidence.seed}")
            found = rank(name, kind, evidence, counts)
            windows = None if found.windows is None else {str(n): list(row) for n, row in found.windows.items()}
            return {"scores": list(found.scores), "windows": windows}

        model = self.numbers[id(subject)]
        kept = self.memory.recall(f"model {model} scores by {name}, seed {evidence.seed}", measure)
        windows = kept["windows"]
        return Ranking(
            criterion=name,
            candidates=candidates(evidence.stack, kind),
            scores=tuple(kept["scores"]),
            windows=None if windows is None else {int(n): row for n, row in windows.items()},
        )


def _fitting(subjects: Sequence[Subject], wish: SweepWish, repeats: bool) -> tuple[list[str], dict[str, str]]:
    """The criteria that fit, and why others don't. One that was asked for has to fit."""
    reasons: dict[str, str] = {}
    lacking = [str(subject.path) for subject in subjects if not subject.has_gradient]
    if lacking:
        reasons["cfp"] = f"{', '.join(lacking)} has no record of gradients (gradient.json); `leadline train` keeps one"
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
            raise UsageError(f"--criteria {name}: {reasons[name]}")
    names = [name for name in wish.criteria or CRITERIA if name not in reasons]
    return names, {} if wish.criteria else reasons


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
