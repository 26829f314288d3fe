"""What `leadline study cascade` will do: designs at equal training FLOPs, computed before anything runs.

Beside every taper stands its uniform control: the same widths in every layer, the taper's mean, where that costs the
same a token. A difference between the two comes from the taper; one to the baseline also comes from a smaller model
that reads more tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from leadline.choices import By
from leadline.data import DataSet
from leadline.designs import Design, Side, count_flops, levelled, resolve, settings, solve
from leadline.designs.equal import RESIDUAL
from leadline.designs.expression import slug
from leadline.errors import UsageError
from leadline.experiments.cascade.config import CascadeConfig
from leadline.experiments.engine import Arm
from leadline.experiments.options import Budget, budget_of, parse_rates, split_outside
from leadline.report.words import fixed
from leadline.training.resolve import sizes_of

DESIGNS = ("cascade-a2", "cascade-f1", "cascade-f2", "cascade-af", "cascade-reverse", "cascade-middle")
"""Without cascade-a1, whose mean is not a whole number of heads at 15 layers: no uniform stack costs the same."""
DEEPER = ("cascade-a2",)
"""Of these."""
SMALL = {"dim": 96, "heads": 6}
"""Instead of `tiny`'s 72 and 3: six heads can be halved and cut in thirds."""
TOKENS = 307_200
"""Of the baseline's runs at `tiny`: three seeds of all default designs take less than an hour on two cores."""


@dataclass(frozen=True, kw_only=True)
class TaperArm(Arm):
    """One design of the study; its name says what was made of it.

    Attributes:
        design: as `leadline.designs.resolve` reads it.
        control: the name of the arm that has the mean of its widths in every layer and costs the same a token.
        control_note: of a taper, by how much the control's FLOPs a token differ, or why there is none.
        shape: what replaces the preset's sizes, by name; None where nothing does.
        residual: its training FLOPs over the baseline's, minus one.
        forward_flops: per token, operators along depth included.
        widths: heads, key heads and MLP width of every layer.
    """

    design: str
    control: str | None
    control_note: str
    learning_rate: float
    shape: dict[str, int | None]
    flops_per_token: int
    residual: float
    forward_flops: int
    parameters: int
    widths: tuple[tuple[int, ...], ...]


def plan(config: CascadeConfig, data: DataSet) -> tuple[Budget, list[TaperArm]]:
    """The arms of a study on opened data, the baseline first: shapes, equal budgets, learning rates.

    At `tiny` the width is 96 and the heads are 6, each unless given, so that heads can be halved and cut in thirds.

    Raises:
        UsageError: a design, an option or a value is wrong; names it, and what works.
    """
    if config.model.preset.lower() == "tiny":
        known = {name: size for name, size in SMALL.items() if getattr(config.model, name) is None}
        config = config.replaced(**known)
    budget = budget_of(config, data, tiny=TOKENS)
    designs = _designs(config)
    reference = Side(design=designs[0], shape=budget.shape, tokens=budget.tokens)
    arms = _Arms(reference, budget, data.vocab_size)
    for design in designs[1:]:
        arms.add(design, config.by)
    for design in _deeper(config, designs):
        arms.add_deeper(design, asked=config.deeper is not None)
    return budget, arms.planned()


def _designs(config: CascadeConfig) -> list[Design]:
    """The baseline first."""
    baseline = resolve(config.baseline)
    named = [resolve(design) for design in (DESIGNS if config.designs is None else split_outside(config.designs))]
    others = [design for design in named if design.name != baseline.name]
    for index, design in enumerate(others):
        if design.name in [other.name for other in others[:index]]:
            raise UsageError(f"{design.name} is named twice; each design takes part once")
    if not others:
        raise UsageError(f"there is nothing to compare {baseline.name} with; --designs cascade-a2,cascade-af works")
    return [baseline, *others]


def _deeper(config: CascadeConfig, designs: list[Design]) -> list[Design]:
    """Those of the designs that also take part deeper."""
    by_depth = config.by.startswith("depth")
    default = DEEPER if config.designs is None and not by_depth else ()
    names = default if config.deeper is None else () if config.deeper == "none" else split_outside(config.deeper)
    if names and by_depth:
        raise UsageError(
            f"--deeper {','.join(names)} goes with --by tokens or width; --by {config.by} makes all deeper"
        )
    tapers = {design.name: design for design in designs[1:]}
    found = [resolve(name) for name in names]
    for design in found:
        if design.name not in tapers:
            raise UsageError(f"--deeper {design.name} is not among the designs; {', '.join(tapers)} work")
    if len({design.name for design in found}) < len(found):
        raise UsageError(f"--deeper {','.join(names)} names a design twice; each takes part once")
    return found


class _Arms:
    """The arms as they are computed, the baseline first, each taper's control behind it."""

    def __init__(self, reference: Side, budget: Budget, vocab_size: int) -> None:
        self.reference, self.budget, self.vocab_size = reference, budget, vocab_size
        self.sides: dict[str, Side] = {reference.design.name: reference}
        self.controls: dict[str, tuple[str | None, str]] = {}

    def add(self, design: Design, by: By, suffix: str = "") -> None:
        """A design at the baseline's cost, and its uniform control if that costs the same a token."""
        name = f"{design.name}{suffix}"
        if name in self.sides:  # it was the control of one before
            return
        side = self.sides[name] = self._equal(self.reference, design, by)
        if len(set(design.taper.widths(side.shape))) > 1:
            self.controls[name] = self._control(name, side, levelled(design, side.shape), suffix)

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
        level = Side(design=uniform, shape=side.shape, tokens=1)
        off = level.flops_per_token(self.vocab_size) / side.flops_per_token(self.vocab_size) - 1
        told = f"{fixed(100 * off, 1, sign=True)} % FLOPs a token" if off else "the same FLOPs a token"
        if abs(off) >= RESIDUAL:
            return None, f"no uniform stack costs the same: the nearest, {uniform.name}, has {told}"
        control = self._equal(side, uniform, "tokens")
        chosen = f"{uniform.name}{suffix}"
        if self.sides.setdefault(chosen, control) != control:
            chosen = f"{chosen}, like {name}"
            self.sides[chosen] = control
        return chosen, told

    def _equal(self, reference: Side, design: Design, by: By) -> Side:
        return solve(
            reference, design, vocab_size=self.vocab_size, batch_tokens=self.budget.batch_tokens, by=by
        ).variant

    def planned(self) -> list[TaperArm]:
        """All of them. A control trains at the rate of the first taper that it is beside, unless it is given one."""
        names = [side.design.name for side in self.sides.values()]
        rates = parse_rates(self.budget.config.rates, list(dict.fromkeys(names)))
        tapers = {control: self.sides[name].design for name, (control, _) in reversed(self.controls.items())}
        return [
            self._arm(name, side, rates.get(side.design.name) or rates.get(tapers.get(name, side.design).name))
            for name, side in self.sides.items()
        ]

    def _arm(self, name: str, side: Side, rate: float | None) -> TaperArm:
        design, reference, config = side.design, self.reference, self.budget.config
        flops = count_flops(design.decoder(side.shape, self.vocab_size))
        control, note = self.controls.get(name, (None, ""))
        rate = rate or config.optimizer.lr or settings(design, self.budget.preset).learning_rate
        shape = sizes_of(self.budget.preset, side.shape)
        whole = reference.flops_per_token(self.vocab_size) * reference.tokens
        return TaperArm(
            name=name,
            slug=slug(name),
            config=config.run(design.expression, tokens=side.tokens, lr=rate, **shape),
            tokens=side.tokens,
            cost=float(flops.training_total * side.tokens),
            design=design.expression,
            control=control,
            control_note=note,
            learning_rate=rate,
            shape=shape,
            flops_per_token=flops.training_total,
            residual=flops.training_total * side.tokens / whole - 1,
            forward_flops=flops.forward,
            parameters=side.parameters(self.vocab_size),
            widths=tuple(tuple(widths) for widths in design.taper.widths(side.shape)),
        )
