"""The arms of the study: one design, trained in seven ways by options of `leadline.training`, and a ResNet-50.

The ResNet is claim G1 where there are no tokens, no attention and no Pre-LN: the sixteen bottleneck blocks of ResNet-50
at a width that a CPU can train, on real images, and as many steps as the other arms. An image counts as a token. What
belongs to text alone (batch size, context, precision, backend) does not reach it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from leadline.errors import UsageError, did_you_mean
from leadline.experiments.engine import Arm
from leadline.experiments.gradient_fan_in.config import DROPOUT, EXIT_LOSS, GfaConfig
from leadline.experiments.gradient_fan_in.measure import MEASURE_FILE
from leadline.experiments.images.config import ImageRunConfig
from leadline.experiments.options import Budget
from leadline.training.config import EarlyExitTraining

if TYPE_CHECKING:
    from leadline.training.resolve import Run

Role = Literal["plain", "control", "equalise", "repeat"]
"""What an arm is for: "plain" ones test G1, "equalise" and "repeat" test G2 against their control."""

DETAIL_STEPS = 2.0
"""A record of effective rank and diversity takes about so many steps more."""
PLAIN: dict[str, Any] = {"repeat": None, "early_exit": EarlyExitTraining()}
"""A run without interventions."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A way to train.

    Attributes:
        name: as `--arms` takes it, and in the names of folders.
        summary: what is done, in a sentence's words.
        role: what it is for.
        control: the arm that it is held against, if any.
        options: of the run, from the study's.
        loss_per: what its loss in bits is of: a byte of text, or an image.
    """

    name: str
    summary: str
    role: Role = "plain"
    control: str = ""
    options: Callable[[GfaConfig], Mapping[str, Any]] = field(default=lambda config: {})
    loss_per: Literal["byte", "image"] = "byte"


@dataclass(frozen=True, kw_only=True)
class FanInArm(Arm):
    """An arm, computed before anything runs.

    Attributes:
        blocks: those with parameters of their own.
        learning_rate: the peak.
        flops_per_token: of training.
        data_hash: of what it learns, where that is not the study's text.
    """

    kind: Kind
    blocks: int
    learning_rate: float
    parameters: int
    flops_per_token: int
    data_hash: str = ""


def decoder_arm(kind: Kind, budget: Budget, lr: float | None) -> FanInArm:
    """A decoder's arm."""
    from leadline.designs import count_flops, count_parameters
    from leadline.training.resolve import decide

    config: GfaConfig = budget.config
    steps = budget.tokens // budget.batch_tokens
    every = max(1, steps // config.details) if config.details else 0
    options = {**PLAIN, "gradient_every": every, **kind.options(config)}
    run = decide(config.run(config.design, tokens=budget.tokens, lr=lr, **options))
    return FanInArm(
        name=kind.name,
        slug=kind.name,
        config=run.config,
        tokens=budget.tokens,
        cost=_cost(run, config),
        task="gradient_fan_in.measure:train_and_measure",
        files=(MEASURE_FILE,),
        more={"ablation_tokens": config.ablation_tokens},
        kind=kind,
        blocks=len(run.model.layers),
        learning_rate=run.learning_rate,
        parameters=count_parameters(run.model).total,
        flops_per_token=count_flops(run.model).training_total,
    )


def resnet_arm(kind: Kind, budget: Budget, lr: float | None) -> FanInArm:
    """The ResNet's arm."""
    from leadline.models.resnet import ResNet, count_forward_flops

    config: GfaConfig = budget.config
    steps = budget.tokens // budget.batch_tokens
    run = ImageRunConfig(
        images=config.images,
        steps=steps,
        learning_rate=ImageRunConfig.learning_rate if lr is None else lr,
        evaluate_every=max(1, steps // config.evaluations),
        gradient_every=max(1, steps // config.details) if config.details else 0,
        device=config.runtime.device,
    )
    images = run.open_images()
    model = run.model(images)
    forward = count_forward_flops(model, images.shape[1])
    trained, heldout = steps * run.batch_size, len(images.heldout.labels)
    evaluated = heldout * (1 + steps // run.evaluated_every)
    measured = min(heldout, config.ablation_tokens) * (2 + model.blocks)
    return FanInArm(
        name=kind.name,
        slug=kind.name,
        config=run,
        tokens=trained,
        cost=float(forward) * (3 * trained + evaluated + measured),
        unit="images",
        task="gradient_fan_in.measure:train_and_measure_images",
        files=(MEASURE_FILE,),
        more={"ablation_tokens": config.ablation_tokens},
        kind=kind,
        blocks=model.blocks,
        learning_rate=run.learning_rate,
        parameters=sum(parameter.numel() for parameter in ResNet(model).parameters()),
        flops_per_token=3 * forward,
        data_hash=images.hash,
    )


def chosen(config: GfaConfig) -> list[Kind]:
    """The arms that take part with the controls that they need, in the order of the report.

    Raises:
        UsageError: an unknown name, none, or an option of an arm that takes no part.
    """
    if config.arms is None:
        return [KINDS[name] for name in USUAL]
    wanted = {name.strip() for name in config.arms.split(",") if name.strip()}
    if not wanted:
        raise UsageError(f"--arms names no arm; {', '.join(KINDS)} work")
    for name in wanted:
        if name not in KINDS:
            raise UsageError(f"--arms: {name!r} is not known; {', '.join(KINDS)} work.{did_you_mean(name, KINDS)}")
    wanted |= {KINDS[name].control for name in wanted if KINDS[name].control}
    if "resnet50" not in wanted and config.images != GfaConfig.images:
        raise UsageError(f"images={config.images} goes with the arm resnet50, which is not among --arms")
    skip = config.early_exit
    if "layerskip" not in wanted and skip != GfaConfig.early_exit:
        raise UsageError("options of early exits go with the arm layerskip, which is not among --arms")
    return [kind for kind in KINDS.values() if kind.name in wanted]


def amount_of(loss_per: str) -> str:
    """What an arm trains on, for people, from its `loss_per`."""
    return "images" if loss_per == "image" else "tokens"


def _layerskip(config: GfaConfig) -> Mapping[str, Any]:
    skip = config.early_exit
    if skip.layer_dropout <= 0 and skip.exit_loss <= 0:
        raise UsageError(
            f"--layer-dropout 0 with --exit-loss 0 leaves nothing of layerskip; {DROPOUT:g} and {EXIT_LOSS:g} work"
        )
    return {"early_exit": skip}


def _cost(run: Run, config: GfaConfig) -> float:
    """FLOPs of training with its exits and its records, of the evaluations, and of a forward pass for every block."""
    from leadline.designs import count_flops

    flops = count_flops(run.model)
    skip = run.layerskip
    training, evaluation = float(flops.training_total), float(flops.forward)
    if skip.drops:
        training *= 1 - sum(skip.rates()) / len(skip.rates())
    if skip.exits:
        training += 3.0 * flops.head * skip.mean_exits
        evaluation += flops.head * len(skip.rates())
    if every := run.config.logging.gradient_every:
        training *= 1 + DETAIL_STEPS / every
    places, layers = len(run.model.block_layers), len(run.model.layers)
    passes = 1 + layers + (places if places > layers else 0)
    read = min(run.evaluate_tokens, run.data.heldout.tokens) * (1 + run.steps // run.evaluate_every)
    trained = run.steps * run.batch_tokens
    return training * trained + evaluation * read + flops.forward * passes * config.ablation_tokens


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(name="vanilla", summary="plain training with AdamW"),
        Kind(
            name="layerskip",
            summary="LayerSkip: blocks dropped in depth, losses at early exits",
            control="vanilla",
            options=_layerskip,
        ),
        Kind(
            name="equalised-adamw",
            summary="the gradients of all blocks rescaled to one norm in each step, AdamW",
            role="equalise",
            control="vanilla",
            options=lambda config: {"equalise": True},
        ),
        Kind(
            name="equalised-updates",
            summary="what AdamW adds to each block rescaled to one norm in each step",
            role="equalise",
            control="vanilla",
            options=lambda config: {"equalise_updates": True},
        ),
        Kind(
            name="vanilla-sgd",
            summary="plain training with SGD, the control of equalised-sgd",
            role="control",
            options=lambda config: {"optimizer": "sgd"},
        ),
        Kind(
            name="equalised-sgd",
            summary="the gradients of all blocks rescaled to one norm in each step, SGD",
            role="equalise",
            control="vanilla-sgd",
            options=lambda config: {"optimizer": "sgd", "equalise": True},
        ),
        Kind(
            name="repeated",
            summary="the last blocks run several times with the same parameters",
            role="repeat",
            control="vanilla",
            options=lambda config: {"repeat": config.interventions.repeat},
        ),
        Kind(
            name="resnet50",
            summary="ResNet-50's sixteen bottleneck blocks on real images, SGD",
            loss_per="image",
        ),
    )
}
"""Every arm by its name, in the order of the report."""

USUAL = tuple(name for name in KINDS if not name.endswith("-sgd"))
"""Those that take part unless arms are named. SGD is far behind AdamW after a short training, and its importance there
is noise."""
