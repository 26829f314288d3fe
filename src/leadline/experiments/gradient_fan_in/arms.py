"""The arms of the study: one design, trained in seven ways by options of `leadline.training`, and a ResNet-50.

The ResNet is claim G1 where there are no tokens, no attention and no Pre-LN: the sixteen bottleneck blocks of ResNet-50
at a width that a CPU can train, on real images, and as many steps as the other arms. An image counts as a token. What
belongs to text alone (batch size, context, precision, backend) does not reach it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from leadline.designs import count_flops, count_parameters
from leadline.errors import UsageError, did_you_mean
from leadline.experiments.engine import Arm
from leadline.experiments.gradient_fan_in.config import DROPOUT, EXIT_LOSS, GfaConfig
from leadline.experiments.gradient_fan_in.measure import MEASURE_FILE
from leadline.experiments.images.config import ImageRunConfig
from leadline.experiments.options import Budget
from leadline.models.resnet import ResNet, count_forward_flops
from leadline.training.config import EarlyExitTraining
from leadline.training.resolve import Run, decide

Role = Literal["plain", "control", "equalise", "repeat"]
"""What an arm is for: "plain" ones test G1, "equalise" and "repeat" test G2 against their control."""

DETAIL_STEPS = 2.0
"""A record of effective rank and diversity takes about so many steps more."""
PLAIN: dict[str, Any] = {"repeat": None, "early_exit": EarlyExitTraining()}
"""A run without interventions."""


SGD = {"optimizer": "sgd"}
EQUAL = "rescaled to one norm in each step"
EQUAL_GRADIENTS = f"the gradients of all blocks {EQUAL}"


@dataclass(frozen=True)
class Kind:
    """A way to train.

    Attributes:
        name: as `--arms` takes it, and in the names of folders.
        summary: what is done, in a sentence's words.
        role: what it is for.
        control: the arm that it is held against, if any.
        options: of the run, instead of the study's.
        keeps: the study's intervention that it trains with.
        loss_per: what its loss in bits is of: a byte of text, or an image.
    """

    name: str
    summary: str
    role: Role = "plain"
    control: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    keeps: Literal["repeat", "early_exit"] | None = None
    loss_per: Literal["byte", "image"] = "byte"


_KINDS = (
    Kind("vanilla", "plain training with AdamW"),
    Kind(
        "layerskip", "LayerSkip: blocks dropped in depth, losses at early exits", "plain", "vanilla", keeps="early_exit"
    ),
    Kind("equalised-adamw", f"{EQUAL_GRADIENTS}, AdamW", "equalise", "vanilla", {"equalise": True}),
    Kind(
        "equalised-updates", f"what AdamW adds to each block {EQUAL}", "equalise", "vanilla", {"equalise_updates": True}
    ),
    Kind("vanilla-sgd", "plain training with SGD, the control of equalised-sgd", "control", options=SGD),
    Kind("equalised-sgd", f"{EQUAL_GRADIENTS}, SGD", "equalise", "vanilla-sgd", {**SGD, "equalise": True}),
    Kind("repeated", "the last blocks run several times with the same parameters", "repeat", "vanilla", keeps="repeat"),
    Kind("resnet50", "ResNet-50's sixteen bottleneck blocks on real images, SGD", loss_per="image"),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}
"""Every arm by its name, in the order of the report."""

USUAL = tuple(name for name in KINDS if not name.endswith("-sgd"))
"""Those that take part unless arms are named. SGD is far behind AdamW after a short training, and its importance there
is noise."""


@dataclass(frozen=True, kw_only=True)
class FanInArm(Arm):
    """An arm, computed before anything runs.

    Attributes:
        blocks: those with parameters of their own.
        learning_rate: the peak.
        flops_per_token: of training.
        data_hash: of what it learns, where that is not the study's text.
    """

    files: tuple[str, ...] = (MEASURE_FILE,)
    kind: Kind
    blocks: int
    learning_rate: float
    parameters: int
    flops_per_token: int
    data_hash: str = ""


def decoder_arm(kind: Kind, budget: Budget, lr: float | None) -> FanInArm:
    """A decoder's arm."""
    config: GfaConfig = budget.config
    plain = {name: value for name, value in PLAIN.items() if name != kind.keeps}
    options = {**plain, "gradient_every": _recorded_every(budget), **kind.options}
    run = decide(config.run(config.design, tokens=budget.tokens, lr=lr, **options))
    return FanInArm(
        name=kind.name,
        slug=kind.name,
        config=run.config,
        tokens=budget.tokens,
        cost=_cost(run, config),
        task="gradient_fan_in.measure:train_and_measure",
        more={"ablation_tokens": config.ablation_tokens},
        kind=kind,
        blocks=len(run.model.layers),
        learning_rate=run.learning_rate,
        parameters=count_parameters(run.model).total,
        flops_per_token=count_flops(run.model).training_total,
    )


def resnet_arm(kind: Kind, budget: Budget, lr: float | None) -> FanInArm:
    """The ResNet's arm."""
    config: GfaConfig = budget.config
    steps = budget.tokens // budget.batch_tokens
    run = ImageRunConfig(
        images=config.images,
        steps=steps,
        learning_rate=ImageRunConfig.learning_rate if lr is None else lr,
        evaluate_every=max(1, steps // config.evaluations),
        gradient_every=_recorded_every(budget),
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
    wanted = set(USUAL)
    if config.arms is not None:
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
    if "layerskip" in wanted and skip.layer_dropout <= 0 and skip.exit_loss <= 0:
        raise UsageError(
            f"--layer-dropout 0 with --exit-loss 0 leaves nothing of layerskip; {DROPOUT:g} and {EXIT_LOSS:g} work"
        )
    return [kind for kind in KINDS.values() if kind.name in wanted]


def amount_of(loss_per: str) -> str:
    """What an arm trains on, for people, from its `loss_per`."""
    return "images" if loss_per == "image" else "tokens"


def _recorded_every(budget: Budget) -> int:
    """Steps between records of the gradients' effective rank and diversity; 0 without any."""
    details = budget.config.details
    return max(1, budget.tokens // budget.batch_tokens // details) if details else 0


def _cost(run: Run, config: GfaConfig) -> float:
    """FLOPs of training with its exits and its records, of the evaluations, and of a forward pass for every block."""
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
