"""From the files of finished runs to one design's part of `results.json`: means over its seeds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leadline.compare.jobs import read_failure
from leadline.compare.statistics import interval
from leadline.errors import LeadlineError

CURVE_POINTS = 200


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What one run's folder says.

    Attributes:
        summary: `summary.json`; None where the run did not finish.
        error: why not.
    """

    folder: Path
    summary: dict[str, Any] | None
    error: str | None
    evaluations: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    gradient: dict[str, Any] | None
    probes: dict[str, Any] | None

    def value(self, name: str) -> float | None:
        """A finite number of the summary, or None."""
        found = (self.summary or {}).get(name)
        return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def read_run(folder: Path) -> RunResult:
    """Reads a run's folder; what is not there is None or empty."""
    error = read_failure(folder)
    summary = None if error else _json(folder / "summary.json")
    if summary is None and error is None:
        error = "did not finish"
    return RunResult(
        folder=folder,
        summary=summary,
        error=error,
        evaluations=_lines(folder / "evals.jsonl"),
        steps=_lines(folder / "steps.jsonl"),
        gradient=_json(folder / "gradient.json"),
        probes=_json(folder / "probes.json"),
    )


def measured(runs: Sequence[RunResult]) -> dict[str, Any]:
    """A design's numbers, curves and pictures along depth over its runs, one per seed.

    Returns:
        `status`, `error`, `loss`, `bits_per_byte`, speeds and sizes, `curve` and `depth`, as `results.json` has
        them. Losses, curves and depth are None where no run finished; a list of values has None for a failed seed.
    """
    finished = [run for run in runs if run.summary is not None]
    errors = [run.error for run in runs if run.error]
    status = "ok" if not errors else ("partial" if finished else "failed")
    return {
        "status": status,
        "error": errors[0] if errors else None,
        "loss": _over_seeds(runs, "loss"),
        "bits_per_byte": _over_seeds(runs, "bits_per_byte"),
        "tokens_per_second": _speed(finished),
        "peak_memory_bytes": _summary(finished, "peak_memory_bytes", max),
        "seconds": _summary(finished, "seconds", _mean),
        "curve": _curve(finished) if finished else None,
        "depth": _depth(finished) if finished else None,
    }


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


def thin(rows: Sequence[dict[str, Any]], points: int = CURVE_POINTS) -> dict[str, list[float]]:
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


def _summary(runs: Sequence[RunResult], name: str, combine: Callable[[list[float]], float]) -> float | int | None:
    values = [value for run in runs if (value := run.value(name)) is not None]
    if not values:
        return None
    combined = combine(values)
    return int(combined) if name.endswith("_bytes") else combined


def _speed(runs: Sequence[RunResult]) -> float | None:
    """The median over steps, and over seeds: what else the machine did for a while doesn't count."""
    speeds = []
    for run in runs:
        steps = [row["tokens_per_second"] for row in run.steps if row.get("tokens_per_second")]
        whole = run.value("tokens_per_second")
        if steps:
            speeds.append(float(statistics.median(steps)))
        elif whole is not None:
            speeds.append(whole)
    return statistics.median(speeds) if speeds else None


def _curve(runs: Sequence[RunResult]) -> dict[str, Any]:
    by_tokens: dict[int, list[float]] = {}
    for run in runs:
        # A run that was continued may hold a step twice; the later line counts.
        for tokens, bits in {row["tokens"]: row.get("bits_per_byte") for row in run.evaluations}.items():
            if bits is not None and math.isfinite(bits):
                by_tokens.setdefault(tokens, []).append(bits)
    tokens = sorted(t for t, values in by_tokens.items() if len(values) == len(runs))
    steps: dict[int, list[float]] = {}
    for run in runs:
        for count, loss in {row["tokens"]: row["loss"] for row in run.steps}.items():
            steps.setdefault(count, []).append(loss)
    train = [{"tokens": t, "loss": _mean(losses)} for t, losses in sorted(steps.items()) if len(losses) == len(runs)]
    return {
        "tokens": tokens,
        "bits_per_byte": [_mean(by_tokens[t]) for t in tokens],
        "train_loss": thin(train),
    }


def _depth(runs: Sequence[RunResult]) -> dict[str, Any]:
    names = (
        "block_output_rms",
        "read_rms",
        "output_rms",
        "removal",
        "angular_distance",
        "depth_weights",
        "gates",
        "stream_diversity",
        "mixing",
    )
    depth = {name: mean_of([(run.probes or {}).get(name) for run in runs]) for name in names}
    return {**depth, "gradient_share": mean_of([(run.gradient or {}).get("share") for run in runs])}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, json.JSONDecodeError) as error:
        raise LeadlineError(f"{path} cannot be read ({error}); remove its folder to train this run again") from error
    return content if isinstance(content, dict) else None


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            # The last line of a run that was killed while it wrote.
            continue
    return rows
