"""All criteria at several ratios, over seeds: perplexity and accuracy against ratio, and how stable the rankings are.

A seed is a model that was trained with it where several models are given, and else another calibration text (and
another number for `random`) for the one model. Cuts are passed by, so the models stay whole.

    asked = asked_of(subjects, data, wish)        # also makes sure that several models differ by seed alone
    results = sweep(subjects, data, wish, memory=SweepMemory(asked, folder / MEMORY_FILE))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from leadline.data import DataSet
from leadline.errors import UsageError
from leadline.hub.text import Text
from leadline.pruning.candidates import candidates
from leadline.pruning.claim import verdict
from leadline.pruning.criteria import CRITERIA, READS_TEXT, Evidence, Ranking, check_criterion, rank
from leadline.pruning.cutting import Wish, evidence_for
from leadline.pruning.fitting import fitting
from leadline.pruning.seeds import check_seeds, hash_of_data, identity
from leadline.pruning.select import free_units, number_to_cut
from leadline.pruning.stability import stability
from leadline.pruning.subject import Subject
from leadline.pruning.sweep_memory import SweepMemory, versions
from leadline.pruning.tasks import Task, accuracy_on, check_task
from leadline.pruning.text import quality
from leadline.stacks import Unit
from leadline.training.gradient_steps import Definition

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class SweepWish:
    """What is swept.

    Attributes:
        ratios: shares of the units to cut, ascending.
        criteria: all that fit the models unless given.
        base: what a single cut is told too; of its amount only the protected ends matter, its criterion doesn't, and
            its seed, of calibration text, only with several models.
        seeds: of calibration text, for a single model; with several models each has its own.
        task: questions to answer at each ratio.
        smallest_effect: the difference of loss, in bits per byte, below which the verdict calls it none that matters.

    Raises:
        UsageError: a ratio out of range or twice, an unknown criterion, or `normalised` without cfp.
    """

    ratios: tuple[float, ...]
    base: Wish
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


def asked_of(subjects: Sequence[Subject], data: DataSet, wish: SweepWish) -> dict[str, Any]:
    """All that decides a sweep's numbers, as data that JSON can hold: two sweeps that ask the same find the same.

    The record of gradients is not in it, nor the definition of its share: they decide the scores of cfp alone, which
    are kept under both.

    Raises:
        UsageError, LeadlineError: what `sweep` raises before it measures anything.
    """
    base, several = wish.base, len(subjects) > 1
    models = [identity(subject) for subject in subjects]
    check_seeds(subjects, models, base.unit)
    _cuts(subjects, wish)
    fitting(subjects, wish, candidates(subjects[0].stack, base.unit).repeats)
    if wish.task is not None:
        check_task(wish.task, subjects[0].opened.tokenizer)
    return {
        **versions(subjects[0].opened.kind == "hugging-face"),
        "device": str(subjects[0].stack.device),
        "models": models,
        "data": data.hash,
        "ratios": list(wish.ratios),
        "criteria": None if wish.criteria is None else list(wish.criteria),
        "seeds": None if several else list(wish.seeds),
        "seed": base.seed if several else None,
        "task": None if wish.task is None else hash_of_task(wish.task),
        "unit": base.unit,
        "protect_first": base.amount.protect_first,
        "protect_last": base.amount.protect_last,
        "normalised": base.normalised,
        "calibration_tokens": base.calibration_tokens,
        **dataclasses.asdict(base.reading),
    }


def _cuts(subjects: Sequence[Subject], wish: SweepWish) -> tuple[list[Unit], list[int]]:
    """What can be cut, and how much of it at each ratio."""
    found, amount = candidates(subjects[0].stack, wish.base.unit), wish.base.amount
    free = free_units(found, subjects[0].stack.blocks, amount)
    shares = (dataclasses.replace(amount, ratio=ratio, count=None) for ratio in wish.ratios)
    return free, [number_to_cut(s, len(found.units), len(free), wish.base.unit, "--sweep") for s in shares]


def hash_of_task(task: Task) -> str:
    """SHA-256 of a task's questions, whatever it is called."""
    return hash_of_data(dataclasses.asdict(task)["questions"])


def sweep(
    subjects: Sequence[Subject],
    data: DataSet,
    wish: SweepWish,
    say: Say = lambda text: None,
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
            was asked for and doesn't fit.
        LeadlineError: a score or a loss that is not finite, or a choice of the task without tokens.
    """
    kind = wish.base.unit
    memory = SweepMemory(asked_of(subjects, data, wish)) if memory is None else memory
    found = candidates(subjects[0].stack, kind)
    free, counts = _cuts(subjects, wish)
    runs = [(s, i) for i, s in enumerate(subjects)] if len(subjects) > 1 else [(subjects[0], s) for s in wish.seeds]
    fit = fitting(subjects, wish, found.repeats)
    text = subjects[0].heldout(data, wish.base.reading)
    measuring = _Measuring(subjects, text, wish, memory, say)
    whole = [measuring.cut(subject, (), "perplexity of the whole model") for subject in subjects]
    read = 0

    def measure(name: str, definition: Definition) -> dict[str, Any]:
        nonlocal read
        rankings = []
        for subject, seed in runs:
            # Models are compared on the same calibration text; `random` draws anew for each.
            own = seed if len(subjects) == 1 or name == "random" else wish.base.seed
            base = dataclasses.replace(wish.base, seed=own, definition=definition)
            evidence = evidence_for(subject, data, base, name, say)
            read = max(read, evidence.tokens)
            rankings.append(measuring.ranking(name, kind, evidence, counts, subject))
        return _points(name, rankings, runs, free, counts, wish, measuring)

    definitions = {name: measure("cfp", name) for name in fit.definitions}
    measured = {
        name: definitions[wish.base.definition] if name == "cfp" else measure(name, "sum") for name in fit.criteria
    }
    results = {
        **versions(subjects[0].opened.kind == "hugging-face"),
        "device": str(subjects[0].stack.device),
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
        "definition": wish.base.definition,
        "definitions": definitions,
        "smallest_effect": wish.smallest_effect,
        "left_out": fit.left_out,
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
        models = memory.asked["models"]
        self.names = {id(s): f"model {hash_of_data(m)[:16]}" for s, m in zip(subjects, models, strict=True)}
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
        return self.memory.recall(f"{self.names[id(subject)]} without {without}", measure)

    def ranking(self, name: str, kind: str, evidence: Evidence, counts: Sequence[int], subject: Subject) -> Ranking:
        """What a criterion says of a model's candidates."""

        def measure() -> dict[str, Any]:
            self.say(f"{subject.path.name}: scores by {name}, seed {evidence.seed}")
            found = rank(name, kind, evidence, counts, "--criteria")
            windows = None if found.windows is None else {str(n): list(row) for n, row in found.windows.items()}
            return {"scores": list(found.scores), "windows": windows}

        about = f"{name}, seed {evidence.seed}"
        if evidence.gradient is not None:
            about += f", {evidence.definition} of record {hash_of_data(evidence.gradient)[:16]}"
        kept = self.memory.recall(f"{self.names[id(subject)]} scores by {about}", measure)
        windows = kept["windows"]
        return Ranking(
            criterion=name,
            candidates=candidates(evidence.stack, kind),
            scores=tuple(kept["scores"]),
            windows=None if windows is None else {int(n): row for n, row in windows.items()},
        )
