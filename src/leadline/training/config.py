"""The whole configuration of a training run, in sections; the command line reads the same dataclasses.

No two sections have a field of the same name, so that a field is an option: `optimizer.weight_decay` is
`--weight-decay`, and `RunConfig.of("mgr", weight_decay=0.05)` puts it where it belongs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import tyro

from leadline.choices import Backend, Precision
from leadline.config import to_dict
from leadline.errors import UsageError
from leadline.sections import (
    Checked,
    NotNegative,
    NotNegativeFloat,
    Positive,
    PositiveFloat,
    Range,
    Share,
    flat,
    needs,
    with_fields,
)
from leadline.training.tracking import trackers_of

LARGEST = 1 << 24
MOST_REPEATS = 1000
Size = Annotated[int, Range(1, LARGEST)]
Rate = Annotated[float, Range(0, 1, below=True)]

FREE = ("data", "checkpoint_every", "keep", "device", "log_to", "replicate", "shard")
"""Options that may change when a run is resumed; of the data, its hash may not."""
RENAMED = {"accumulation": "grad_accumulation", "recompute": "activation_checkpointing", "learning_rate": "lr"}
"""Fields of runs of earlier versions, whose configuration had no sections."""
PARTNERS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "momentum": lambda run: run.get("optimizer") == "sgd",
    "decay": lambda run: run.get("schedule") == "wsd",
    **dict.fromkeys(("exit_curriculum", "exit_every", "exit_weights"), lambda run: run.get("exit_loss", 0) > 0),
}
"""Options that do nothing in a run for which this is false."""


def parse_repeat(text: str) -> tuple[int, int]:
    """`4x2` (or `4*2`) as (4, 2): the last 4 blocks, twice.

    Raises:
        UsageError: it is written otherwise, or repeats nothing.
    """
    found = re.fullmatch(r"\s*(\d{1,20})\s*[x*]\s*(\d{1,20})\s*", text)
    last, times = (int(found[1]), int(found[2])) if found else (0, 0)
    if last < 1 or not 2 <= times <= MOST_REPEATS:
        raise UsageError(
            f"repeat={text!r} does not work; 4x2 runs the last 4 blocks twice (1 block or more, 2 to "
            f"{MOST_REPEATS:,} times)"
        )
    return last, times


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(Checked):
    """The model's shape: a preset, and what replaces its values."""

    preset: str = "tiny"
    """The model's shape by name: tiny, S, M, L, 374M, 1B or 3B."""

    blocks: int | None = None
    """Transformer blocks; the preset's unless given."""

    dim: int | None = None
    """The model's width; the preset's unless given. Heads and MLP follow where they are not given."""

    heads: int | None = None
    """Attention heads."""

    kv_heads: int | None = None
    """Key and value heads."""

    head_dim: int | None = None
    """Width of a head."""

    hidden: int | None = None
    """Width of the MLP."""

    context: Size | None = None
    """Tokens in a sequence; the preset's unless given."""

    @property
    def shape(self) -> dict[str, int]:
        """What replaces the preset's shape, by name; without the context."""
        sizes = {name: getattr(self, name) for name in SHAPE}
        return {name: size for name, size in sizes.items() if size is not None}


SHAPE = ("blocks", "dim", "heads", "kv_heads", "head_dim", "hidden")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(Checked):
    """What a run reads, and how much of it."""

    data: str = "sotu"
    """sotu, or a folder that `leadline data prepare` wrote."""

    tokens: Positive | None = None
    """Tokens to train on, such as 500k or 1.2M, rounded up to whole steps; the preset's unless given."""

    steps: Positive | None = None
    """Optimiser steps, instead of tokens."""

    batch_size: Size | None = None
    """Sequences in an optimiser step; the preset's unless given."""

    grad_accumulation: Positive = 1
    """Gradient accumulation: micro-batches of a step. The result stays the same, memory falls."""

    def check(self) -> None:
        """See `Checked`."""
        super().check()
        if self.tokens is not None and self.steps is not None:
            raise UsageError(f"tokens={self.tokens} and steps={self.steps} both say how long to train; give one")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(Checked):
    """The optimiser."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    """sgd is with momentum; its learning rate is another one than AdamW's."""

    lr: PositiveFloat | None = None
    """The peak learning rate; the design's own for this preset unless given."""

    momentum: Rate | None = None
    """Of sgd; 0.9 unless given."""

    weight_decay: NotNegativeFloat = 0.1
    """On matrices; norms, gains, biases, embeddings and connections take none."""

    decay_embeddings: bool = False
    """Weight decay on the embedding too."""

    clip: PositiveFloat | None = 1.0
    """The largest gradient norm; None clips nothing."""

    def check(self) -> None:
        """See `Checked`."""
        super().check()
        needs(self, "momentum", self.optimizer == "sgd", "optimizer=sgd")
        if self.decay_embeddings and self.weight_decay == 0:
            raise UsageError("decay_embeddings=True does nothing with weight_decay=0; give one of them")

    @property
    def sgd_momentum(self) -> float:
        """Of sgd."""
        return 0.9 if self.momentum is None else self.momentum


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule(Checked):
    """The learning rate over the steps."""

    schedule: Literal["cosine", "wsd"] = "cosine"
    """cosine, or wsd: steady, then linear decay."""

    warmup: Share = 0.05
    """Share of the steps in which the learning rate rises linearly."""

    decay: Share | None = None
    """Share of the steps in which wsd decays; 0.2 unless given."""

    final_fraction: Share = 0.1
    """The learning rate at the end, as a share of the peak."""

    extended: Annotated[tuple[int, ...], tyro.conf.Suppress] = ()
    """Steps at which the run had ended before --extend made it longer, the first of them first."""

    def check(self) -> None:
        """See `Checked`."""
        super().check()
        if list(self.extended) != sorted({step for step in self.extended if step > 0}):
            raise UsageError(f"extended={list(self.extended)} should be step counts, each larger than the one before")
        needs(self, "decay", self.schedule == "wsd", "schedule=wsd")
        if self.schedule == "wsd" and self.warmup + self.decay_share > 1:
            raise UsageError(f"warmup={self.warmup:g} and decay={self.decay_share:g} are more than 1 together")

    @property
    def decay_share(self) -> float:
        """Of the steps, those in which "wsd" decays."""
        return 0.2 if self.decay is None else self.decay


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interventions(Checked):
    """What changes gradients and depth (docs/gradient-fan-in.md)."""

    equalise: bool = False
    """Rescale the gradients of all blocks to one L2 norm in each step (AdamW nearly undoes it, sgd does not)."""

    equalise_updates: bool = False
    """Rescale the updates of all blocks to the same L2 norm in each step, weight decay apart."""

    repeat: Annotated[str | None, tyro.conf.arg(metavar="KxR")] = None
    """4x2 runs the last 4 blocks twice, with the same parameters."""

    def check(self) -> None:
        """See `Checked`."""
        super().check()
        if self.repeat is not None:
            parse_repeat(self.repeat)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyExitTraining(Checked):
    """LayerSkip: blocks dropped in training, and losses at early exits."""

    layer_dropout: Rate = 0.0
    """How often the last block is dropped, for a whole batch; earlier ones less, the first never."""

    exit_loss: NotNegativeFloat = 0.0
    """What the losses at early exits weigh together, beside the final loss's 1; 0 has no exits."""

    exit_curriculum: Literal["rotational", "gradual", "all"] | None = None
    """Exits of a step: one in --exit-every in turn (unless given), last to first over half the run, all."""

    exit_every: Positive | None = None
    """Of the rotational curriculum; a quarter of the blocks unless given."""

    exit_weights: Literal["even", "depth"] | None = None
    """How a step's exits share --exit-loss: evenly (unless given), or in proportion to m(m+1)/2 at block m."""

    def check(self) -> None:
        """See `Checked`."""
        super().check()
        for name in ("exit_curriculum", "exit_every", "exit_weights"):
            needs(self, name, self.exit_loss > 0, "exit_loss=1")
        if self.exit_every is not None and self.curriculum != "rotational":
            raise UsageError(
                f"exit_every={self.exit_every} belongs to exit_curriculum=rotational; {self.curriculum} chooses its "
                "exits itself"
            )

    @property
    def curriculum(self) -> Literal["rotational", "gradual", "all"]:
        """Which exits a step has."""
        return self.exit_curriculum or "rotational"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logging(Checked):
    """Evaluations and records."""

    evaluate_every: Positive | None = None
    """Steps between evaluations on held-out text; ten in a run unless given, and one at the end."""

    evaluate_tokens: Positive | None = None
    """Held-out tokens of one evaluation; 65,536 unless given, or what costs a fifth of the steps in between."""

    record_every: NotNegative = 50
    """Steps between depth records; 0 keeps none."""

    gradient_from: Positive = 1
    """The first step that the gradient share counts."""

    gradient_until: Positive | None = None
    """The last step that it counts; all unless given."""

    gradient_every: NotNegative = 0
    """Steps between records of the gradients' effective rank and diversity, which cost time; 0 keeps none."""

    log_to: str | None = None
    """Trackers beside the folder's own records: tensorboard, wandb, trackio; several with commas."""

    def check(self) -> None:
        """See `Checked`."""
        super().check()
        trackers_of(self.log_to)
        if self.gradient_until is not None and self.gradient_until < self.gradient_from:
            raise UsageError(
                f"gradient_from={self.gradient_from} is after gradient_until={self.gradient_until}; no step counts"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoints(Checked):
    """Checkpoints."""

    checkpoint_every: Positive | None = None
    """Steps between checkpoints; ten minutes unless given, and one at the end and at Ctrl-C."""

    keep: Positive = 2
    """How many checkpoints stay."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime(Checked):
    """Where and how a run computes."""

    device: str = "auto"
    """Where to run: auto (a CUDA GPU where there is one), cpu, cuda, cuda:1, mps."""

    precision: Precision = "float32"
    """bfloat16 is autocast; parameters stay float32."""

    backend: Backend = "auto"
    """Of the depth operators; on a CPU auto is lean, and compiled is faster after half a minute."""

    compile: bool = False
    """Run the model through torch.compile, as a whole."""

    compile_blocks: bool = False
    """Compile block by block, once for each kind of block: it starts sooner where many blocks are alike."""

    loss_chunk: Positive | None = None
    """Chunked cross-entropy: tokens whose logits exist at once; large batches are cut anyway."""

    activation_checkpointing: bool = False
    """Recompute each block in the backward pass: less memory, more time."""

    two_phase: bool = False
    """Attention Residuals in two phases: finished sources are read once for several sublayers."""

    def check(self) -> None:
        """See `Checked`."""
        super().check()
        if self.two_phase and self.activation_checkpointing:
            raise UsageError(
                "--two-phase reads for several sublayers at once, and --activation-checkpointing recomputes each block "
                "alone; leave out one of the two"
            )
        if self.compile and self.compile_blocks:
            raise UsageError(
                "--compile takes the whole model and --compile-blocks each block; leave out one of the two"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parallel(Checked):
    """Several processes (--nproc, or torchrun); without both options the model is sharded over all."""

    replicate: Positive | None = None
    """Copies of the model, each with its part of a batch (data parallel)."""

    shard: Positive | None = None
    """Processes over which a copy's parameters, gradients and optimiser are spread (FSDP2)."""


T = TypeVar("T", bound="Sections")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sections(Checked):
    """All options of a run but its design and its seed, in sections."""

    model: Model = Model()
    data: Data = Data()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    interventions: Interventions = Interventions()
    early_exit: EarlyExitTraining = EarlyExitTraining()
    logging: Logging = Logging()
    checkpoints: Checkpoints = Checkpoints()
    runtime: Runtime = Runtime()
    parallel: Parallel = Parallel()

    def check(self) -> None:
        """See `Checked`."""
        super().check()
        skip = self.early_exit
        if self.runtime.compile and skip.layer_dropout > 0:
            raise UsageError(
                "--layer-dropout runs other blocks in each step, and --compile would recompile for each choice of them"
                "; leave out one of the two (--compile-blocks works with it)"
            )
        if self.runtime.compile and skip.exit_loss > 0 and skip.curriculum != "all":
            raise UsageError(
                f"--exit-curriculum {skip.curriculum} takes other exits in each step, and --compile would compile each "
                "choice of them anew; --exit-curriculum all works with it, and --compile-blocks with any"
            )

    def replaced(self: T, **options: Any) -> T:
        """The same with other values, by the names of fields in whatever section they are.

        Raises:
            UsageError: no field has this name.
        """
        return with_fields(self, options)

    def sections(self) -> dict[str, Any]:
        """The sections by name, for another configuration that has them."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(Sections)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(Sections):
    """One run. What is None is filled in from the preset, the design's settings or the length of the run."""

    design: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DESIGN")]
    """A design's name or expression; `leadline designs` lists them."""

    seed: NotNegative = 0
    """Of the weights and of the order of the data."""

    @classmethod
    def of(cls, design: str, **options: Any) -> RunConfig:
        """A run by the names of its options: `RunConfig.of("mgr", tokens=500_000, weight_decay=0.05)`.

        Raises:
            UsageError: an option isn't known, or doesn't work.
        """
        return cls(design=design).replaced(**options)


def options_of_run(content: Mapping[str, Any]) -> dict[str, Any]:
    """Every option of a run by its name, from its saved configuration, also that of a version that had no sections."""
    found = flat(RunConfig, content)
    if found.pop("tensorboard", False):
        found["log_to"] = "tensorboard"
    if "shape" in content:
        found = {RENAMED.get(name, name): value for name, value in found.items() if name != "shape"}
        found |= content["shape"] or {}
        # What did nothing in that run was named all the same.
        for name, partner in PARTNERS.items():
            if not partner(found):
                found.pop(name, None)
    return found


def options_of(config: Sections) -> dict[str, Any]:
    """Every option's value by its name."""
    return flat(type(config), to_dict(config))
