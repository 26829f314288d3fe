"""The arm that is a ResNet-50 on real images: claim G1 where there are no tokens, no attention and no Pre-LN.

It has the sixteen bottleneck blocks of ResNet-50 at a width that a CPU can train, and as many steps as the other arms.
An image counts as a token. What belongs to text alone (batch size, context, precision, backend) does not reach it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from leadline.config import from_dict, to_dict
from leadline.experiments.gradient_fan_in.arm import ArmKind, ArmPlan, Role
from leadline.experiments.images.config import ImageRunConfig

if TYPE_CHECKING:
    from leadline.data import DataSet
    from leadline.experiments.gradient_fan_in.plan import GfaWish

STEPS = 200


@dataclass(frozen=True, kw_only=True)
class ResNetArm(ArmKind):
    """A ResNet on images.

    Attributes:
        size: of the images, where that leaves a choice.
        width: of the first stage; ResNet-50's own is 64.
    """

    name: str = "resnet50"
    summary: str = "ResNet-50's sixteen bottleneck blocks on real images, SGD"
    role: Role = "plain"
    control: str = ""
    loss_per: Literal["byte", "image"] = "image"
    size: int | None = None
    width: int = 16

    def plan(self, wish: GfaWish, data: DataSet, learning_rate: float | None) -> ArmPlan:
        """See `ArmKind`."""
        from leadline.models.resnet import ResNet, count_forward_flops

        steps = _steps(wish)
        config = ImageRunConfig(
            images=wish.images,
            size=self.size,
            width=self.width,
            steps=steps,
            learning_rate=ImageRunConfig.learning_rate if learning_rate is None else learning_rate,
            evaluate_every=max(1, steps // wish.evaluations),
            gradient_every=max(1, steps // wish.details) if wish.details else 0,
            device=wish.device,
        )
        images = config.open_images()
        model = config.model(images)
        forward = count_forward_flops(model, images.shape[1])
        trained, heldout = steps * config.batch_size, len(images.heldout.labels)
        evaluated = heldout * (1 + steps // config.evaluated_every)
        measured = min(heldout, wish.ablation_tokens) * (2 + model.blocks)
        return ArmPlan(
            name=self.name,
            control=self.control,
            config=to_dict(config),
            blocks=model.blocks,
            tokens=trained,
            learning_rate=config.learning_rate,
            parameters=sum(parameter.numel() for parameter in ResNet(model).parameters()),
            flops_per_token=3 * forward,
            data_hash=images.hash,
            cost=float(forward) * (3 * trained + evaluated + measured),
        )

    def train(self, folder: Path, config: dict[str, Any]) -> None:
        """See `ArmKind`."""
        import time

        from leadline.experiments.images.training import train_images
        from leadline.experiments.worker import SAY_EVERY, say

        told = 0.0

        def on_step(record: dict[str, Any]) -> None:
            nonlocal told
            if time.monotonic() - told >= SAY_EVERY:
                told = time.monotonic()
                say("step", **{name: record[name] for name in ("step", "tokens", "loss", "tokens_per_second")})

        train_images(from_dict(ImageRunConfig, config, "job.json"), folder, on_step=on_step)

    def measure(self, folder: Path, config: dict[str, Any], tokens: int) -> dict[str, Any]:
        """See `ArmKind`; `tokens` are images."""
        from leadline.experiments.images.measuring import measure_images

        return measure_images(folder, from_dict(ImageRunConfig, config, "job.json"), tokens)


def _steps(wish: GfaWish) -> int:
    """As many as the other arms take."""
    if wish.steps is not None:
        return wish.steps
    if wish.tokens is None or wish.batch_size is None or wish.context is None:
        return STEPS
    return max(1, -(-wish.tokens // (wish.batch_size * wish.context)))


RESNET_ARM = ResNetArm()
