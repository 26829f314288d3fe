"""`results.json` and `results.csv`: everything that the report shows, in the form that other programs can read."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadline.experiments.compare.plan import DesignPlan, Plan
from leadline.experiments.compare.speed import ratio_of
from leadline.experiments.compare.verdict import verdict
from leadline.experiments.machine import describe_machine
from leadline.experiments.runs import RunResult, measured, read_run
from leadline.experiments.statistics import SMALLEST_EFFECT, Difference, Interval, differences
from leadline.files import write_json, write_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from leadline.data import DataSet
    from leadline.designs import ShapeConfig

COLUMNS = (
    "design",
    "seed",
    "status",
    "learning_rate",
    "loss",
    "bits_per_byte",
    "tokens",
    "tokens_per_second",
    "peak_memory_bytes",
    "seconds",
    "error",
)
INSTALL = "pip install --constraint constraints.txt --editable '.[demo]'"


def run_folder(out: Path, design: DesignPlan, seed: int, rate: float | None = None) -> Path:
    """Where a run lies; a sweep's runs have their learning rate in the name."""
    suffix = "" if rate is None else f"-lr{rate:g}"
    return out / "runs" / f"{design.slug}-seed{seed}{suffix}"


def collect(
    plan: Plan,
    out: Path,
    data: DataSet,
    rates: Mapping[str, float],
    sweeps: Sequence[dict[str, Any]],
    command: str,
    speeds: Mapping[str, Sequence[float]],
) -> dict[str, Any]:
    """The whole content of `results.json`, from the folders of the runs.

    Args:
        rates: the learning rate that each design was run with.
        speeds: seconds of a step by design and round; empty where they were not measured.
        sweeps: the `learning_rates` part, from this run's sweep; where it is empty, the shipped sweep stands in.
    """
    import leadline
    from leadline.designs import preset_named

    preset = preset_named(plan.preset)
    shape = _shape(plan)
    runs = {d.name: [read_run(run_folder(out, d, seed)) for seed in plan.seeds] for d in plan.designs}
    found = differences(
        {
            name: {
                seed: bits
                for seed, run in zip(plan.seeds, of_design, strict=True)
                if (bits := run.value("bits_per_byte")) is not None
            }
            for name, of_design in runs.items()
        },
        plan.baseline,
        _sequences(plan, runs, data),
    )
    tokens = next(d.tokens for d in plan.designs if d.name == plan.baseline)
    results: dict[str, Any] = {
        "leadline": leadline.__version__,
        "command": command,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": describe_machine(),
        "data": {
            "name": data.name,
            "hash": data.hash,
            "train_tokens": data.train.tokens,
            "heldout_tokens": data.heldout.tokens,
            "tokenizer": data.tokenizer.name,
            "read_bytes": _read_bytes(plan, data),
        },
        "budget": {
            "kind": "tokens" if plan.flops is None else "flops",
            "tokens": tokens,
            "flops": plan.flops,
            "steps": tokens // plan.batch_tokens,
            "batch_tokens": plan.batch_tokens,
            "context": plan.context,
        },
        "preset": {"name": preset.name, **asdict(shape)},
        "baseline": plan.baseline,
        "seeds": list(plan.seeds),
        "designs": [
            {
                **_facts(d, shape, data.vocab_size, rates[d.name]),
                **measured(runs[d.name]),
                "speed": _speed(speeds, d.name, plan.baseline),
                "difference": _difference(found.get(d.name)),
            }
            for d in plan.designs
        ],
        "learning_rates": list(sweeps) or _shipped(plan),
    }
    results["verdict"] = verdict(results)
    results["repeat"] = {"command": command, "install": INSTALL}
    plain: dict[str, Any] = finite(results)
    return plain


def write_results(results: dict[str, Any], plan: Plan, out: Path, rates: Mapping[str, float]) -> None:
    """Writes `results.json` and `results.csv` into the comparison's folder."""
    write_json(out / "results.json", results)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for design in plan.designs:
        for seed in plan.seeds:
            run = read_run(run_folder(out, design, seed))
            writer.writerow(_row(design, seed, rates[design.name], run))
    write_text(out / "results.csv", text.getvalue())


def finite(value: Any) -> Any:
    """The same data with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value


def _shape(plan: Plan) -> ShapeConfig:
    from leadline.designs import preset_named

    changes: dict[str, Any] = {**plan.shape, "context": plan.context}
    return replace(preset_named(plan.preset).shape, **changes)


def _facts(plan: DesignPlan, shape: ShapeConfig, vocab_size: int, rate: float) -> dict[str, Any]:
    """What is known of a design without running it."""
    from leadline.designs import count_flops, count_parameters, resolve

    design = resolve(plan.name)
    config = design.decoder(shape, vocab_size)
    flops = count_flops(config)
    divided = "divided by sqrt(2·blocks)" if config.init.output_scale == "depth" else "not divided"
    return {
        "name": design.name,
        "slug": design.slug,
        "summary": design.summary,
        "source": design.source,
        "notes": design.notes(shape),
        "settings": {"learning_rate": rate, "init": f"output projections {divided}"},
        "tokens": plan.tokens,
        "parameters": count_parameters(config).total,
        "flops_per_token": flops.training_total,
        "depth_flops_per_token": flops.training_depth,
    }


def _difference(found: Difference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    own = found.interval
    return {
        "mean": own.mean,
        "low": own.low,
        "high": own.high,
        "beyond_noise": found.beyond_noise,
        "p_value": found.p_value,
        "pairs": list(found.pairs),
        "matters": abs(own.mean) >= SMALLEST_EFFECT,
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


def _sequences(
    plan: Plan, runs: Mapping[str, Sequence[RunResult]], data: DataSet
) -> dict[str, dict[int, NDArray[np.float64]]]:
    """Bits per byte of every held-out sequence, by design and seed, of the runs that kept them."""
    from leadline.data import bits_per_byte

    unit = bits_per_byte(1.0, data.heldout.bytes_per_token)
    found: dict[str, dict[int, NDArray[np.float64]]] = {}
    for name, of_design in runs.items():
        losses = {seed: run.sequences for seed, run in zip(plan.seeds, of_design, strict=True)}
        found[name] = {seed: unit * of for seed, of in losses.items() if of is not None}
    return found


def _read_bytes(plan: Plan, data: DataSet) -> int:
    """Bytes of held-out text that an evaluation reads."""
    windows = max(1, min(data.heldout.windows(plan.context), plan.evaluate_tokens // plan.context))
    return round(windows * plan.context * data.heldout.bytes_per_token)


def _shipped(plan: Plan) -> list[dict[str, Any]]:
    """How each design's loss depends on the learning rate, from the sweep that comes with Leadline.

    Only where the run is at the sweep's preset and shape and takes the sweep's rate: it would show another run.
    """
    import leadline
    from leadline.designs import preset_named, resolve, settings

    preset = preset_named(plan.preset)
    changes: dict[str, Any] = {**plan.shape}
    shape = replace(preset.shape, **changes)
    curves = []
    for design in plan.designs:
        shipped = settings(resolve(design.name), preset, shape)
        if shipped.points and design.learning_rate == shipped.learning_rate:
            points = [{"learning_rate": rate, "bits_per_byte": bits} for rate, bits in sorted(shipped.points)]
            source = f"sweep shipped with Leadline {leadline.__version__}"
            curves.append({"design": design.name, "points": points, "chosen": shipped.learning_rate, "source": source})
    return curves


def _row(design: DesignPlan, seed: int, rate: float, run: RunResult) -> list[Any]:
    status = "failed" if run.status == "unfinished" else run.status
    numbers = {name: run.value(name) for name in ("loss", "bits_per_byte", "tokens_per_second", "seconds")}
    memory = run.value("peak_memory_bytes")
    values = {
        **numbers,
        "design": design.name,
        "seed": seed,
        "status": status,
        "learning_rate": rate,
        "tokens": design.tokens,
        "peak_memory_bytes": None if memory is None else int(memory),
        "error": run.error,
    }
    return ["" if values[column] is None else values[column] for column in COLUMNS]
