"""What `leadline study cascade` will do: designs at equal training FLOPs, worked out before anything runs.

Beside every taper stands its uniform control: the same widths in every layer, the taper's mean, where that costs the
same a token. A difference between the two comes from the taper; one to the baseline also comes from a smaller model
that reads more tokens.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leadline.designs import (
    Design,
    Preset,
    ShapeConfig,
    Side,
    count_flops,
    levelled,
    preset_named,
    reshaped,
    resolve,
    settings,
    solve,
)
from leadline.designs.equal import RESIDUAL, By
from leadline.designs.expression import slug
from leadline.errors import UsageError
from leadline.experiments.compare.plan import Precision, parse_rates, parse_seeds
from leadline.ops.choice import Backend, check_backend
from leadline.report.words import fixed

if TYPE_CHECKING:
    from leadline.data import DataSet

DESIGNS = ("cascade-a2", "cascade-f1", "cascade-f2", "cascade-af", "cascade-reverse", "cascade-middle")
"""Without cascade-a1, whose mean is no whole number of heads at 15 layers: no uniform stack costs the same."""
DEEPER = ("cascade-a2",)
"""Of these."""
BASELINE = "prenorm"
BLOCKS = 15
"""The depth of the paper's baseline."""
SMALL = {"dim": 96, "heads": 6}
"""Instead of `tiny`'s 72 and 3: six heads can be halved and cut in thirds."""
TOKENS = 307_200
"""Of the baseline's runs at `tiny`: three seeds of all default designs take less than an hour on two cores."""


@dataclass(frozen=True, kw_only=True)
class CascadeWish:
    """What a study is asked to be; see `leadline study cascade --help`.

    Attributes:
        designs: the default ones unless given.
        deeper: those of the designs that also take part with more layers, until they cost what the baseline costs at
            about its tokens; none with `("none",)`; cascade-a2 with the default designs, unless `by` makes all deeper
            or it saves too little for a further layer.
        tokens: of the baseline's runs; the preset's unless given, at `tiny` 307,200.
        rates: as `leadline.experiments.compare.plan.parse_rates` reads it.
        dim, heads: the preset's width, and heads as `leadline.designs.reshaped` has them, unless given; at `tiny` 96
            and 6, each unless given, so that heads can be halved and cut in thirds.
    """

    designs: tuple[str, ...] | None = None
    deeper: tuple[str, ...] | None = None
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
    evaluations: int = 4
    evaluate_tokens: int = 65_536
    precision: Precision = "float32"
    backend: Backend = "auto"
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class ArmPlan:
    """One design of the study.

    Attributes:
        name: the design's, with what was made of it.
        design: as `leadline.designs.resolve` reads it.
        control: the name of the arm that has the mean of its widths in every layer and costs the same a token.
        control_note: of a taper, by how much the control's FLOPs a token differ, or why there is none.
        shape: options of the model's size that replace the preset's.
        residual: its training FLOPs over the baseline's, minus one.
        forward_flops: per token, operators along depth included.
        widths: heads, key heads and MLP width of every layer.
    """

    name: str
    design: str
    slug: str
    control: str | None
    control_note: str
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
    batch_tokens = batch_size * shape.context
    known = TOKENS if preset.name == "tiny" else preset.tokens
    tokens = max(1, -(-(known if wish.tokens is None else wish.tokens) // batch_tokens)) * batch_tokens
    reference = Side(design=designs[0], shape=shape, tokens=tokens)
    arms = _Arms(reference, preset, data.vocab_size, batch_tokens, wish.rates)
    for design in designs[1:]:
        arms.add(design, wish.by)
    for design in _deeper(wish, designs):
        arms.add_deeper(design, asked=wish.deeper is not None)
    return CascadePlan(
        arms=arms.planned(),
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
    others = [resolve(expression) for expression in (DESIGNS if wish.designs is None else wish.designs)]
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


def _deeper(wish: CascadeWish, designs: list[Design]) -> list[Design]:
    """Those of the designs that also take part deeper."""
    by_depth = wish.by.startswith("depth")
    default = DEEPER if wish.designs is None and not by_depth else ()
    names = default if wish.deeper is None else () if wish.deeper == ("none",) else wish.deeper
    if names and by_depth:
        raise UsageError(f"--deeper {','.join(names)} goes with --by tokens or width; --by {wish.by} makes all deeper")
    tapers = {design.name: design for design in designs[1:]}
    found = [resolve(name) for name in names]
    for design in found:
        if design.name not in tapers:
            raise UsageError(f"--deeper {design.name} is not among the designs; {', '.join(tapers)} work")
    if len({design.name for design in found}) < len(found):
        raise UsageError(f"--deeper {','.join(names)} names a design twice; each takes part once")
    return found


class _Arms:
    """The arms as they are worked out, the baseline first, each taper's control behind it."""

    def __init__(self, reference: Side, preset: Preset, vocab_size: int, batch_tokens: int, rates: str | None) -> None:
        self.reference, self.preset, self.vocab_size, self.batch_tokens = reference, preset, vocab_size, batch_tokens
        self.rates = rates
        self.sides: dict[str, Side] = {reference.design.name: reference}
        self.controls: dict[str, tuple[str | None, str]] = {}

    def add(self, design: Design, by: By, suffix: str = "") -> None:
        """A design at the baseline's cost, and its uniform control if that costs the same a token."""
        name = f"{design.name}{suffix}"
        if name in self.sides:  # it was the control of one before
            return
        side = self._equal(self.reference, design, by)
        self.sides[name] = side
        uniform = levelled(design, side.shape)
        if len(set(design.taper.widths(side.shape))) > 1:
            self.controls[name] = self._control(name, side, uniform, suffix)

    def add_deeper(self, design: Design, *, asked: bool) -> None:
        """The same with more blocks. Where what it saves pays for none, that is an error if it was asked for."""
        blocks = self.reference.shape.blocks
        if self._equal(self.reference, design, "depth+tokens").shape.blocks > blocks:
            self.add(design, "depth+tokens", ", deeper")
        elif asked:
            raise UsageError(
                f"--deeper {design.name}: what it saves at {blocks} blocks pays for no further one; more blocks work, "
                "or --deeper none"
            )

    def _control(self, name: str, side: Side, uniform: Design, suffix: str) -> tuple[str | None, str]:
        vocab_size = self.vocab_size
        costs = [Side(design=d, shape=side.shape, tokens=1).flops_per_token(vocab_size) for d in (uniform, side.design)]
        off = costs[0] / costs[1] - 1
        told = "the same FLOPs a token"
        if costs[0] != costs[1]:
            told = f"{fixed(100 * off, 1, sign=True)} % FLOPs a token"
        if abs(off) >= RESIDUAL:
            return None, f"no uniform stack costs the same: the nearest, {uniform.name}, has {told}"
        control = self._equal(side, uniform, "tokens")
        chosen = f"{uniform.name}{suffix}"
        if self.sides.setdefault(chosen, control) != control:
            chosen = f"{chosen}, like {name}"
            self.sides[chosen] = control
        return chosen, told

    def _equal(self, reference: Side, design: Design, by: By) -> Side:
        return solve(reference, design, vocab_size=self.vocab_size, batch_tokens=self.batch_tokens, by=by).variant

    def planned(self) -> tuple[ArmPlan, ...]:
        """All of them. A control trains at the rate of the first taper that it is beside, unless it is given one."""
        names = [side.design.name for side in self.sides.values()]
        rates = parse_rates(self.rates, list(dict.fromkeys(names)))
        tapers = {control: self.sides[name].design for name, (control, _) in reversed(self.controls.items())}
        return tuple(
            self._plan(name, side, rates.get(side.design.name) or rates.get(tapers.get(name, side.design).name))
            for name, side in self.sides.items()
        )

    def _plan(self, name: str, side: Side, rate: float | None) -> ArmPlan:
        design, reference = side.design, self.reference
        flops = count_flops(design.decoder(side.shape, self.vocab_size))
        control, note = self.controls.get(name, (None, ""))
        changes = {
            field: value
            for field, value in dataclasses.asdict(side.shape).items()
            if value != getattr(self.preset, field) and field not in ("context", "tied")
        }
        whole = reference.flops_per_token(self.vocab_size) * reference.tokens
        return ArmPlan(
            name=name,
            design=design.expression,
            slug=slug(name),
            control=control,
            control_note=note,
            learning_rate=rate or settings(design, self.preset).learning_rate,
            shape=changes,
            tokens=side.tokens,
            flops_per_token=flops.training_total,
            residual=flops.training_total * side.tokens / whole - 1,
            forward_flops=flops.forward,
            parameters=side.parameters(self.vocab_size),
            widths=tuple(tuple(widths) for widths in design.taper.widths(side.shape)),
        )
