"""`leadline train`: one run."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

SAY_EVERY = 5.0


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Train one model. Stopped with Ctrl-C, the same command goes on where it was.

    Example: leadline train "mgr(streams=8)" --data sotu --preset tiny --tokens 1.2M --out runs/mgr8
    """

    design: tyro.conf.Positional[str]
    """A design's name or expression; `leadline designs` lists them."""

    out: Path
    """Where everything goes: records, checkpoints, the summary."""

    data: str = "sotu"
    """`sotu`, or a folder that `leadline data prepare` wrote."""

    preset: str = "tiny"
    """The model's shape: tiny, S, M, L, 374M, 1B or 3B."""

    tokens: str | None = None
    """Tokens to train on: 1.2M, 500k. The preset's own number unless given."""

    blocks: int | None = None
    """Transformer blocks, instead of the preset's."""

    batch_size: int | None = None
    """Sequences in one step, instead of the preset's."""

    context: int | None = None
    """Tokens in a sequence, instead of the preset's."""

    accumulation: int = 1
    """Passes that one step is made of; the result stays the same, the memory falls."""

    lr: float | None = None
    """The peak learning rate; the design's own for this preset unless given."""

    warmup: float = 0.05
    """Share of the steps in which the learning rate rises."""

    schedule: Literal["cosine", "wsd"] = "cosine"
    """cosine, or wsd: steady, then linear decay in the last fifth."""

    weight_decay: float = 0.1
    """On matrices; norms, gains, biases, embeddings and connections take none."""

    decay_embeddings: bool = False
    """Weight decay on the embedding too."""

    clip: float = 1.0
    """The largest gradient norm."""

    seed: int = 0
    """Of the weights and of the order of the data."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 is autocast; parameters stay float32."""

    compile: bool = False
    """Run the model through torch.compile."""

    recompute: bool = False
    """Recompute each block in the backward pass: less memory, more time."""

    evaluate_every: int | None = None
    """Steps between evaluations on held-out text; ten in a run unless given."""

    record_every: int = 50
    """Steps between depth records; 0 keeps none."""

    checkpoint_every: int | None = None
    """Steps between checkpoints; there is one at the end and at Ctrl-C anyway."""

    keep: int = 2
    """How many checkpoints stay."""

    device: str = "cpu"
    """Where to run: cpu, cuda."""

    tensorboard: bool = False
    """Also write TensorBoard events into the folder."""

    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write the summary to this file."""


def run(arguments: Arguments) -> int:
    """Trains; returns 0."""
    from leadline.cli.counts import parse_count
    from leadline.config import to_dict
    from leadline.files import write_json
    from leadline.training import RunConfig, train

    same = {f.name for f in dataclasses.fields(RunConfig)} & {f.name for f in dataclasses.fields(Arguments)}
    values: dict[str, Any] = {name: getattr(arguments, name) for name in same - {"tokens"}}
    config = RunConfig(
        **values,
        tokens=None if arguments.tokens is None else parse_count(arguments.tokens, "--tokens"),
        learning_rate=arguments.lr,
        shape={} if arguments.blocks is None else {"blocks": arguments.blocks},
    )
    summary = train(config, arguments.out, on_step=Progress())
    print(
        f"{config.design}: {summary.bits_per_byte:.4f} bits per byte held out, loss {summary.loss:.4f}, "
        f"{summary.tokens:,} tokens at {summary.tokens_per_second:,.0f} a second, "
        f"{summary.parameters:,} parameters, {summary.flops_per_token:,} FLOPs a token"
    )
    for note in summary.notes:
        print(f"note: {note}")
    if arguments.json is not None:
        write_json(arguments.json, to_dict(summary))
    return 0


class Progress:
    """Says on standard error how far the run is: over one line on a terminal, else a line every few seconds."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self.begin = self.said = time.monotonic()
        self.first: int | None = None

    def __call__(self, told: dict[str, Any]) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = told["step"] - 1
        last = told["step"] == told["steps"]
        if not last and now - self.said < (0.2 if self.live else SAY_EVERY):
            return
        self.said = now
        left = (now - self.begin) / (told["step"] - self.first) * (told["steps"] - told["step"])
        line = (
            f"step {told['step']}/{told['steps']}  loss {told['loss']:.4f}  lr {told['lr']:.2e}  "
            f"norm {told['grad_norm']:.2f}  {told['tokens_per_second']:,.0f} tokens/s  {left:.0f} s left"
        )
        if self.live:
            print(f"\r{line:<100}", end="\n" if last else "", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)
