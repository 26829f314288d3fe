"""What a comparison will do, worked out before anything runs, and kept as `compare.json` beside its results."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from leadline.config import to_dict
from leadline.errors import UsageError, did_you_mean
from leadline.files import check_folder, write_json
from leadline.lock import LOCK_FILE
from leadline.ops.choice import Backend
from leadline.reading import read_json

Precision = Literal["float32", "bfloat16"]
PLAN_FILE = "compare.json"
MOST_SEEDS = 1000


@dataclass(frozen=True, kw_only=True)
class DesignPlan:
    """One design of a comparison.

    Attributes:
        name: the design's canonical expression.
        slug: the same for file names.
        learning_rate: used where no sweep finds one.
        sweep: the learning rates that a sweep tries; empty without one.
        tokens: that each of its runs trains on.
        flops_per_token: of training, with the operators along depth.
    """

    name: str
    slug: str
    learning_rate: float
    sweep: tuple[float, ...] = ()
    tokens: int
    flops_per_token: float


class DesignFile(TypedDict):
    """What is read of a design by name; the whole is compared."""

    name: str


class PlanFile(TypedDict):
    """What is read of `compare.json` by name."""

    designs: list[DesignFile]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole comparison. All runs follow from it, so two equal plans can share a folder.

    Attributes:
        shape: options of the model's size that replace the preset's.
        flops: the training FLOPs of every run, where these are equal; None where tokens are.
        sweep_seed: the seed of a sweep's runs; takes no part in the comparison.
        measure_tokens: of held-out text for the measurements along depth.
        removal_tokens: the same for removing blocks, which runs the model once per block.
    """

    designs: tuple[DesignPlan, ...]
    baseline: str
    seeds: tuple[int, ...]
    sweep_seed: int
    data: str
    data_hash: str
    preset: str
    shape: dict[str, int]
    batch_size: int
    context: int
    flops: float | None
    evaluations: int
    evaluate_tokens: int
    measure_tokens: int
    removal_tokens: int
    precision: Precision
    backend: Backend
    device: str

    @property
    def batch_tokens(self) -> int:
        return self.batch_size * self.context


def parse_seeds(text: str) -> tuple[int, ...]:
    """`3` is the seeds 0, 1, 2; `0,1,5` is these; `7,` is 7 alone.

    Raises:
        UsageError: no seeds, a seed twice, or not whole numbers.
    """
    parts = [part.strip() for part in text.split(",")]
    try:
        values = [int(part) for part in parts if part]
    except ValueError:
        raise UsageError(f"--seeds {text!r} is no number of seeds (3) and no list of seeds (0,1,5)") from None
    if not values or min(values) < 0:
        raise UsageError(f"--seeds {text!r} holds no seeds; 3 (that is 0, 1, 2) and 0,1,5 work")
    if len(parts) > 1:
        if len(set(values)) < len(values):
            raise UsageError(f"--seeds {text!r} names a seed twice")
        return tuple(values)
    if values[0] > MOST_SEEDS:
        raise UsageError(
            f"--seeds {text!r} asks for too many; 1 to {MOST_SEEDS} work, and `{values[0]},` is that seed alone"
        )
    if values[0] == 0:
        raise UsageError("--seeds 0 asks for no seeds; 1 or more work, and `0,` is seed 0 alone")
    return tuple(range(values[0]))


def parse_rates(text: str | None, designs: Sequence[str]) -> dict[str, float]:
    """Learning rates by design from `4e-3`, for all, or `prenorm=4e-3,mgr(streams=8, gate=independent)=8e-3`.

    Raises:
        UsageError: a value that is no positive number, or a design that takes no part.
    """
    if text is None:
        return {}
    rates: dict[str, float] = {}
    for part in split_outside(text):
        name, separator, value = part.rpartition("=")
        if not separator or name.count("(") > name.count(")"):
            if len(split_outside(text)) > 1:
                raise UsageError(f"--lr: {part!r} names no design; write design=rate for each, or one rate for all")
            return dict.fromkeys(designs, positive("--lr", part))
        name = name.strip()
        if name not in designs:
            raise UsageError(
                f"--lr names {name!r}, which is not compared; the designs are {', '.join(designs)}."
                f"{did_you_mean(name, designs)}"
            )
        rates[name] = positive("--lr", value)
    return rates


def parse_sweep(values: Sequence[str] | None) -> tuple[float, ...] | None:
    """The grid of `--sweep-lr`: None without the option, empty for the one by itself, or the rates given.

    Raises:
        UsageError: fewer than two rates, or no numbers.
    """
    if values is None:
        return None
    parts = [part.strip() for value in values for part in value.split(",") if part.strip()]
    named = next((part for part in parts if part[0].isalpha() and part.lower() not in ("nan", "inf")), None)
    if named is not None:
        raise UsageError(f"--sweep-lr: {named!r} is no learning rate; designs stand before --sweep-lr")
    rates = sorted({positive("--sweep-lr", part) for part in parts})
    if len(rates) == 1:
        raise UsageError(
            "--sweep-lr needs at least two learning rates, such as 2e-3,4e-3,8e-3, or none for its own grid"
        )
    return tuple(rates)


def positive(option: str, text: str) -> float:
    """A positive, finite number.

    Raises:
        UsageError: naming the option.
    """
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{option}: {text.strip()!r} is no number; 4e-3 works") from None
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{option}: {text.strip()} is not a positive number; 4e-3 works")
    return value


def split_outside(text: str) -> list[str]:
    """Splits at the commas that stand outside parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def keep_plan(plan: Plan, out: Path) -> None:
    """Writes the plan into a folder that `check_out` has found to be its own."""
    if not (out / PLAN_FILE).exists():
        write_json(out / PLAN_FILE, to_dict(plan))


def check_out(plan: Plan, out: Path) -> None:
    """Makes sure that the comparison may use the folder, and writes nothing.

    Raises:
        UsageError: it is a file, or holds something else or another comparison; says what differs.
        LeadlineError: what it holds is damaged.
    """
    check_folder(out, "--out")
    path = out / PLAN_FILE
    if not path.exists():
        if out.exists() and any(entry.name != LOCK_FILE for entry in out.iterdir()):
            raise UsageError(f"--out {out} holds something that is no comparison; name a new or empty folder")
        return
    content = json.loads(json.dumps(to_dict(plan)))
    old = read_json(path, PlanFile, advice="give another --out")
    different = list(_differences(old, content, ""))
    if different:
        shown = "; ".join(different[:4]) + ("; …" if len(different) > 4 else "")
        raise UsageError(f"--out {out} holds another comparison: {shown}. Give another --out, or the same options.")


def _differences(old: Any, new: Any, where: str) -> Any:
    if where == "designs" and isinstance(old, list) and isinstance(new, list):
        before, after = ([d.get("name") for d in designs] for designs in (old, new))
        if before != after:
            yield f"designs {', '.join(map(str, before))} there, {', '.join(map(str, after))} here"
            return
        for one, other in zip(old, new, strict=True):
            yield from _differences(one, other, str(one["name"]))
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            place = f"{where} {key}" if where else str(key)
            yield from _differences(old.get(key), new.get(key), place)
    elif old != new:
        yield f"{where.replace('_', ' ')} is {_said(old)} there and {_said(new)} here"


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
