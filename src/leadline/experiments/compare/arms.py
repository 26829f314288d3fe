"""The designs of a comparison, computed before anything runs: budgets, learning rates, costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leadline.designs import Design, count_flops, resolve, settings, tokens_for
from leadline.errors import UsageError
from leadline.experiments.compare.config import CompareConfig
from leadline.experiments.engine import Arm
from leadline.experiments.options import Budget, budget_of, parse_rates, parse_sweep

if TYPE_CHECKING:
    from leadline.data import DataSet

DEMO = (
    "prenorm",
    "attnres",
    "attnres-block",
    "mgr-independent",
    "mgr-competitive",
    "mhc-lite",
    "bhyt",
    "bhyt-unit",
    "lns",
)
BASELINE = "prenorm"
SWEEP_FACTORS = (0.5, 1.0, 2.0)
COST = {"additive": 1.0, "attention-residuals": 1.2, "multi-gate": 1.2, "hyper-connections": 1.4}
"""Time per FLOP against the plain stream, roughly, on a small model: connections launch many small operations."""
COST_OF_ALL_SOURCES = 1.7
COST_OF_OTHERS = 1.6


@dataclass(frozen=True, kw_only=True)
class DesignArm(Arm):
    """One design of a comparison.

    Attributes:
        design: resolved; its name is canonical.
        learning_rate: used where no sweep finds one.
        sweep: the learning rates that a sweep tries; empty without one.
        flops_per_token: of training, with the depth operators.
        parameters: of the model.
    """

    design: Design
    learning_rate: float
    sweep: tuple[float, ...]
    flops_per_token: int


def arms_of(config: CompareConfig, data: DataSet) -> tuple[Budget, str, list[DesignArm]]:
    """Size and length of the runs, the baseline's name, and the designs.

    Raises:
        UsageError: a design, an option or a value is wrong; names it, and what works.
    """
    if config.flops is not None and (config.data.tokens or config.data.steps):
        raise UsageError("--flops and --tokens both set the budget; give one of them")
    budget = budget_of(config, data)
    designs, baseline = _designs(config)
    rates = parse_rates(config.rates, [design.name for design in designs])
    grid = parse_sweep(config.sweep_lr)
    if grid and (rates or config.optimizer.lr):
        raise UsageError(
            "--lr and --rates do nothing beside --sweep-lr with rates of its own; leave them out, or give --sweep-lr "
            "without rates, which tries half, one and two times the rate"
        )
    arms = [_arm(budget, design, rates.get(design.name), grid, data.vocab_size) for design in designs]
    return budget, baseline, arms


def _arm(
    budget: Budget, design: Design, rate: float | None, grid: tuple[float, ...] | None, vocab_size: int
) -> DesignArm:
    options: CompareConfig = budget.config
    model = design.decoder(budget.shape, vocab_size)
    rate = rate or options.optimizer.lr or settings(design, budget.preset, budget.shape).learning_rate
    tokens = budget.tokens if options.flops is None else tokens_for(options.flops, model, budget.batch_tokens)
    flops = count_flops(model).training_total
    return DesignArm(
        name=design.name,
        slug=design.slug,
        config=options.run(design.name, tokens=tokens, lr=rate),
        tokens=tokens,
        cost=tokens * flops * _cost(design, budget.shape.blocks),
        measure={"tokens": options.measure_tokens, "removal_tokens": max(1, options.measure_tokens // 2)},
        design=design,
        learning_rate=rate,
        sweep=() if grid is None else grid or tuple(rate * factor for factor in SWEEP_FACTORS),
        flops_per_token=flops,
    )


def untuned_rates(budget: Budget, arms: Sequence[DesignArm]) -> list[str]:
    """A line for every design whose learning rate is Leadline's own and was not tuned at this size."""
    found = [(arm, settings(arm.design, budget.preset, budget.shape)) for arm in arms if not arm.sweep]
    return [
        f"{arm.name}: learning rate {shipped.learning_rate:g}, {shipped.source}"
        for arm, shipped in found
        if not shipped.tuned and arm.learning_rate == shipped.learning_rate
    ]


def shipped_sweeps(budget: Budget, arms: Sequence[DesignArm]) -> list[dict[str, Any]]:
    """How each design's loss depends on the learning rate, from the sweep that comes with Leadline.

    Only where the run is at the sweep's preset and shape and takes the sweep's rate: it would show another run.
    """
    import leadline

    curves = []
    for arm in arms:
        shipped = settings(arm.design, budget.preset, budget.shape)
        if shipped.points and arm.learning_rate == shipped.learning_rate:
            points = [{"learning_rate": rate, "bits_per_byte": bits} for rate, bits in sorted(shipped.points)]
            source = f"sweep shipped with Leadline {leadline.__version__}"
            curves.append({"design": arm.name, "points": points, "chosen": shipped.learning_rate, "source": source})
    return curves


def _designs(config: CompareConfig) -> tuple[list[Design], str]:
    named = [resolve(expression) for expression in config.designs or DEMO]
    names = [design.name for design in named]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise UsageError(f"{name} is named twice; each design takes part once")
    if config.baseline is None:
        return named, BASELINE if BASELINE in names else names[0]
    baseline = resolve(config.baseline)
    return named if baseline.name in names else [baseline, *named], baseline.name


def _cost(design: Design, blocks: int) -> float:
    connection = design.connection_for(blocks)
    if getattr(connection, "block_size", 0) is None:
        return COST_OF_ALL_SOURCES
    return COST.get(connection.kind, COST_OF_OTHERS)
