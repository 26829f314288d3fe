"""A ResNet as a stack: its blocks are the bottlenecks. What gradients, ablation and weights say works as for decoders.

A batch is images and labels (`leadline.data.images.ImageBatch`). An image counts as a sequence of one prediction, so
`logits` has a time dimension of 1, and a loss "per token" is one per image.

Shapes: B batch, C channels, H, W height and width, V classes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from leadline.errors import UsageError
from leadline.models.resnet import Bottleneck, ResNet
from leadline.stacks.base import Stack, StackWatcher, Unit, watched_once
from leadline.stacks.sites import replace


class ResNetStack(Stack):
    """A `leadline.models.resnet.ResNet`. Blocks have no sublayers.

    A block that is left out leaves its shortcut: its input, or in the first block of a stage a projection of it. So for
    those what is measured is the importance of the branch, not that of the whole block.

    Args:
        model: is not changed; what `watching` and `skipping` put into it goes away again.
    """

    model: ResNet

    def __init__(self, model: ResNet) -> None:
        self.model = model
        self._names = model.names()
        self.blocks = len(self._names)
        self.sublayers = ((),) * self.blocks

    @property
    def context(self) -> int:
        """Images have none.

        Raises:
            UsageError: always.
        """
        self._lacks("context: it reads images, not tokens")

    @property
    def vocab_size(self) -> int:
        """V: the number of classes."""
        return self.model.config.classes

    @property
    def norms_scale(self) -> bool:
        """False: no norm stands between what a block leaves and what the next one reads."""
        return False

    def parameters_of(self, unit: Unit) -> dict[str, nn.Parameter]:
        """The parameters of a block, its projection among them.

        Raises:
            UsageError: a unit that isn't there; blocks have no sublayers.
        """
        self.check([unit])
        return self.parameters_under(f"{self._names[unit.block]}.")

    def logits(self, tokens: Tensor) -> Tensor:
        """Logits (B, 1, V) of images (B, C, H, W)."""
        logits: Tensor = self.model(tokens)
        return logits.unsqueeze(1)

    def lens(self, hidden: Tensor) -> Tensor:
        """There is none.

        Raises:
            UsageError: always.
        """
        self._lacks("lens: its head fits the last stage's width alone")

    @contextlib.contextmanager
    def watching(self, watcher: StackWatcher) -> Iterator[None]:
        """Tells `watcher` of every forward pass until the context ends; the model's numbers stay to the bit.

        `before` and `after` are (B, H·W, C), with the height, width and channels that the block leaves. `before` is
        what would stand in the block's place without its branch: what it read, or in the first block of a stage the
        projection of that, behind the same activation. So from one stage to the next the shapes differ.

        Raises:
            UsageError: the watcher wants exits, which a ResNet has not.
            LeadlineError: the model is being watched already.
        """
        if watcher.wants_exits:
            self._lacks("exits: its head fits the last stage's width alone")
        with contextlib.ExitStack() as stack:
            stack.enter_context(watched_once(self.model))
            for number, block in enumerate(self.model.blocks()):
                stack.enter_context(_told(number, block, watcher))
            yield

    @contextlib.contextmanager
    def skipping(self, units: Collection[Unit]) -> Iterator[None]:
        """Leaves the branches of blocks out of every forward pass until the context ends; see `Stack.skipping`."""
        self.check(units)
        numbers = frozenset(unit.block for unit in units)
        features = self.model.features

        def skipping_features(images: Tensor, skip: Collection[int] = ()) -> Tensor:
            return features(images, numbers.union(skip))

        with contextlib.ExitStack() as stack:
            replace(stack, self.model, "features", skipping_features)
            yield

    def _lacks(self, what: str) -> NoReturn:
        raise UsageError(
            f"a ResNet has no {what}. The gradient share, ablation of blocks, Taylor and magnitude work on it"
        )


@contextlib.contextmanager
def _told(number: int, block: Bottleneck, watcher: StackWatcher) -> Iterator[None]:
    """Tells `watcher` of one block's forward passes. A block that is skipped is not called, and so not told of."""
    shortcut: list[Tensor] = []

    def on_projection(module: nn.Module, args: Any, output: Tensor) -> None:
        shortcut[:] = [output]

    def on_input(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        shortcut[:] = [args[0]]

    def on_output(module: nn.Module, args: Any, output: Tensor) -> None:
        watcher.on_block(number, _as_tokens(torch.relu(shortcut[0])), _as_tokens(output))
        shortcut.clear()

    with contextlib.ExitStack() as stack:
        stack.callback(block.register_forward_pre_hook(on_input).remove)
        if block.downsample is not None:
            stack.callback(block.downsample.register_forward_hook(on_projection).remove)
        stack.callback(block.register_forward_hook(on_output).remove)
        yield


def _as_tokens(x: Tensor) -> Tensor:
    """(B, C, H, W) as (B, H·W, C)."""
    return x.flatten(2).transpose(1, 2)
