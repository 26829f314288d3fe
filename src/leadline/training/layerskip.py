"""LayerSkip training (arXiv 2404.16710): blocks dropped in depth, and losses at early exits.

    p_l = p_max · (exp(l · ln 2 / (L − 1)) − 1)       block l of L, from 0: never the first, p_max the last
    loss = final loss + Σ_m w_m · loss at the exit after block m

The rates are the paper's. Blocks are dropped for a whole batch, not for each sample, and by the connection's own skip
[ours]: one draw a block and step. Which exits a step has follows the paper's curricula. Their weights are ours: those
of a step's exits add up to `exit_loss`, so that the exits together weigh the same in every step.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import itertools
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
        return self.config.early_exit.layer_dropout > 0

    @property
    def exits(self) -> bool:
        """Whether there are losses at early exits."""
        return self.config.early_exit.exit_loss > 0

    def __bool__(self) -> bool:
        return self.drops or self.exits

    def rates(self) -> list[float]:
        """How often each block is dropped: L shares."""
        last = max(1, self.blocks - 1)
        return [
            self.config.early_exit.layer_dropout * math.expm1(block * math.log(2) / last)
            for block in range(self.blocks)
        ]

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
        shape = [(m + 1) * (m + 2) / 2 if self.config.early_exit.exit_weights == "depth" else 1.0 for m in active]
        total = math.fsum(shape)
        return {m: self.config.early_exit.exit_loss * each / total for m, each in zip(active, shape, strict=True)}

    def _active(self, step: int) -> list[int]:
        early = range(self.blocks - 1)
        if self.config.early_exit.curriculum == "rotational":
            every = min(self.every, len(early))
            return [m for m in early if m % every == step % every]
        if self.config.early_exit.curriculum == "gradual":
            return list(early)[-self._gradual(step) :]
        return list(early)

    def _gradual(self, step: int) -> int:
        """How many exits step `step` of the gradual curriculum has; never fewer than the one before."""
        done = step / max(1.0, GRADUAL_SHARE * min((*self.config.schedule.extended, self.steps)))
        return max(1, math.ceil(min(1.0, done) * (self.blocks - 1)))

    @property
    def every(self) -> int:
        """One exit in so many is active in a step of the rotational curriculum; a quarter of the blocks [ours]."""
        return self.config.early_exit.exit_every or max(1, self.blocks // 4)

    def mean_weights(self) -> list[float]:
        """The weight of the loss after each block, averaged over the run's steps; the last is the final loss's 1.

        These are the w_m of `φ_l = Σ_{m≥l} w_m (m − l + 1)`.
        """
        sums = [0.0] * self.blocks
        for step, steps in self._kinds():
            for block, weight in self.weights(step).items():
                sums[block] += weight * steps
        means = [total / self.steps for total in sums]
        return [*means[:-1], 1.0]

    @property
    def most_exits(self) -> int:
        """How many early exits a step has at most."""
        return max(len(self.weights(step)) for step, _ in self._kinds())

    @property
    def mean_exits(self) -> float:
        """How many early exits a step has on average."""
        return sum(len(self.weights(step)) * steps for step, steps in self._kinds()) / self.steps

    def _kinds(self) -> list[tuple[int, int]]:
        """One step of each set of exits that the run has, and how many of its steps have the same; a handful of any
        number of steps.
        """
        if self.exits and self.config.early_exit.curriculum == "rotational":
            every = min(self.every, self.blocks - 1)
            return [(first, (self.steps - first) // every + 1) for first in range(1, min(every, self.steps) + 1)]
        if self.exits and self.config.early_exit.curriculum == "gradual":
            steps, firsts = range(1, self.steps + 1), [1]
            while (more := bisect.bisect_right(steps, self._gradual(firsts[-1]), key=self._gradual)) < self.steps:
                firsts.append(more + 1)
            return [(step, after - step) for step, after in itertools.pairwise([*firsts, self.steps + 1])]
        return [(1, self.steps)]

    def describe(self) -> dict[str, Any]:
        """What `run.json` says of it."""
        return {"dropout_rates": self.rates(), "exit_weights": self.mean_weights()}
