"""`leadline compare`: learning rates first where they are swept, then all runs, their speed, and one report."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leadline.errors import LeadlineError
from leadline.experiments.compare.arms import DesignArm, arms_of, shipped_sweeps, untuned_rates
from leadline.experiments.compare.config import CompareConfig
from leadline.experiments.compare.page import make_page
from leadline.experiments.compare.speed import measured_speeds, ratio_of
from leadline.experiments.compare.verdict import verdict
from leadline.experiments.engine import Experiment, Say
from leadline.experiments.jobs import Job
from leadline.experiments.results import difference_as_data, opening
from leadline.experiments.runs import RunResult, against, measured, read_run
from leadline.experiments.statistics import SMALLEST_EFFECT, Difference, Interval
from leadline.files import finite, write_text
from leadline.report.page import render

if TYPE_CHECKING:
    from leadline.data import DataSet


class Compare(Experiment[CompareConfig]):
    """The comparison, see `CompareConfig`.

    Raises:
        UsageError: a design, an option or a value is wrong; names it, and what works.
    """

    kind = "compare"
    arms: tuple[DesignArm, ...]

    def __init__(self, config: CompareConfig, data: DataSet, say: Say = lambda text: None) -> None:
        budget, self.baseline, arms = arms_of(config, data)
        super().__init__(budget, data, arms, say)
        for line in untuned_rates(budget, arms):
            say(line)
        self.sweeps: list[dict[str, Any]] = []

    @property
    def sweep_seed(self) -> int:
        """The seed of a sweep's runs; takes no part in the comparison."""
        return max(self.seeds) + 1

    def train(self) -> dict[str, str]:
        """See `Experiment`; seed by seed, so that what is there after a while can be compared."""
        if self.arms[0].sweep:
            self.work([self.sweep_job(arm, rate) for arm in self.arms for rate in arm.sweep])
            self.sweeps = [self.swept(arm) for arm in self.arms]
            rates = {curve["design"]: curve["chosen"] for curve in self.sweeps}
            self.arms = tuple(
                dataclasses.replace(arm, learning_rate=rates[arm.name], config=arm.config.replaced(lr=rates[arm.name]))
                for arm in self.arms
            )
        return self.work([arm.job(self.out, seed, turn) for turn, seed in enumerate(self.seeds) for arm in self.arms])

    def sweep_job(self, arm: DesignArm, rate: float) -> Job:
        """A run of the sweep of learning rates."""
        one = dataclasses.replace(arm, config=arm.config.replaced(lr=rate), measure=None)
        job = one.job(self.out, self.sweep_seed)
        folder = job.folder.with_name(f"{job.folder.name}-lr{rate:g}")
        return dataclasses.replace(job, label=f"{arm.name} at {rate:g}", folder=folder)

    def swept(self, arm: DesignArm) -> dict[str, Any]:
        """A design's losses over the grid and the best rate; the planned one where no run finished."""
        runs = {rate: read_run(self.sweep_job(arm, rate).folder) for rate in arm.sweep}
        if damaged := [str(run.error) for run in runs.values() if run.status == "damaged"]:
            raise LeadlineError(f"{'; '.join(damaged)}; the same command with --rerun trains the run again")
        bits = {rate: run.value("bits_per_byte") for rate, run in runs.items()}
        points = [{"learning_rate": rate, "bits_per_byte": value} for rate, value in bits.items()]
        known = [(value, rate) for rate, value in bits.items() if value is not None]
        chosen = min(known)[1] if known else arm.learning_rate
        return {"design": arm.name, "points": points, "chosen": chosen, "source": f"this run, seed {self.sweep_seed}"}

    def collect(self, command: str) -> dict[str, Any]:
        """See `Experiment`; measures speed with the designs interleaved, and writes `results.csv` too."""
        from leadline.data import bits_per_byte

        config, runs = self.config, self.runs()
        finished = {arm.name: arm.config for arm in self.arms if any(run.summary for run in runs[arm.name])}
        speeds = measured_speeds(self.out, finished, config.speed_rounds, self.slots * self.threads)
        found = against(self.baseline, runs, self.seeds, bits_per_byte(1.0, self.data.heldout.bytes_per_token))
        tokens = next(arm.tokens for arm in self.arms if arm.name == self.baseline)
        start = opening(self.kind, command, self.data, self.seeds)
        start["data"]["read_bytes"] = self._read_bytes()
        results = {
            **start,
            "budget": {
                "kind": "tokens" if config.flops is None else "flops",
                "tokens": tokens,
                "flops": config.flops,
                "steps": tokens // self.budget.batch_tokens,
                "batch_tokens": self.budget.batch_tokens,
                "context": self.budget.context,
            },
            "preset": {"name": self.budget.preset.name, **dataclasses.asdict(self.budget.shape)},
            "baseline": self.baseline,
            "arms": [
                {
                    **self._facts(arm),
                    **measured(runs[arm.name]),
                    "speed": _speed(speeds, arm.name, self.baseline),
                    "difference": _difference(found.get(arm.name)),
                }
                for arm in self.arms
            ],
            "learning_rates": self.sweeps or shipped_sweeps(self.budget, self.arms),
        }
        results["verdict"] = verdict(results)
        self._write_csv(runs)
        return finite(results)

    def page(self, results: dict[str, Any]) -> str:
        """See `Experiment`."""
        return render(make_page(results))

    def _facts(self, arm: DesignArm) -> dict[str, Any]:
        """What is known of a design without running it."""
        from leadline.designs import count_flops, count_parameters

        design, shape = arm.design, self.budget.shape
        model = design.decoder(shape, self.data.vocab_size)
        divided = "divided by sqrt(2·blocks)" if model.init.output_scale == "depth" else "not divided"
        return {
            "name": design.name,
            "slug": design.slug,
            "summary": design.summary,
            "source": design.source,
            "notes": design.notes(shape),
            "settings": {"learning_rate": arm.learning_rate, "init": f"output projections {divided}"},
            "tokens": arm.tokens,
            "parameters": count_parameters(model).total,
            "flops_per_token": arm.flops_per_token,
            "depth_flops_per_token": count_flops(model).training_depth,
        }

    def _read_bytes(self) -> int:
        """Bytes of held-out text that an evaluation reads."""
        context, heldout = self.budget.context, self.data.heldout
        windows = max(1, min(heldout.windows(context), (self.config.logging.evaluate_tokens or 0) // context))
        return round(windows * context * heldout.bytes_per_token)

    def _write_csv(self, runs: Mapping[str, Sequence[RunResult]]) -> None:
        rows = [_row(arm, seed, run) for arm in self.arms for seed, run in zip(self.seeds, runs[arm.name], strict=True)]
        text = io.StringIO()
        writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.out / "results.csv", text.getvalue())


def _difference(found: Difference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        **(difference_as_data(found) or {}),
        "matters": abs(found.interval.mean) >= SMALLEST_EFFECT,
        "seeds": _ends(found.seeds),
        "text": None if found.text is None else {**_ends(found.text), "sequences": found.sequences},
        "too_little_text": found.too_little_text,
    }


def _ends(of: Interval) -> dict[str, float | None]:
    return {"low": of.low, "high": of.high}


def _speed(speeds: Mapping[str, Sequence[float]], name: str, baseline: str) -> dict[str, Any] | None:
    """A design's time for a step over the baseline's, and its seconds by round."""
    if name not in speeds or baseline not in speeds:
        return None
    ratio = ratio_of(speeds[name], speeds[baseline])
    return {"ratio": ratio.median, "low": ratio.low, "high": ratio.high, "seconds": list(speeds[name])}


def _row(arm: DesignArm, seed: int, run: RunResult) -> dict[str, Any]:
    """A row of `results.csv`."""
    memory = run.value("peak_memory_bytes")
    return {
        "design": arm.name,
        "seed": seed,
        "status": "failed" if run.status == "unfinished" else run.status,
        "learning_rate": arm.learning_rate,
        "loss": run.value("loss"),
        "bits_per_byte": run.value("bits_per_byte"),
        "tokens": arm.tokens,
        "tokens_per_second": run.value("tokens_per_second"),
        "peak_memory_bytes": None if memory is None else int(memory),
        "seconds": run.value("seconds"),
        "error": run.error,
    }
