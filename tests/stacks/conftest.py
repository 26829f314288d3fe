"""What the tests of stacks share: a watcher that keeps everything."""

from __future__ import annotations

from typing import ClassVar

import pytest
from torch import Tensor

from leadline.stacks import Stack, StackWatcher


class Everything(StackWatcher):
    """Keeps what it is told, and looks through the lens while the pass runs."""

    wants_exits: ClassVar[bool] = True

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.before: list[Tensor] = []
        self.after: list[Tensor] = []
        self.outputs: dict[tuple[int, str], Tensor] = {}
        self.exits: dict[int, Tensor] = {}

    def on_block(self, block: int, before: Tensor, after: Tensor) -> None:
        self.blocks.append(block)
        self.before.append(before)
        self.after.append(after)

    def on_sublayer(self, block: int, sublayer: str, output: Tensor) -> None:
        assert (block, sublayer) not in self.outputs
        self.outputs[block, sublayer] = output

    def on_exit(self, block: int, hidden: Tensor) -> None:
        self.exits[block] = hidden


@pytest.fixture
def watched():
    """A function that runs a stack on tokens and gives what was told and the logits."""

    def run(stack: Stack, tokens: Tensor) -> tuple[Everything, Tensor]:
        told = Everything()
        with stack.watching(told):
            logits = stack.logits(tokens)
        return told, logits

    return run
