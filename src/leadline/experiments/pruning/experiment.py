"""`leadline study pruning`: models trained with their gradient shares, cut by every criterion (claim C1).

A few models that differ by seed alone are trained, then `leadline.pruning.sweep` cuts them at several ratios by every
criterion. Source of the claim: CascadeFlow Pruning, arXiv 2606.26538. The protocol is ours.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from leadline.data import DataSet
from leadline.designs import count_flops, resolve, settings
from leadline.errors import LeadlineError, UsageError
from leadline.experiments.engine import Arm, Experiment, Say
from leadline.experiments.options import budget_of
from leadline.experiments.pruning.config import PruningConfig
from leadline.experiments.results import INSTALL, Judged, Judgement, facts, judged, opening
from leadline.experiments.runs import measured
from leadline.experiments.statistics import SMALLEST_EFFECT
from leadline.pruning import Amount, EvaluationSettings, PruneConfig, open_model
from leadline.pruning.report import headline, page
from leadline.pruning.select import number_to_cut
from leadline.pruning.sweep import SweepConfig, asked_of, hash_of_task, sweep
from leadline.pruning.sweep_memory import MEMORY_FILE, SweepMemory
from leadline.pruning.tasks import Task, check_task, read_task
from leadline.report.page import render

TOKENS = 307_200
"""Of each run at `tiny` by default: eight seeds, which tell differences that three don't."""


class Pruning(Experiment[PruningConfig]):
    """The study, see `PruningConfig`.

    Raises:
        UsageError: an option or a value is wrong; names it, and what works.
        LeadlineError: a choice of the task has no tokens; names its line.
    """

    kind = "pruning"

    def __init__(self, config: PruningConfig, data: DataSet, say: Say = lambda text: None) -> None:
        if len(config.seed_numbers) < 2:
            raise UsageError(f"seeds={config.seeds} is one model; rank stability needs 2 or more")
        budget, design = budget_of(config, data, tiny=TOKENS), resolve(config.design)
        if budget.shape.blocks < 2:
            raise UsageError(f"blocks={budget.shape.blocks} leaves nothing to choose from; 2 or more work")
        # What is wrong with ratios, criteria and questions is said before anything is trained.
        self.task = None if config.task is None else read_task(config.task)
        self.sweep = asked(config, budget.context, self.task)
        _check_counts(self.sweep, budget.shape.blocks)
        if self.task is not None:
            check_task(self.task, data.tokenizer)
        rate = config.optimizer.lr or settings(design, budget.preset).learning_rate
        flops = count_flops(design.decoder(budget.shape, data.vocab_size)).training_total
        options: PruningConfig = budget.config
        arm = Arm(
            name=design.expression,
            slug=design.slug,
            config=options.run(design.expression, tokens=budget.tokens, lr=rate),
            tokens=budget.tokens,
            cost=float(flops * budget.tokens),
        )
        super().__init__(budget, data, [arm], say)
        if self.task is not None:
            self.hashes["task"] = hash_of_task(self.task)

    def train(self) -> dict[str, str]:
        """See `Experiment`. Raises LeadlineError where fewer than two models were trained."""
        errors = super().train()
        if sum(run.summary is not None for run in self.runs()[self.arms[0].name]) < 2:
            reasons = "; ".join(f"{name}: {error}" for name, error in errors.items())
            raise LeadlineError(f"rank stability needs 2 trained models, and there are fewer ({reasons})")
        return errors

    def collect(self, command: str) -> dict[str, Any]:
        """See `Experiment`; `sweep` is what `leadline.pruning.sweep` returns."""
        runs = self.runs()[self.arms[0].name]
        models = [open_model(run.folder, self.config.runtime.device) for run in runs if run.summary is not None]
        memory = SweepMemory(asked_of(models, self.data, self.sweep), self.out / MEMORY_FILE)
        if memory.dropped:
            self.say(f"everything is measured again; {MEMORY_FILE} is of another sweep: {'; '.join(memory.dropped)}")
        found = sweep(models, self.data, self.sweep, self.say, memory)
        said = found["verdict"]
        results = {
            **opening(self.kind, command, self.data, self.seeds),
            "arms": [{"name": self.arms[0].name, **measured(runs, depth=False)}],
            "failed": {run.folder.name: run.error for run in runs if run.error},
            "sweep": found,
        }
        claim = Judgement(claim=said["claim"], paper="", outcome=said["verdict"], evidence=said["evidence"])
        left_out = (f"left out: {name}, because {reason}" for name, reason in found["left_out"].items())
        return judged(results, Judged(headline=headline(found), sentences=tuple(left_out), judgements=(claim,)))

    def page(self, results: dict[str, Any]) -> str:
        """See `Experiment`."""
        shown = page(results["sweep"], results["command"])
        return render(dataclasses.replace(shown, facts=facts(results), install=INSTALL))


def _check_counts(config: SweepConfig, blocks: int) -> None:
    """Raises UsageError where a ratio cuts nothing or too much of so many blocks, or angular is to cut sublayers."""
    amount, kind = config.base.amount, config.base.unit
    each = 1 if kind == "block" else 2
    free = blocks - amount.protect_first - amount.protect_last
    if free < 1:
        raise UsageError(
            f"--protect-first {amount.protect_first} and --protect-last {amount.protect_last} protect all of {blocks} "
            f"blocks; together {blocks - 1} is the most"
        )
    for ratio in config.ratios:
        share = dataclasses.replace(amount, ratio=ratio, count=None)
        number_to_cut(share, blocks * each, free * each, kind, "--sweep")
    if kind != "block" and "angular" in (config.criteria or ()):
        raise UsageError("--criteria angular: it chooses contiguous blocks; --unit block works")


def asked(config: PruningConfig, context: int, task: Task | None) -> SweepConfig:
    """What the sweep is told. Raises UsageError where ratios or criteria don't work."""
    tokens = config.logging.evaluate_tokens or 0
    criteria = None if config.criteria is None else tuple(config.criteria.replace(" ", "").split(","))
    base = PruneConfig(
        amount=Amount(count=0, protect_first=config.protect_first, protect_last=config.protect_last),
        evaluation=EvaluationSettings(context=context, stride=context, tokens=tokens, batch_size=8),
        criterion="random",
        unit=config.unit,
        normalised=config.normalised,
        calibration_tokens=config.calibration_tokens,
    )
    return SweepConfig(ratios=config.ratios, base=base, criteria=criteria, task=task, smallest_effect=SMALLEST_EFFECT)
