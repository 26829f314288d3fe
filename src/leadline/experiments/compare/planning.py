"""From what a user asks for to a plan: designs resolved, budgets counted, learning rates looked up, names checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leadline.errors import UsageError
from leadline.experiments.compare.plan import DesignPlan, Plan, Precision, parse_rates, parse_seeds, parse_sweep
from leadline.ops.choice import Backend, check_backend

if TYPE_CHECKING:
    from leadline.data import DataSet
    from leadline.designs import Design, Preset, ShapeConfig

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


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a comparison is asked to be; everything has a default. See `leadline compare --help`.

    Attributes:
        tokens, steps, flops: the budget of every run; at most one of them. By default the preset's tokens.
        rates: as `parse_rates` reads it.
        sweep: as `parse_sweep` reads it.
    """

    designs: tuple[str, ...] = DEMO
    baseline: str | None = None
    data: str = "sotu"
    preset: str = "tiny"
    tokens: int | None = None
    steps: int | None = None
    flops: float | None = None
    seeds: str = "3"
    rates: str | None = None
    sweep: tuple[str, ...] | None = None
    blocks: int | None = None
    dim: int | None = None
    batch_size: int | None = None
    context: int | None = None
    evaluations: int = 8
    evaluate_tokens: int = 32_768
    measure_tokens: int = 8_192
    removal_tokens: int = 4_096
    precision: Precision = "float32"
    backend: Backend = "auto"
    device: str = "cpu"


def make_plan(wish: Wish, data: DataSet) -> Plan:
    """The plan of a comparison on opened data.

    Raises:
        UsageError: a design, an option or a value is wrong; names it, and what works.
    """
    from leadline.designs import count_flops, preset_named, settings, tokens_for

    preset = preset_named(wish.preset)
    shape = shape_of(preset, wish)
    batch_size = preset.batch_size if wish.batch_size is None else wish.batch_size
    for option, value in (("--batch-size", batch_size), ("--evaluations", wish.evaluations)):
        if value < 1:
            raise UsageError(f"{option} {value} is too small; 1 or more work")
    data.train.windows(shape.context)
    data.heldout.windows(shape.context)
    check_backend(wish.backend, wish.device.partition(":")[0])
    designs, baseline = _designs(wish)
    seeds = parse_seeds(wish.seeds)
    rates = _rates(wish.rates, designs)
    grid = parse_sweep(wish.sweep)
    if grid and rates:
        raise UsageError(
            f"--lr {wish.rates} does nothing beside --sweep-lr with rates of its own; leave --lr out, or give "
            "--sweep-lr without rates, which tries half, one and two times --lr"
        )
    batch_tokens = batch_size * shape.context
    tokens = _tokens(wish, preset, batch_tokens)
    plans = []
    for design in designs:
        config = design.decoder(shape, data.vocab_size)
        rate = rates.get(design.name) or settings(design, preset, shape).learning_rate
        sweep = grid or tuple(rate * factor for factor in SWEEP_FACTORS)
        plans.append(
            DesignPlan(
                name=design.name,
                slug=design.slug,
                learning_rate=rate,
                sweep=() if grid is None else sweep,
                tokens=tokens if wish.flops is None else tokens_for(wish.flops, config, batch_tokens),
                flops_per_token=float(count_flops(config).training_total),
            )
        )
    return Plan(
        designs=tuple(plans),
        baseline=baseline,
        seeds=seeds,
        sweep_seed=max(seeds) + 1,
        data=wish.data,
        data_hash=data.hash,
        preset=preset.name,
        shape={n: v for n, v in dataclasses.asdict(shape).items() if v != getattr(preset, n) and n != "context"},
        batch_size=batch_size,
        context=shape.context,
        flops=wish.flops,
        evaluations=wish.evaluations,
        evaluate_tokens=wish.evaluate_tokens,
        measure_tokens=wish.measure_tokens,
        removal_tokens=wish.removal_tokens,
        precision=wish.precision,
        backend=wish.backend,
        device=wish.device,
    )


def untuned_rates(plan: Plan) -> list[str]:
    """A line for every design whose learning rate is Leadline's own and was not tuned at this size."""
    from leadline.designs import preset_named, resolve, settings

    preset = preset_named(plan.preset)
    changes: dict[str, Any] = {**plan.shape}
    shape = dataclasses.replace(preset.shape, **changes)
    found = [(d, settings(resolve(d.name), preset, shape)) for d in plan.designs if not d.sweep]
    return [
        f"{design.name}: learning rate {shipped.learning_rate:g}, {shipped.source}"
        for design, shipped in found
        if not shipped.tuned and design.learning_rate == shipped.learning_rate
    ]


def shape_of(preset: Preset, wish: Wish) -> ShapeConfig:
    """The preset's shape with another depth, width or length; see `leadline.designs.reshaped`."""
    from leadline.designs import reshaped

    return reshaped(preset.shape, blocks=wish.blocks, dim=wish.dim, context=wish.context)


def _designs(wish: Wish) -> tuple[list[Design], str]:
    from leadline.designs import resolve

    named = [resolve(expression) for expression in wish.designs or DEMO]
    for index, design in enumerate(named):
        if design.name in [other.name for other in named[:index]]:
            raise UsageError(f"{design.name} is named twice; each design takes part once")
    names = [design.name for design in named]
    if wish.baseline is None:
        return named, BASELINE if BASELINE in names else names[0]
    baseline = resolve(wish.baseline)
    return named if baseline.name in names else [baseline, *named], baseline.name


def _rates(text: str | None, designs: Sequence[Design]) -> dict[str, float]:
    return parse_rates(text, [design.name for design in designs])


def _tokens(wish: Wish, preset: Preset, batch_tokens: int) -> int:
    """Whole steps' tokens of a budget in tokens; unused where the budget is in FLOPs."""
    given = [n for n, v in (("--tokens", wish.tokens), ("--steps", wish.steps), ("--flops", wish.flops)) if v]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} both set the budget; give one of them")
    if wish.steps is not None:
        return wish.steps * batch_tokens
    tokens = preset.tokens if wish.tokens is None else wish.tokens
    steps = tokens // batch_tokens
    if steps < 1 and wish.flops is None:
        raise UsageError(f"--tokens {tokens} is less than one step, which has {batch_tokens} tokens")
    return max(1, steps) * batch_tokens
