"""LayerSkip training (arXiv 2404.16710): blocks dropped in depth, and losses at early exits.

    p_l = p_max · (exp(l · ln 2 / (L − 1)) − 1)       block l of L, from 0: never the first, p_max the last
    loss = final loss + Σ_m w_m · loss at the exit after block m

The rates are the paper's. Blocks are dropped for a whole batch, not for each sample, and by the connection's own skip
[ours]: one draw a block and step. Which exits a step has follows the paper's curricula. Their weights are ours: those
of a step's exits add up to `exit_loss`, so that the exits together weigh the same in every step.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Any

import torch

from leadline.training.config import RunConfig

GRADUAL_SHARE = 0.5
"""Of the run, in which the gradual curriculum comes to have all exits (the paper's)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSkip:
    """What each step drops, and where it exits. Nothing in it depends on earlier steps.

    Attributes:
        blocks: L, of the stack as it runs.
        steps: of the run.
        config: the run's options.
    """

    blocks: int
    steps: int
    config: RunConfig

    @property
    def drops(self) -> bool:
        """Whether blocks are dropped."""
        return self.config.layer_dropout > 0

    @property
    def exits(self) -> bool:
        """Whether there are losses at early exits."""
        return self.config.exit_loss > 0

    def __bool__(self) -> bool:
        return self.drops or self.exits

    def rates(self) -> list[float]:
        """How often each block is dropped: L shares."""
        last = max(1, self.blocks - 1)
        return [self.config.layer_dropout * math.expm1(block * math.log(2) / last) for block in range(self.blocks)]

    def dropped(self, step: int) -> frozenset[int]:
        """The blocks that step `step`, from 1, leaves out, in all of its passes; by the seed and the step alone."""
        if not self.drops:
            return frozenset()
        key = hashlib.sha256(f"{self.config.seed}:layer-dropout:{step}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big") >> 1)
        draws = torch.rand(self.blocks, dtype=torch.float64, generator=generator).tolist()
        return frozenset(block for block, rate in enumerate(self.rates()) if draws[block] < rate)

    def weights(self, step: int) -> dict[int, float]:
        """What the exits of step `step` weigh, by the block after which they are, in ascending order."""
        active = self._active(step) if self.exits else []
        shape = [(m + 1) * (m + 2) / 2 if self.config.exit_weights == "depth" else 1.0 for m in active]
        total = math.fsum(shape)
        return {m: self.config.exit_loss * each / total for m, each in zip(active, shape, strict=True)}

    def _active(self, step: int) -> list[int]:
        early = range(self.blocks - 1)
        if self.config.exit_curriculum == "rotational":
            every = min(self.every, len(early))
            return [m for m in early if m % every == step % every]
        if self.config.exit_curriculum == "gradual":
            done = step / max(1.0, GRADUAL_SHARE * self.steps)
            return list(early)[-max(1, math.ceil(min(1.0, done) * len(early))) :]
        return list(early)

    @property
    def every(self) -> int:
        """One exit in so many is active in a step of the rotational curriculum; a quarter of the blocks [ours]."""
        return self.config.exit_every or max(1, self.blocks // 4)

    def mean_weights(self) -> list[float]:
        """The weight of the loss after each block, averaged over the run's steps; the last is the final loss's 1.

        These are the w_m of `φ_l = Σ_{m≥l} w_m (m − l + 1)`.
        """
        sums = [0.0] * self.blocks
        if self.exits:
            for step in range(1, self.steps + 1):
                for block, weight in self.weights(step).items():
                    sums[block] += weight
        means = [total / self.steps for total in sums]
        return [*means[:-1], 1.0]

    def counts(self) -> list[int]:
        """How many early exits each step has."""
        return [len(self.weights(step)) for step in range(1, self.steps + 1)] if self.exits else [0] * self.steps

    def describe(self) -> dict[str, Any]:
        """What `run.json` says of it."""
        return {"dropout_rates": self.rates(), "exit_weights": self.mean_weights()}
