"""All options of pruning one model, flat, as the command line and `leadline.prune` have them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from leadline.errors import UsageError
from leadline.sections import Checked, NotNegative, Positive, PositiveFloat, needs

if TYPE_CHECKING:
    from leadline.hub import OpenedModel
    from leadline.pruning import Amount, PruneConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class PruneOptions(Checked):
    """What is to be cut out of a model, and how that is judged.

    Raises:
        UsageError: a value that does not work, or two that do not go together.
    """

    criterion: str | None = None
    """cfp (gradient shares of training), similarity, angular, taylor, magnitude, ablation or random."""

    ratio: float | None = None
    """The share of units to cut, rounded to the nearest number of them."""

    count: int | None = None
    """How many units to cut."""

    blocks: str | None = None
    """Which blocks to cut, from 0, without a criterion: 3,5,8..10 (both ends: 8, 9 and 10)."""

    unit: Literal["block", "sublayer"] = "block"
    """What is cut: whole blocks, or attention and MLP apart (--blocks 3.mlp,5)."""

    protect_first: int = 0
    """Blocks from the start that stay."""

    protect_last: int = 0
    """Blocks from the end that stay."""

    normalised: bool = False
    """With cfp: shares of norms divided by √(number of parameters), for models that taper."""

    gradient_definition: Literal["sum", "clipped", "mean-of-shares", "after-warmup"] | None = None
    """With cfp: which norms the share adds up; sum unless given (docs/pruning.md). A sweep measures all."""

    data: str = "sotu"
    """sotu, a folder that `leadline data prepare` made with the model's tokenizer, or text files."""

    calibration_tokens: Positive = 8_000
    """Tokens that criteria read, from the training split."""

    evaluate_tokens: Positive = 64_000
    """Held-out tokens that perplexity is measured on, at most."""

    context: int | None = None
    """Tokens in a window; the model's own unless given, 512 at most for a Hugging Face one."""

    stride: int | None = None
    """How many of a window's tokens count, the last ones; all of them unless given."""

    batch_size: int = 8
    """Windows in a pass."""

    heal_tokens: Positive | None = None
    """Train the pruned model on so many tokens, such as 100k; reported apart."""

    heal_lr: PositiveFloat | None = None
    """The peak learning rate of healing; a tenth of the run's own, or 1e-4, unless given."""

    speed: bool = False
    """Also measure prefill and generation before and after."""

    speed_batches: str | None = None
    """Batch sizes for --speed; 1,4,16 unless given."""

    seed: NotNegative | None = None
    """Of calibration text, random and healing; 0 unless given. In a sweep of one model: --seeds."""

    layers: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    """A Hugging Face model's list of blocks, such as transformer.h, where it isn't found by itself."""

    device: str = "auto"
    """Where to run: auto (a CUDA GPU where there is one), cpu, cuda, cuda:1, mps."""

    def check(self) -> None:
        """See `Checked`."""
        super().check()
        needs(self, "heal_lr", self.heal_tokens is not None, "heal_tokens")
        needs(self, "speed_batches", self.speed, "speed")

    @property
    def amount(self) -> Amount:
        """How much is cut. Raises UsageError where that isn't said, or is said twice."""
        from leadline.pruning import Amount

        names = ("ratio", "count", "blocks", "protect_first", "protect_last")
        return Amount(**{name: getattr(self, name) for name in names})

    def check_single(self) -> None:
        """Raises UsageError where options are lacking or do nothing that pruning one model needs."""
        from leadline.pruning import CRITERIA

        if self.amount.blocks is None and self.criterion is None:
            known = ", ".join(CRITERIA)
            raise UsageError(f"--criterion is missing: it says what chooses the blocks; {known} work")
        for name, given in (("normalised", self.normalised), ("gradient_definition", self.gradient_definition)):
            if given and self.criterion != "cfp":
                raise UsageError(f"{name}={given} goes with criterion=cfp alone, whose shares it is about")

    def of(self, opened: OpenedModel) -> PruneConfig:
        """For one model, with its own values where none are given.

        Raises:
            UsageError: a value that doesn't work.
        """
        from leadline.hub import default_context
        from leadline.pruning import EvaluationSettings, Healing, PruneConfig, Timing
        from leadline.pruning.seeds import healing_rate

        context = default_context(opened) if self.context is None else self.context
        timing = healing = None
        if self.speed:
            batches = numbers(self.speed_batches or "1,4,16", "speed_batches", int)
            timing = Timing(batch_sizes=batches, prompt=max(1, min(128, context)), tokens=max(1, min(32, context - 1)))
        if self.heal_tokens is not None:
            rate = healing_rate(opened) if self.heal_lr is None else self.heal_lr
            sizes = {"tokens": self.heal_tokens, "batch_size": self.batch_size, "context": context}
            healing = Healing(**sizes, learning_rate=rate, seed=self.seed or 0)
        return PruneConfig(
            amount=self.amount,
            evaluation=EvaluationSettings(
                context=context,
                stride=context if self.stride is None else self.stride,
                tokens=self.evaluate_tokens,
                batch_size=self.batch_size,
            ),
            criterion=self.criterion,
            unit=self.unit,
            normalised=self.normalised,
            definition=self.gradient_definition or "sum",
            calibration_tokens=self.calibration_tokens,
            seed=self.seed or 0,
            heal=healing,
            speed=timing,
        )


def numbers(text: str, option: str, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    """`0.1,0.2` as numbers. Raises UsageError, naming `option`."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        example = "0.1,0.2,0.3,0.5" if kind is float else "1,4,16"
        raise UsageError(f"{option}={text!r} is not a list of numbers such as {example}") from None
