"""ResNet-50 and smaller ones of its kind, as data: a stack of bottleneck blocks in stages.

    model = ResNet(ResNetConfig(classes=10, channels=1, width=16, stem="small"))
    logits = model(images)                      # (B, channels, H, W) to (B, classes)
    logits = model(images, skip={4})            # block 4 leaves its shortcut alone

Source: He et al., "Deep residual learning for image recognition" (arXiv 1512.03385), in the form known as v1.5: a block
that halves the picture does so in its 3×3 convolution, not in its first one. Parameters are called as torchvision calls
them, so its weights fit.

Shapes: B batch, C channels, H, W height and width.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.config import check_choices, from_dict
from leadline.errors import LeadlineError, UsageError
from leadline.files import check_sum
from leadline.models.layers import generator_for
from leadline.models.saving import CONFIG, read_weights, write_model
from leadline.reading import read_json
from leadline.sharded import whole_tensors

EXPANSION = 4
"""A block's output is so many times as wide as its 3×3 convolution."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """Everything about a ResNet. The defaults are ResNet-50.

    Attributes:
        classes: how many logits.
        channels: of the images, 1 for grey ones.
        layers: the blocks of each stage; every stage but the first halves the picture and doubles the width.
        width: of the first stage's 3×3 convolutions.
        stem: "imagenet" is a 7×7 convolution and a pooling, which together quarter the picture; "small" is a 3×3
            convolution that keeps it, for images of about 32 pixels.
        zero_init_residual: every block starts as its shortcut alone: the gain of its last norm starts at zero.
    """

    classes: int = 1000
    channels: int = 3
    layers: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    stem: Literal["imagenet", "small"] = "imagenet"
    zero_init_residual: bool = False

    def __post_init__(self) -> None:
        for name, value in (("classes", self.classes), ("channels", self.channels), ("width", self.width)):
            if value < 1:
                raise UsageError(f"{name}={value} is too small; it can be 1 or more")
        if not self.layers or any(count < 1 for count in self.layers):
            raise UsageError(f"layers={self.layers} needs a stage, and a block in each; (3, 4, 6, 3) is ResNet-50's")
        check_choices(self)

    @property
    def blocks(self) -> int:
        """How many bottleneck blocks there are."""
        return sum(self.layers)

    @property
    def smallest_image(self) -> int:
        """The least height and width at which every stage but the first still halves the picture."""
        return 2 ** (len(self.layers) - 1) * (4 if self.stem == "imagenet" else 1)


class Bottleneck(nn.Module):
    """`relu(shortcut(x) + branch(x))`: 1×1 to `width`, 3×3, 1×1 to four times `width`, a norm behind each.

    The shortcut is `x` itself, or its projection where width or size change.
    """

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, 4·width, H / stride, W / stride)."""
        branch = F.relu(self.bn1(self.conv1(x)))
        branch = F.relu(self.bn2(self.conv2(branch)))
        return F.relu(self.bn3(self.conv3(branch)) + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        """`x`, or its projection."""
        if self.downsample is None:
            return x
        projected: Tensor = self.downsample(x)
        return projected

    def passed_by(self, x: Tensor) -> Tensor:
        """What is left without the branch: `x`, which has no negative entries, or its projection's positive part."""
        return x if self.downsample is None else F.relu(self.shortcut(x))


class ResNet(nn.Module):
    """Stem, bottleneck blocks in stages, the mean over the picture, a linear head.

    Args:
        config: everything about the model.
        seed: of the start. Convolutions are normal with variance 2 / (outputs · k²) (Kaiming, fan-out), norms the
            identity, the head uniform as `nn.Linear` has it; every weight is drawn from the seed and its own name.
    """

    def __init__(self, config: ResNetConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        width, imagenet = config.width, config.stem == "imagenet"
        kernel = 7 if imagenet else 3
        self.conv1 = nn.Conv2d(
            config.channels, width, kernel, stride=2 if imagenet else 1, padding=kernel // 2, bias=False
        )
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage, count in enumerate(config.layers):
            blocks = []
            for number in range(count):
                blocks.append(Bottleneck(inputs, width << stage, 2 if stage and number == 0 else 1))
                inputs = EXPANSION * (width << stage)
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, config.classes)
        self.reset_parameters(seed)

    @torch.no_grad()
    def reset_parameters(self, seed: int = 0) -> None:
        """Sets all parameters and statistics to their start."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
                generator = generator_for(f"{seed}:{name}")
                draw = torch.empty(module.weight.shape).normal_(0.0, math.sqrt(2 / fan_out), generator=generator)
                module.weight.copy_(draw)
            elif isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()
        bound = 1 / math.sqrt(self.fc.in_features)
        for name, parameter in self.fc.named_parameters():
            draw = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator_for(f"{seed}:fc.{name}"))
            parameter.copy_(draw)
        if self.config.zero_init_residual:
            for block in self.blocks():
                block.bn3.weight.zero_()

    def blocks(self) -> list[Bottleneck]:
        """All bottleneck blocks in the order in which they run."""
        stages = [self.get_submodule(f"layer{stage + 1}") for stage in range(len(self.config.layers))]
        return [block for stage in stages for block in stage.children() if isinstance(block, Bottleneck)]

    def names(self) -> list[str]:
        """The name of every block, such as "layer1.0"."""
        return [f"layer{stage + 1}.{block}" for stage, count in enumerate(self.config.layers) for block in range(count)]

    def forward(self, images: Tensor, *, skip: Collection[int] = ()) -> Tensor:
        """Logits (B, classes) of images (B, channels, H, W).

        Args:
            skip: the numbers of blocks whose branch is left out. Their shortcut stays, and in the first block of a
                stage that is a projection with weights of its own: this is not a removal of the whole block.

        Raises:
            UsageError: as `features`.
        """
        x = self.features(images, skip)
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits

    def features(self, images: Tensor, skip: Collection[int] = ()) -> Tensor:
        """What the last block leaves, (B, C, H, W).

        Raises:
            UsageError: images of another number of channels, or too small; a number in `skip` that isn't there.
        """
        self._check(images)
        for number in skip:
            if not 0 <= number < self.config.blocks:
                raise UsageError(f"skip={number} is not a block; this model has 0 to {self.config.blocks - 1}")
        x = F.relu(self.bn1(self.conv1(images)))
        if self.config.stem == "imagenet":
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        for number, block in enumerate(self.blocks()):
            x = block.passed_by(x) if number in skip else block(x)
        return x

    def _check(self, images: Tensor) -> None:
        least, channels = self.config.smallest_image, self.config.channels
        if images.dim() != 4 or images.shape[1] != channels or min(images.shape[2:]) < least:
            raise UsageError(
                f"images of shape {tuple(images.shape)} don't fit this model; it takes (batch, {channels}, height, "
                f"width) with {least} pixels or more each way"
            )

    def save(self, folder: Path | str) -> None:
        """Writes `config.json` and `model.safetensors`.

        Raises:
            LeadlineError: the folder can't be written.
        """
        write_model(Path(folder), self.config, whole_tensors(self.state_dict()))

    @classmethod
    def load(cls, folder: Path | str) -> ResNet:
        """The model that `save` wrote, in float32 on the CPU.

        Raises:
            LeadlineError: a file is missing or damaged, or holds something else.
        """
        path = Path(folder) / CONFIG
        try:
            config = from_dict(ResNetConfig, read_json(path, dict[str, Any]), where="model")
            check_sum(path)
        except (OSError, ValueError, TypeError) as error:
            raise LeadlineError(f"{path} is not a configuration of a ResNet: {error}") from error
        model = cls(config)
        read_weights(Path(folder), model, device=None, keep_dtype=False)
        return model


def count_forward_flops(config: ResNetConfig, size: int) -> int:
    """FLOPs of a forward pass over one image of `size` × `size` pixels: two for every product with a weight.

    Norms, additions and pooling are left out.
    """
    imagenet = config.stem == "imagenet"
    side = _halved(size) if imagenet else size
    products = side**2 * config.width * config.channels * (49 if imagenet else 9)
    side = _halved(side) if imagenet else side
    inputs = config.width
    for stage, count in enumerate(config.layers):
        width = config.width << stage
        for number in range(count):
            before, side = side, _halved(side) if stage and number == 0 else side
            products += before**2 * inputs * width + side**2 * (9 * width**2 + EXPANSION * width**2)
            products += side**2 * inputs * EXPANSION * width if number == 0 else 0
            inputs = EXPANSION * width
    return 2 * (products + inputs * config.classes)


def _halved(side: int) -> int:
    return -(-side // 2)
