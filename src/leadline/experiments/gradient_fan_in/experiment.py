"""Trains and measures every arm on every seed, and gathers it: `results.json`. Says beforehand how long it will take.

study, leadline, command, created, machine, data, repeat     as `leadline.experiments.results.opening`
design, preset, blocks, seeds    what was trained
repeated, last_blocks            "4x2", and how many blocks that repeats
ablation_tokens                  held-out tokens for ΔM
arms                             one each, in order:
    name, summary, role, control, loss_per      the last is "byte", or "image" where bits_per_byte is bits per image
    status, error                "ok", "partial" or "failed", and the first error
    blocks, late_blocks          how many, and how many of them are late (the last third)
    tokens, learning_rate, parameters, flops_per_token
    loss, bits_per_byte          held-out: mean, low, high, values by seed; null where no run finished
    tokens_per_second, seconds, curve
    runs                         one a seed; null where it failed:
        seed, folder, loss (of the text that ΔM is on)
        share, share_per_parameter, sublayer_share      ḡ, also for norms over √parameters; raw gradients
        definitions              ḡ by each definition's name (`leadline.training.gradient_steps`)
        definitions_when_present  the same for each step in which a block took part; null where all did in all steps
        phases                   `from`, `to`, `weight` and `share` of the first steps and of the rest
        equalised_share          ḡ of the gradients after equalising; null elsewhere
        steps_without_gradient   by block
        effective_rank, cosine   by block, mean over the run's records; null without
        fan_in, order, exit_weights
        delta, place_delta       nats, low, high (see `leadline.experiments.gradient_fan_in.measure`)
    correlations                 share_delta, share_fan_in, and both with `_rest`, without the first block, and
                                 `_per_parameter`, of the √parameters form, and `_when_present` where blocks were
                                 dropped, all of the definition `sum`; rank_ and cosine_, effective rank and diversity
                                 with both; each has pearson, spearman, kendall (value, low, high, reason, runs),
                                 `over`, and `blocks`, how many were compared. Null where no run finished
    definitions                  by name: share_delta, share_fan_in, their `_rest` and `_when_present`
    phases                       `from`, `to`, `weight`, share_delta, share_fan_in
    fits                         by definition's name `own`, `other` (R²) and `difference` (value, low, high, runs)
    first_share                  the first block's share, mean over seeds
    late                         by part (see `statistics`: third, last, single, each also `_rest`, without the first
                                 block) mean, low, high, by_seed; and `predicted`, by part what φ says.
                                 Null where no run finished
    against                      minus the control, by pairs of a seed: by part, and bits_per_byte, mean, low, high,
                                 by_seed or null; and `predicted`, by part the rise that φ says. Null without a control
    g1                           by definition's name, the words for fan_in and delta
headline, sentences, judgements  the verdicts
"""

from __future__ import annotations

import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from leadline.data import DataSet
from leadline.designs import count_flops, resolve
from leadline.errors import LeadlineError, UsageError
from leadline.experiments.engine import Experiment, Say
from leadline.experiments.gradient_fan_in.arms import FanInArm, chosen, decoder_arm, resnet_arm
from leadline.experiments.gradient_fan_in.config import TOKENS, GfaConfig
from leadline.experiments.gradient_fan_in.measure import MEASURE_FILE, MeasureFile
from leadline.experiments.gradient_fan_in.page import make_page
from leadline.experiments.gradient_fan_in.shares import beside, by_definition, by_phase, fits, shares_of
from leadline.experiments.gradient_fan_in.statistics import against, late_count, late_importance, paired
from leadline.experiments.gradient_fan_in.verdict import judge, parts
from leadline.experiments.jobs import Job
from leadline.experiments.options import budget_of, parse_rates
from leadline.experiments.results import judged, opening
from leadline.experiments.runs import RunResult, mean_of, measured
from leadline.files import check_sum
from leadline.pruning.speed import torch_threads
from leadline.reading import read_json
from leadline.report.page import render
from leadline.report.words import count, duration
from leadline.training.config import RunConfig, parse_repeat
from leadline.training.gradient_file import GRADIENT
from leadline.training.resolve import shape_of

STEP_TOKENS = 1024
MOST_FLOPS = 2e11
"""A step that costs more is not timed beforehand: that would take longer than it is worth."""
START = 8.0
"""Seconds that a run takes to start and to write."""
BESIDE = 1.25
"""Two processes on two cores are slower than one alone, by experience."""
SHARES_READ = ("share", "share_per_parameter", "sublayer_share", "steps", "steps_without_gradient")
"""Of a run's `gradient.json`."""


class GradientFanIn(Experiment[GfaConfig]):
    """The study, see `GfaConfig`.

    Raises:
        UsageError: an arm, an option or a value is wrong; names it, and what works.
    """

    kind = "gfa"
    arms: tuple[FanInArm, ...]

    def __init__(self, config: GfaConfig, data: DataSet, say: Say = lambda text: None) -> None:
        kinds = chosen(config)
        blocks = shape_of(config.model).blocks
        if config.interventions.repeat is None:
            config = config.replaced(repeat=f"{late_count(blocks)}x2")
        budget = budget_of(config, data, tiny=TOKENS)
        rates = parse_rates(config.rates, [kind.name for kind in kinds])
        arms = [
            (resnet_arm if kind.loss_per == "image" else decoder_arm)(
                kind, budget, rates.get(kind.name) or (config.optimizer.lr if kind.loss_per == "byte" else None)
            )
            for kind in kinds
        ]
        if arms[0].blocks < 3:
            raise UsageError(f"blocks={arms[0].blocks} is too small; a correlation over blocks takes 3 or more")
        self.last, _ = parse_repeat(config.interventions.repeat or "")
        super().__init__(budget, data, arms, say)
        self.hashes |= {arm.name: arm.data_hash for arm in arms if arm.data_hash}

    def train(self) -> dict[str, str]:
        """See `Experiment`; says beforehand how long it will take."""
        return self.work([arm.job(self.out, seed) for arm in self.arms for seed in self.seeds], self._estimate)

    def _estimate(self, queue: Sequence[Job]) -> str:
        configs = (arm.config for arm in self.arms if isinstance(arm.config, RunConfig))
        step = next((step for config in configs if (step := step_of(config)) is not None), None)
        return estimate_words(queue, self.slots, self.threads, step)

    def collect(self, command: str) -> dict[str, Any]:
        """See `Experiment`."""
        gathered = {arm.name: self._arm(arm) for arm in self.arms}
        for arm in self.arms:
            mine, control = gathered[arm.name], gathered.get(arm.kind.control)
            if control is not None:
                mine["against"] = {**against(mine, control), "bits_per_byte": paired(_bits(mine), _bits(control))}
        config = self.config
        found = {
            **opening(self.kind, command, self.data, self.seeds),
            "design": resolve(config.design).name,
            "preset": self.budget.preset.name,
            "blocks": self.arms[0].blocks,
            "last_blocks": self.last,
            "repeated": config.interventions.repeat,
            "ablation_tokens": config.ablation_tokens,
            "arms": list(gathered.values()),
        }
        return judged(found, judge(list(gathered.values()), len(self.seeds), self.last))

    def page(self, results: dict[str, Any]) -> str:
        """See `Experiment`."""
        return render(make_page(results))

    def _arm(self, arm: FanInArm) -> dict[str, Any]:
        kind, results = arm.kind, arm.runs(self.out, self.seeds)
        runs = [_run(result, seed, self.out) for result, seed in zip(results, self.seeds, strict=True)]
        done = [run for run in runs if run is not None]
        definitions = by_definition(done) if done else None
        return {
            "name": arm.name,
            **{name: getattr(kind, name) for name in ("summary", "role", "control", "loss_per")},
            **measured(results, depth=False),
            "blocks": arm.blocks,
            "late_blocks": late_count(arm.blocks),
            **{name: getattr(arm, name) for name in ("tokens", "learning_rate", "parameters", "flops_per_token")},
            "runs": runs,
            "correlations": {**definitions["sum"], **beside(done)} if definitions else None,
            "definitions": definitions,
            "phases": by_phase(done),
            "fits": fits(done),
            "first_share": mean_of([run["share"][0] for run in done]),
            "late": late_importance(runs, late_count(arm.blocks), min(self.last, arm.blocks)) if done else None,
            "against": None,
            "g1": {name: parts(pairs) for name, pairs in definitions.items()} if definitions else None,
        }


def _run(result: RunResult, seed: int, out: Path) -> dict[str, Any] | None:
    """What one run's folder says; None where it did not finish or was not measured."""
    if result.summary is None or result.gradient is None:
        return None
    try:
        own = read_json(result.folder / MEASURE_FILE, MeasureFile, advice="remove it to measure this run again")
        check_sum(result.folder / MEASURE_FILE)
    except FileNotFoundError:
        return None
    gradient, measures = result.gradient, {**own}
    if lacking := [name for name in SHARES_READ if name not in gradient]:
        raise LeadlineError(f"{result.folder / GRADIENT} is damaged: it lacks {', '.join(lacking)}")
    details = gradient.get("details") or []
    return {
        "seed": seed,
        "folder": str(result.folder.relative_to(out)),
        "loss": own["loss"],
        **{name: gradient[name] for name in ("share", "share_per_parameter", "sublayer_share")},
        **shares_of(result.folder, gradient),
        "equalised_share": (gradient.get("equalised") or {}).get("share"),
        "steps_without_gradient": gradient["steps_without_gradient"]["block"],
        **{name: mean_of([detail.get(name) for detail in details]) for name in ("effective_rank", "cosine")},
        **{name: measures[name] for name in ("fan_in", "order", "exit_weights", "delta", "place_delta")},
    }


def _bits(arm: dict[str, Any]) -> dict[int, float | None]:
    pairs = zip(arm["runs"], (arm["bits_per_byte"] or {"values": ()})["values"], strict=False)
    return {run["seed"]: value for run, value in pairs if run is not None}


class Step(NamedTuple):
    """A piece of training to be timed: what runs it, and its FLOPs."""

    run: Callable[[], None]
    flops: float


def step_of(config: RunConfig) -> Step | None:
    """Forward and backward of a decoder; None for large models and for devices other than the CPU."""
    import torch

    from leadline.models import Decoder
    from leadline.training.evaluation import loss_of
    from leadline.training.resolve import decide, usable_device

    run = decide(config)
    sequences = max(1, min(run.batch_size, STEP_TOKENS // run.context))
    flops = count_flops(run.model).training_total * sequences * run.context
    if usable_device(config.runtime.device).type != "cpu" or flops > MOST_FLOPS:
        return None
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(run.data.vocab_size, (sequences, run.context), generator=generator)
    with torch.random.fork_rng(devices=[]):
        model = Decoder(run.model)
    return Step(run=lambda: loss_of(model(tokens), tokens).backward(), flops=float(flops))


def estimate_words(queue: Sequence[Job], slots: int, threads: int, step: Step | None) -> str:
    """What is still to be done, in a sentence.

    Args:
        queue: its costs are in FLOPs.
        slots: jobs at a time.
        threads: of each.
        step: a piece of training to time, the best of three times; None: the time isn't told.
    """
    waiting = [job for job in queue if not job.done]
    flops = sum(job.cost for job in waiting)
    units = dict.fromkeys(job.unit for job in waiting)
    read = [f"{count(sum(job.tokens for job in waiting if job.unit == unit))} {unit}" for unit in units]
    amount = ", ".join([f"{len(waiting)} of {len(queue)} runs to do", *read])
    what = f"{amount} and {count(flops)}FLOPs with measurements"
    if step is None:
        return f"{what}; the time is told once runs are on their way"
    with torch_threads(threads):
        rate = step.flops / min(timeit.repeat(step.run, number=1, repeat=3))
    slots = max(1, min(slots, len(waiting)))
    seconds = (flops / rate * (BESIDE if slots > 1 else 1.0) + START * len(waiting)) / slots
    # The longest run can't be shared out.
    longest = max((job.cost for job in waiting), default=0.0) / rate
    return f"{what}: about {duration(max(seconds, longest))} on a machine that does nothing else"
