"""`leadline bench pipeline`: what a pipeline of any size sends, waits for and holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

DESIGNS = ("prenorm", "attnres", "attnres-block", "mgr", "mhc")


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Predict what a pipeline sends, waits for and holds, on ranks that need not be there.

    The depth state is run through the model's blocks without values, its tensors are followed from chunk to chunk, and
    the schedule is played event by event.

    Example: leadline bench pipeline attnres-block mgr --preset 1B --ranks 8 --virtual 2 --json pipeline.json
    """

    designs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[DESIGN ...]")] = ()
    """Names or expressions (`leadline designs`); some of each family unless given."""

    preset: str = "1B"
    """The model's shape by name: tiny, S, M, L, 374M, 1B or 3B."""

    blocks: int | None = None
    """Transformer blocks; the preset's unless given."""

    vocab: int = 32_000
    """Size of the vocabulary; the head is the last chunk's."""

    ranks: int = 8
    """Ranks in a row (P)."""

    virtual: int = 1
    """Chunks of each rank (V): the interleaved schedule."""

    blocks_every: int | None = None
    """Attention Residuals: one block in so many chunks, instead of the design's own."""

    micro_batches: int | None = None
    """Of a step; four a rank unless given."""

    sequences: int = 1
    """Of a micro-batch."""

    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """1f1b alternates forward and backward passes; gpipe does all forward passes first."""

    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of activations and of what travels."""

    tflops: float = 400.0
    """What a rank computes in a second, in 10^12 floating-point operations."""

    gigabytes: float = 50.0
    """What a hop carries in a second, in 10^9 bytes."""

    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the numbers of every hop and rank to this file."""


def run(arguments: Pipeline) -> int:
    """Prints the table, and writes what was asked for. Returns 0."""
    import dataclasses

    from leadline.bench.pipeline import POLICIES, plan, predict, with_blocks_every
    from leadline.designs import preset_named, resolve
    from leadline.errors import UsageError
    from leadline.files import write_json

    for name in ("ranks", "virtual", "sequences", "vocab", "tflops", "gigabytes", "micro_batches", "blocks_every"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            raise UsageError(f"--{name.replace('_', '-')} {value} does not work; more than 0 does")
    shape = preset_named(arguments.preset).shape
    if arguments.blocks is not None:
        shape = dataclasses.replace(shape, blocks=arguments.blocks)
    rows: list[dict[str, Any]] = []
    for name in arguments.designs or DESIGNS:
        config = resolve(name).decoder(shape, arguments.vocab)
        if arguments.blocks_every is not None:
            config = with_blocks_every(config, arguments.ranks * arguments.virtual, arguments.blocks_every)
        chunks, hops = plan(config, arguments.ranks, arguments.virtual, dtype=arguments.dtype)
        found = {
            policy: predict(
                chunks,
                hops,
                ranks=arguments.ranks,
                virtual=arguments.virtual,
                micro_batches=arguments.micro_batches or 4 * arguments.ranks,
                tokens=arguments.sequences * shape.context,
                kind=arguments.schedule,
                policy=policy,
                flops_per_second=1e12 * arguments.tflops,
                bytes_per_second=1e9 * arguments.gigabytes,
            )
            for policy in POLICIES
        }
        rows.append(
            {
                "design": name,
                "chunks": [chunk._asdict() for chunk in chunks],
                "hops": [
                    {
                        "source": hop.source,
                        "target": hop.target,
                        "tensors": {policy: len(hop.sent[policy]) for policy in POLICIES},
                        "bytes_per_token": {policy: hop.bytes(policy) for policy in POLICIES},
                    }
                    for hop in hops
                ],
                "schedules": {policy: each._asdict() for policy, each in found.items()},
            }
        )
    print(table(rows))
    if arguments.json is not None:
        write_json(arguments.json, {"options": {**vars(arguments), "json": str(arguments.json)}, "designs": rows})
    return 0


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each design and way to send; one row where they send the same."""
    heads = ("largest hop", "all hops", "bubble", "step", "peak memory")
    lines = [" ".join([f"{'design':<24} {'sends':<9}", *(f"{each:>13}" for each in heads)])]
    for row in rows:
        shown: list[list[int]] = []
        for policy, schedule in row["schedules"].items():
            sent = [hop["bytes_per_token"][policy] for hop in row["hops"]]
            if sent in shown:
                continue
            shown.append(sent)
            numbers = [
                f"{max(sent, default=0) / 1e3:.1f} KB",
                f"{sum(sent) / 1e3:.0f} KB",
                f"{100 * schedule['bubble']:.1f} %",
                f"{schedule['time']:.3f} s",
                f"{max(schedule['peak_bytes']) / 1e9:.1f} GB",
            ]
            lines.append(" ".join([f"{row['design']:<24} {policy:<9}", *(f"{each:>13}" for each in numbers)]))
    return "\n".join(lines)
