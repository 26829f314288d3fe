"""The options that every experiment has, and how seeds, rates and lists of designs are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadline.errors import UsageError, did_you_mean
from leadline.sections import Positive
from leadline.training.config import Checkpoints, RunConfig, Sections

if TYPE_CHECKING:
    from leadline.data import DataSet
    from leadline.designs import Preset, ShapeConfig

MOST_SEEDS = 1000
BESIDE = ("out", "jobs", "threads", "devices", "rerun", "speed_rounds")
"""Options that decide nothing of what an experiment is: with others the same folder resumes."""


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig(Sections):
    """Options of an experiment, and in sections those of each of its runs."""

    checkpoints: Checkpoints = Checkpoints(keep=1)

    out: Path = Path("runs/experiment")
    """Where runs, results and the report go."""

    seeds: str = "3"
    """How many seeds (3 means 0, 1, 2), or which (0,1,5). One seed shows no interval."""

    rates: str | None = None
    """Learning rates of single designs or arms, such as prenorm=4e-3,mgr=8e-3; --lr is one for all."""

    evaluations: Positive = 4
    """How often in a run the held-out loss is measured."""

    jobs: Positive | None = None
    """Runs at a time; unless given one on each of --devices, else two, or one on one core."""

    threads: Positive | None = None
    """Threads of each run; the cores divided by the jobs unless given."""

    devices: str | None = None
    """On a machine with several GPUs: which to use, one run at a time on each, such as 0,1,3, or all."""

    rerun: bool = False
    """Train failed runs, and those whose files are damaged, from the start; else failed ones resume."""

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        """The seeds."""
        return parse_seeds(self.seeds)

    def run(self, design: str, *, tokens: int, lr: float | None, **options: Any) -> RunConfig:
        """One run of the experiment, evaluated and saved `evaluations` times on its way; its seed is put in later.

        Args:
            options: that replace the experiment's.
        """
        run = RunConfig(design=design, **self.sections()).replaced(tokens=tokens, steps=None, lr=lr, **options)
        steps = tokens // ((run.data.batch_size or 1) * (run.model.context or 1))
        every = run.logging.evaluate_every or max(1, steps // self.evaluations)
        return run.replaced(evaluate_every=every, checkpoint_every=run.checkpoints.checkpoint_every or every)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How large the models of an experiment are, and how long each trains.

    Attributes:
        config: the experiment's options, with batch size, context and tokens filled in.
        tokens: of a run, in whole steps.
    """

    config: Any
    preset: Preset
    shape: ShapeConfig
    tokens: int

    @property
    def context(self) -> int:
        """Tokens of a sequence."""
        return self.shape.context

    @property
    def batch_tokens(self) -> int:
        """Tokens of a step."""
        return int(self.config.data.batch_size * self.context)


def budget_of(config: ExperimentConfig, data: DataSet, *, tiny: int | None = None) -> Budget:
    """Size and length of an experiment's runs on opened data.

    Args:
        tiny: tokens of a run at the preset `tiny`, instead of the preset's.

    Raises:
        UsageError: an option does not work here; names it, and what does.
    """
    from leadline.designs import preset_named
    from leadline.distributed.world import layout
    from leadline.ops.choice import check_backend
    from leadline.training.resolve import shape_of, sizes_of, usable_device
    from leadline.training.tracking import require_trackers, trackers_of

    preset = preset_named(config.model.preset)
    shape = shape_of(config.model)
    check_backend(config.runtime.backend, usable_device(config.runtime.device).type)
    chosen_devices(config.devices, config.runtime.device)
    require_trackers(trackers_of(config.logging.log_to))
    layout(config.parallel.replicate, config.parallel.shard, 1)  # each run is one process
    data.train.windows(shape.context)
    data.heldout.windows(shape.context)
    batch_size = config.data.batch_size or preset.batch_size
    batch_tokens = batch_size * shape.context
    steps = config.data.steps
    if steps is None:
        known = tiny if tiny is not None and preset.name == "tiny" else preset.tokens
        steps = -(-(config.data.tokens or known) // batch_tokens)
    tokens = steps * batch_tokens
    filled = config.replaced(
        preset=preset.name,
        **sizes_of(preset, shape),
        context=shape.context,
        batch_size=batch_size,
        tokens=tokens,
        steps=None,
        seeds=",".join(map(str, (*config.seed_numbers, ""))),
    )
    return Budget(config=filled, preset=preset, shape=shape, tokens=tokens)


def chosen_devices(text: str | None, device: str = "auto") -> tuple[str, ...]:
    """The numbers of the GPUs that `--devices` names, empty where it isn't given.

    Raises:
        UsageError: no such GPU, one twice, or another --device.
    """
    import torch

    if text is None:
        return ()
    if device not in ("auto", "cuda"):
        raise UsageError(f"devices={text} names GPUs, and --device {device} is another; leave out one of the two")
    here = [str(number) for number in range(torch.cuda.device_count())]
    chosen = here if text == "all" else [part.strip() for part in text.split(",")]
    if not here or not set(chosen) <= set(here) or len(set(chosen)) < len(chosen):
        known = f"there are {len(here)}: {', '.join(here)}, or all" if here else "there is none that PyTorch can use"
        raise UsageError(f"devices={text} is not a list of GPUs here; {known}")
    return tuple(chosen)


def parse_seeds(text: str) -> tuple[int, ...]:
    """`3` is the seeds 0, 1, 2; `0,1,5` is these; `7,` is 7 alone.

    Raises:
        UsageError: no seeds, a seed twice, or not whole numbers.
    """
    parts = [part.strip() for part in text.split(",")]
    try:
        values = [int(part) for part in parts if part]
    except ValueError:
        raise UsageError(f"--seeds {text!r} is neither a number of seeds (3) nor a list of seeds (0,1,5)") from None
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
        UsageError: a value that is not a positive number, or a design that takes no part.
    """
    if text is None:
        return {}
    rates: dict[str, float] = {}
    for part in split_outside(text):
        name, separator, value = part.rpartition("=")
        if not separator or name.count("(") > name.count(")"):
            if len(split_outside(text)) > 1:
                raise UsageError(f"--rates: {part!r} names no design; write design=rate for each, or one rate for all")
            return dict.fromkeys(designs, positive("--rates", part))
        name = name.strip()
        if name not in designs:
            raise UsageError(
                f"--rates names {name!r}, which is not compared; the designs are {', '.join(designs)}."
                f"{did_you_mean(name, designs)}"
            )
        rates[name] = positive("--rates", value)
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
        raise UsageError(f"--sweep-lr: {named!r} is not a learning rate; designs stand before --sweep-lr")
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
        raise UsageError(f"{option}: {text.strip()!r} is not a number; 4e-3 works") from None
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
