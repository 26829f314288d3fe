"""Healing: a short fine-tune of a model that was cut, on training text, with any stack.

AdamW as in training (0.9, 0.95; decay 0.1 on matrices alone, clipping at 1), a twentieth of the steps of warm-up, then
a cosine to a tenth of the rate. What is healed is always reported beside what is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from leadline.data import Loader, Split
from leadline.errors import LeadlineError, UsageError
from leadline.hub.text import begun
from leadline.probes.watch import IGNORED
from leadline.pruning.text import cross_entropy_sum
from leadline.stacks import Stack
from leadline.training import optimiser as training
from leadline.training.config import Schedule

SCHEDULE = Schedule(warmup=0.05, schedule="cosine", final_fraction=0.1)
DECAY, CLIP = 0.1, 1.0

OnStep = Callable[[int, int, float], None]
"""Told the step from 1, how many there are, and its loss."""

HIGHEST_RATE = 1e3
"""Of learning; any that is of use lies far below."""


@dataclass(frozen=True, kw_only=True)
class Healing:
    """How a model is healed.

    Attributes:
        tokens: to train on, rounded up to whole steps.
        learning_rate: the peak.
        batch_size: sequences in a step.
        context: tokens in a sequence.
        seed: of the order of the text.

    Raises:
        UsageError: a number out of range.
    """

    tokens: int
    learning_rate: float
    batch_size: int = 8
    context: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UsageError(f"--heal-tokens {self.tokens} is too small; 1 or more work, such as 100k")
        if not 0 < self.learning_rate <= HIGHEST_RATE:
            raise UsageError(
                f"--heal-lr {self.learning_rate:g} is out of range; a number more than 0, to {HIGHEST_RATE:g}, works"
            )

    @property
    def steps(self) -> int:
        """How many there are."""
        return -(-self.tokens // (self.batch_size * self.context))


def heal(
    stack: Stack,
    split: Split,
    healing: Healing,
    on_step: OnStep = lambda step, steps, loss: None,
    *,
    begins: int | None = None,
) -> None:
    """Trains the stack's model in place. A model of half precision is trained in float32 and rounded at the end.

    Args:
        begins: the token that every text begins with, where the model's tokenizer adds one.

    Raises:
        UsageError: the split is too short for one window.
        LeadlineError: a loss that is not finite.
    """
    model = stack.model
    dtypes = {name: value.dtype for name, value in (*model.named_parameters(), *model.named_buffers())}
    narrow = any(value.dtype in (torch.float16, torch.bfloat16) for value in model.parameters())
    if narrow:
        model.float()
    mode, wanted = model.training, [p.requires_grad for p in model.parameters()]
    model.train().requires_grad_(True)
    try:
        _train(stack, split, healing, on_step, begins)
    finally:
        model.train(mode)
        for parameter, flag in zip(model.parameters(), wanted, strict=True):
            parameter.requires_grad_(flag)
            parameter.grad = None
        if narrow:
            with torch.no_grad():
                for name, value in (*model.named_parameters(), *model.named_buffers()):
                    value.data = value.data.to(dtypes[name])


def rate_at(step: int, steps: int) -> float:
    """The share of the peak rate in `step`, counted from 1, of `steps`."""
    return training.rate_at(step, steps, SCHEDULE)


def _train(stack: Stack, split: Split, healing: Healing, on_step: OnStep, begins: int | None) -> None:
    model = stack.model
    refresh = getattr(model, "refresh_statistics", lambda: None)
    parts = zip(training.split_by_decay(model, decay_embeddings=False), (DECAY, 0.0), strict=True)
    groups = [{"params": list(part.values()), "weight_decay": decay} for part, decay in parts if part]
    optimiser = torch.optim.AdamW(groups, lr=healing.learning_rate, betas=training.BETAS, eps=training.EPS)
    loader = Loader(split, healing.batch_size, healing.context, healing.seed)
    steps = healing.steps
    for step in range(1, steps + 1):
        for group in optimiser.param_groups:
            group["lr"] = healing.learning_rate * rate_at(step, steps)
        batch = begun(loader.next(), begins)
        logits = stack.logits(batch.tokens.to(stack.device))
        kept = max(1, int((batch.targets != IGNORED).sum()))
        loss = cross_entropy_sum(logits, batch.targets.to(stack.device)) / kept
        value = float(loss.detach())
        if not math.isfinite(value):
            raise LeadlineError(f"the loss of healing step {step} is not finite; a lower --heal-lr may do better")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if step % min(max(steps // 50, 1), 1000) == 0:
            refresh()
        on_step(step, steps, value)
    refresh()
