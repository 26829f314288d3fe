"""From the files of finished runs to one design's part of `results.json`: means over its seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from leadline.errors import LeadlineError
from leadline.experiments.jobs import read_failure
from leadline.experiments.statistics import Difference, differences, interval
from leadline.experiments.worker import PROBES
from leadline.files import check_sum
from leadline.reading import read_json, read_lines
from leadline.training.gradient_file import GRADIENT, load_gradient
from leadline.training.records import (
    EVALS,
    STEPS,
    SUMMARY,
    EvalRow,
    Shares,
    StepRow,
    Summary,
    load_sequences,
    read_summary,
)

CURVE_POINTS = 200
T = TypeVar("T")


Table = list[Shares | None]


class Probes(TypedDict):
    """The content of `probes.json`: see `leadline.probes.measure`."""

    tokens: int
    block_output_rms: Shares
    read_rms: Shares
    output_rms: Shares
    removal: Shares
    angular_distance: Table
    depth_weights: Table | None
    gates: Table | None
    stream_diversity: Shares | None
    mixing: list[Table | None] | None


DEPTH = [name for name in Probes.__annotations__ if name != "tokens"]
"""The measurements along depth."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What one run's folder says.

    Attributes:
        status: "damaged" where the run finished, and a file of it holds something else than was written.
        summary: `summary.json`; None where the run did not finish, or is damaged. So with the rest.
        error: why not.
        sequences: held-out loss of every sequence at the end, nats a token; None for a run of an earlier version.
    """

    folder: Path
    status: Literal["ok", "unfinished", "failed", "damaged"]
    summary: Summary | None = None
    error: str | None = None
    evaluations: list[EvalRow] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)
    gradient: dict[str, Any] | None = None
    probes: Probes | None = None
    sequences: NDArray[np.float64] | None = field(default=None, compare=False)

    def value(self, name: str) -> float | None:
        """A number of the summary, or None."""
        return None if self.summary is None else float(getattr(self.summary, name))


def read_run(folder: Path) -> RunResult:
    """Reads a run's folder. The files of a finished run have to hold what a run writes, and to fit each other."""
    try:
        error = read_failure(folder)
        if error is not None:
            return RunResult(folder=folder, status="failed", error=error)
        if not (folder / SUMMARY).exists():
            return RunResult(folder=folder, status="unfinished", error="did not finish")
        summary = read_summary(folder / SUMMARY)
        evaluations, steps = read_lines(folder / EVALS, EvalRow), read_lines(folder / STEPS, StepRow)
        for name in (EVALS, STEPS):
            check_sum(folder / name)
        _check(folder, summary, evaluations, steps)
        return RunResult(
            folder=folder,
            status="ok",
            summary=summary,
            evaluations=evaluations,
            steps=steps,
            gradient=load_gradient(folder),
            probes=_probes(folder),
            sequences=load_sequences(folder),
        )
    except LeadlineError as error:
        return RunResult(folder=folder, status="damaged", error=f"{folder.name} is damaged: {error}")


def _check(folder: Path, summary: Summary, evaluations: Sequence[EvalRow], steps: Sequence[StepRow]) -> None:
    """Raises LeadlineError where the records of a finished run are not those of its summary."""
    if [row["step"] for row in steps] != list(range(1, summary.steps + 1)):
        raise LeadlineError(
            f"{folder / SUMMARY} and {STEPS} differ: there should be a line for each step from 1 to {summary.steps}"
        )
    if not (folder / GRADIENT).is_file():
        raise LeadlineError(f"{folder / GRADIENT} is missing")
    last = steps[-1] if steps else StepRow(step=0, tokens=0, loss=summary.train_loss)
    end: dict[str, Any] = {**evaluations[-1]} if evaluations else {}
    written: dict[str, dict[str, Any]] = {
        STEPS: {"tokens": last["tokens"], "train_loss": last["loss"]},
        EVALS: {"steps": end.get("step"), "loss": end.get("loss"), "bits_per_byte": end.get("bits_per_byte")},
        SUMMARY: {"tokens_per_second": summary.tokens / max(summary.seconds, 1e-9)},
    }
    for name, values in written.items():
        for key, value in values.items():
            if value != getattr(summary, key):
                raise LeadlineError(f"{folder / SUMMARY} says {key} {getattr(summary, key)}, and {name} gives {value}")


def _probes(folder: Path) -> Probes | None:
    try:
        probes = read_json(folder / PROBES, Probes, advice="remove it to measure the run again")
        check_sum(folder / PROBES)
        return probes
    except FileNotFoundError:
        return None


def measured(runs: Sequence[RunResult], *, depth: bool = True) -> dict[str, Any]:
    """An arm's numbers, curves and (`depth`) pictures along depth over its runs, one per seed.

    Returns:
        `status`, `error`, `damaged` (the folders of such runs), `loss`, `bits_per_byte`, speeds and sizes, `curve` and
        `depth`, as `results.json` has them. Losses, curves and depth are None where no run finished; a list of values
        has None for a failed seed.
    """
    finished = [run for run in runs if run.summary is not None]
    damaged = [run for run in runs if run.status == "damaged"]
    errors = [run.error for run in runs if run.error]
    status = "ok" if not errors else ("partial" if finished else "failed")
    return {
        "status": status,
        "error": "; ".join(str(run.error) for run in damaged) or (errors[0] if errors else None),
        "damaged": [str(run.folder) for run in damaged],
        "loss": _over_seeds(runs, "loss"),
        "bits_per_byte": _over_seeds(runs, "bits_per_byte"),
        "tokens_per_second": _speed(finished),
        "peak_memory_bytes": max((run.summary.peak_memory_bytes for run in finished if run.summary), default=None),
        "seconds": mean_of([run.value("seconds") for run in finished]),
        "curve": _curve(finished) if finished else None,
        **({"depth": _depth(finished) if finished else None} if depth else {}),
    }


def against(
    baseline: str, runs: Mapping[str, Sequence[RunResult]], seeds: Sequence[int], sequence_unit: float | None = None
) -> dict[str, Difference]:
    """Every other arm minus the baseline in bits per byte, by pairs of the same seed; see `statistics.differences`.

    Args:
        sequence_unit: bits per byte of a nat a token, to take the held-out sequences into account.
    """

    def by_seed(value: Callable[[RunResult], T | None]) -> dict[str, dict[int, T]]:
        return {
            name: {seed: v for seed, run in zip(seeds, of_arm, strict=True) if (v := value(run)) is not None}
            for name, of_arm in runs.items()
        }

    def sequences(run: RunResult) -> NDArray[np.float64] | None:
        return None if run.sequences is None or sequence_unit is None else sequence_unit * run.sequences

    return differences(by_seed(lambda run: run.value("bits_per_byte")), baseline, by_seed(sequences))


def mean_of(values: Sequence[Any]) -> Any:
    """The mean of numbers, or entry by entry of lists of the same shape; None among them is passed over."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if isinstance(known[0], list):
        length = min(len(value) for value in known)
        return [mean_of([value[i] for value in known]) for i in range(length)]
    finite = [float(value) for value in known if math.isfinite(value)]
    return _mean(finite) if finite else None


def thin(rows: Sequence[Mapping[str, Any]], points: int = CURVE_POINTS) -> dict[str, list[float]]:
    """`tokens` and `loss` of steps, averaged in at most `points` groups of neighbours."""
    rows = [row for row in rows if row.get("loss") is not None and math.isfinite(row["loss"])]
    size = max(1, math.ceil(len(rows) / points))
    groups = [rows[i : i + size] for i in range(0, len(rows), size)]
    return {
        "tokens": [group[-1]["tokens"] for group in groups],
        "loss": [_mean([row["loss"] for row in group]) for group in groups],
    }


def _over_seeds(runs: Sequence[RunResult], name: str) -> dict[str, Any] | None:
    values = [run.value(name) for run in runs]
    known = [value for value in values if value is not None]
    if not known:
        return None
    over = interval(known)
    return {"mean": over.mean, "low": over.low, "high": over.high, "values": values}


def _speed(runs: Sequence[RunResult]) -> float | None:
    """The median over steps, and over seeds: what else the machine did for a while doesn't count."""
    speeds = []
    for run in runs:
        steps = [speed for row in run.steps if (speed := row.get("tokens_per_second"))]
        whole = run.value("tokens_per_second")
        if steps:
            speeds.append(float(statistics.median(steps)))
        elif whole is not None:
            speeds.append(whole)
    return statistics.median(speeds) if speeds else None


def _curve(runs: Sequence[RunResult]) -> dict[str, Any]:
    bits = _by_tokens([{row["tokens"]: row.get("bits_per_byte") for row in run.evaluations} for run in runs])
    losses = _by_tokens([{row["tokens"]: row["loss"] for row in run.steps} for run in runs])
    return {
        "tokens": list(bits),
        "bits_per_byte": list(bits.values()),
        "train_loss": thin([{"tokens": tokens, "loss": loss} for tokens, loss in losses.items()]),
    }


def _by_tokens(runs: Sequence[Mapping[int, float | None]]) -> dict[int, float]:
    """The means at the numbers of tokens at which every run has a value, in order."""
    shared = [tokens for tokens in runs[0] if all(run.get(tokens) is not None for run in runs)]
    return {tokens: _mean([float(run[tokens] or 0.0) for run in runs]) for tokens in sorted(shared)}


def _depth(runs: Sequence[RunResult]) -> dict[str, Any]:
    probes: list[Mapping[str, Any]] = [{**run.probes} if run.probes else {} for run in runs]
    depth = {name: mean_of([found.get(name) for found in probes]) for name in DEPTH}
    return {**depth, "gradient_share": mean_of([(run.gradient or {}).get("share") for run in runs])}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
