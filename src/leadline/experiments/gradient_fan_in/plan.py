"""What `leadline study gfa` will do, worked out before anything runs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leadline.designs import preset_named, resolve
from leadline.errors import UsageError
from leadline.experiments.compare.plan import Precision, parse_rates, parse_seeds
from leadline.experiments.gradient_fan_in.arm import ArmPlan
from leadline.experiments.gradient_fan_in.registry import chosen
from leadline.experiments.gradient_fan_in.statistics import late_count
from leadline.ops.choice import Backend, check_backend

if TYPE_CHECKING:
    from leadline.data import DataSet

TOKENS = 307_200
"""At the preset tiny: with six arms and three seeds under 40 minutes on two cores."""


@dataclass(frozen=True, kw_only=True)
class GfaWish:
    """What a study is asked to be; see `leadline study gfa --help`.

    Attributes:
        arms: their names; `registry.USUAL` without. Controls are added where an arm needs one.
        images: what the arm resnet50 learns, as `leadline.data.image_sources.resolve_images` takes them.
        blocks: the preset's unless given.
        tokens: of every run; 300 steps at `tiny`, the preset's elsewhere, unless given.
        steps: instead of tokens.
        rates: as `leadline.experiments.compare.plan.parse_rates` reads it, by arm.
        repeat: "8x2": the last 8 blocks run twice in the repeated arm; the last third twice unless given.
        layer_dropout, exit_loss: of the layerskip arm.
        details: records of the gradients' effective rank and diversity in a run; 0 has none.
        ablation_tokens: held-out tokens for ΔM, which runs the model once for every block.
    """

    design: str = "prenorm"
    arms: tuple[str, ...] | None = None
    images: str = "digits"
    data: str = "sotu"
    preset: str = "tiny"
    blocks: int | None = None
    tokens: int | None = None
    steps: int | None = None
    seeds: str = "3"
    rates: str | None = None
    repeat: str | None = None
    layer_dropout: float = 0.2
    exit_loss: float = 1.0
    batch_size: int | None = None
    context: int | None = None
    evaluations: int = 5
    evaluate_tokens: int = 16_384
    ablation_tokens: int = 16_384
    details: int = 5
    precision: Precision = "float32"
    backend: Backend = "auto"
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class GfaPlan:
    """The whole study; all runs follow from it, so two equal plans can share a folder.

    Attributes:
        repeat: of the repeated arm.
        last: how many blocks that repeats, for importance over just these.
    """

    arms: tuple[ArmPlan, ...]
    design: str
    seeds: tuple[int, ...]
    data: str
    data_hash: str
    preset: str
    repeat: str
    last: int
    ablation_tokens: int
    device: str

    def arm(self, name: str) -> ArmPlan:
        """The arm of that name, which takes part."""
        return next(arm for arm in self.arms if arm.name == name)

    @property
    def blocks(self) -> int:
        """Of the first arm."""
        return self.arms[0].blocks


def make_plan(wish: GfaWish, data: DataSet) -> GfaPlan:
    """The plan of a study on opened data.

    Raises:
        UsageError: an arm, an option or a value is wrong; names it, and what works.
    """
    from leadline.training.config import parse_repeat

    seeds = parse_seeds(wish.seeds)
    kinds = chosen(wish.arms)
    if any(kind.loss_per == "byte" for kind in kinds):  # a backend does not reach the images
        check_backend(wish.backend, wish.device.partition(":")[0])
    if wish.images != GfaWish.images and all(kind.loss_per == "byte" for kind in kinds):
        raise UsageError(f"--images {wish.images} goes with the arm resnet50, which is not among --arms")
    skipping = {"--layer-dropout": wish.layer_dropout, "--exit-loss": wish.exit_loss}
    usual = {"--layer-dropout": GfaWish.layer_dropout, "--exit-loss": GfaWish.exit_loss}
    if skipping != usual and all(kind.name != "layerskip" for kind in kinds):
        said = " and ".join(f"{option} {value:g}" for option, value in skipping.items() if value != usual[option])
        raise UsageError(f"{said} goes with the arm layerskip, which is not among --arms")
    wish = _filled(wish)
    rates = parse_rates(wish.rates, [kind.name for kind in kinds])
    repeat = wish.repeat or ""
    last, _ = parse_repeat(repeat)
    planned = [kind.plan(wish, data, rates.get(kind.name)) for kind in kinds]
    if planned[0].blocks < 3:
        raise UsageError(f"--blocks {planned[0].blocks} is too small; a correlation over blocks takes 3 or more")
    return GfaPlan(
        arms=tuple(planned),
        design=resolve(wish.design).name,
        seeds=seeds,
        data=wish.data,
        data_hash=data.hash,
        preset=preset_named(wish.preset).name,
        repeat=repeat,
        last=last,
        ablation_tokens=wish.ablation_tokens,
        device=wish.device,
    )


def _filled(wish: GfaWish) -> GfaWish:
    """With tokens and steps, batch and context decided and everything in range."""
    preset = preset_named(wish.preset)
    for option, value, least in (
        ("--steps", 1 if wish.steps is None else wish.steps, 1),
        ("--blocks", preset.blocks if wish.blocks is None else wish.blocks, 1),
        ("--batch-size", 1 if wish.batch_size is None else wish.batch_size, 1),
        ("--context", 1 if wish.context is None else wish.context, 1),
        ("--evaluations", wish.evaluations, 1),
        ("--ablation-tokens", wish.ablation_tokens, 1),
        ("--details", wish.details, 0),
    ):
        if value < least:
            raise UsageError(f"{option} {value} is too small; {least} or more work")
    if wish.steps is not None and wish.tokens is not None:
        raise UsageError("--steps and --tokens say the same; give one of the two")
    context = wish.context or preset.context
    batch_size = wish.batch_size or preset.batch_size
    usual = TOKENS if preset.name == "tiny" else preset.tokens
    tokens = wish.steps * batch_size * context if wish.steps else (wish.tokens or usual)
    steps = max(1, -(-tokens // (batch_size * context)))
    return dataclasses.replace(
        wish,
        tokens=steps * batch_size * context,
        steps=steps,
        batch_size=batch_size,
        context=context,
        repeat=wish.repeat or f"{late_count(preset.blocks if wish.blocks is None else wish.blocks)}x2",
    )
