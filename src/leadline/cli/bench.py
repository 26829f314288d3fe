"""`leadline bench`: speed and memory, side by side in one run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from leadline.cli.bench_pipeline import Pipeline
from leadline.cli.bench_pipeline import run as predict
from leadline.progress import StatusLine

if TYPE_CHECKING:
    from leadline.bench.results import Result

BackendName = Literal["auto", "reference", "lean", "compiled", "triton"]
Backends = tyro.conf.UseAppendAction[tuple[BackendName, ...]]
Designs = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[DESIGN ...]", help_behavior_hint="")]
_FILE = tyro.conf.arg(metavar="FILE")
INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class Models:
    """Time forward and backward of whole decoders, and count what they keep for the backward pass.

    Every design's loss and gradients are first held against the reference backend's.

    Example: leadline bench models attnres-block "mgr(streams=8)" --shape b --rounds 11 --json models.json
    """

    designs: Designs = ()
    """Names or expressions (`leadline designs`); one of each family unless given, and always PreNorm."""

    shape: Literal["a", "b"] = "a"
    """a: 12 blocks, D=512, T=256, B=4. b: 24 blocks, D=128, T=128, B=16."""

    blocks: int | None = None
    """Another depth than the shape's; so too the options below."""

    dim: int | None = None
    """Model width."""

    heads: int | None = None
    """Attention heads; of width 64 in shape a and 32 in b unless given."""

    context: int | None = None
    """Tokens in a sequence."""

    batch: int | None = None
    """Sequences."""

    backend: Backends = ()
    """Backends to compare, by repeating it; lean and compiled unless given, on a GPU lean and triton."""

    two_phase: bool = False
    """Time Attention Residuals in two phases too, beside one phase."""

    rounds: int = 9
    """How often every candidate is timed."""

    threads: int | None = None
    """Threads of PyTorch; its own choice unless given."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of parameters and activations; a connection's own parameters stay float32."""

    device: str = "auto"
    """auto (a CUDA GPU where there is one), cpu or cuda."""

    clock: Literal["wall", "process"] = "wall"
    """wall for an idle machine; process counts this process's own time on all threads. A GPU has its own."""

    check_only: bool = False
    """Only check; time nothing."""

    json: Annotated[Path | None, _FILE] = None
    """Write every round's numbers to this file."""

    picture: Annotated[Path | None, _FILE] = None
    """Draw the ratios into this SVG file."""


@dataclass(frozen=True, kw_only=True)
class Ops:
    """Time every depth operator alone, forward and backward, on each backend and against public peers.

    Values and gradients are first checked in float64; no speed-up is printed where the check fails.

    Example: leadline bench ops --operators "depth attention" "mhc step" --dim 768 --json ops.json
    """

    operators: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="")] = ()
    """Which ones, by name; all unless given."""

    tokens: int = 1024
    """Tokens."""

    dim: int = 512
    """Width."""

    count: int = 4
    """Sources or streams."""

    backend: Backends = ()
    """Backends beside the reference, by repeating it; lean and compiled, on a GPU lean and triton."""

    peers: bool = True
    """Other people's implementations too, where they are installed."""

    rounds: int = 15
    """How often every candidate is timed."""

    threads: int | None = None
    """Threads of PyTorch; its own choice unless given."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of sources and streams while they are timed."""

    device: str = "auto"
    """auto (a CUDA GPU where there is one), cpu or cuda."""

    clock: Literal["wall", "process"] = "wall"
    """wall for an idle machine; process counts this process's own time on all threads. A GPU has its own."""

    check_only: bool = False
    """Only check; time nothing."""

    json: Annotated[Path | None, _FILE] = None
    """Write every round's numbers to this file."""

    picture: Annotated[Path | None, _FILE] = None
    """Draw the ratios into this SVG file."""


@dataclass(frozen=True, kw_only=True)
class Decode:
    """Time one token of cached generation, after a prompt.

    The cached logits of every design are first held against one pass over the text.

    Example: leadline bench decode attnres-block mgr bhyt --rounds 40 --json decode.json
    """

    designs: Designs = ()
    """Names or expressions (`leadline designs`); one of each family unless given, and always PreNorm."""

    blocks: int = 12
    """Transformer blocks."""

    dim: int = 512
    """Model width."""

    heads: int | None = None
    """Attention heads; of width 64 unless given."""

    prompt: int = 64
    """Tokens of the prompt."""

    batch: int = 1
    """Sequences."""

    backend: Backends = ()
    """What runs depth operators; repeat it for several. Unless given: what generation takes by itself."""

    two_phase: bool = False
    """Time Attention Residuals in two phases too, beside one phase."""

    group: int = 10
    """Tokens that a design generates in its turn."""

    rounds: int = 25
    """How many turns every design gets."""

    threads: int | None = None
    """Threads of PyTorch; its own choice unless given."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of parameters and activations; a connection's own parameters stay float32."""

    device: str = "auto"
    """auto (a CUDA GPU where there is one), cpu or cuda."""

    clock: Literal["wall", "process"] = "wall"
    """wall for an idle machine; process counts this process's own time on all threads. A GPU has its own."""

    check_only: bool = False
    """Only check; time nothing."""

    json: Annotated[Path | None, _FILE] = None
    """Write every round's numbers to this file."""

    picture: Annotated[Path | None, _FILE] = None
    """Draw the ratios into this SVG file."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure speed and memory of depth designs: whole models, operators alone, generation, or a pipeline.

    Everything is interleaved in one run; ratios are formed within a round and shown with a 95 % interval.

    Example: leadline bench models --shape a --json models.json --picture models.svg
    """

    action: tyro.conf.OmitArgPrefixes[
        Annotated[Models, tyro.conf.subcommand("models", prefix_name=False)]
        | Annotated[Ops, tyro.conf.subcommand("ops", prefix_name=False)]
        | Annotated[Decode, tyro.conf.subcommand("decode", prefix_name=False)]
        | Annotated[Pipeline, tyro.conf.subcommand("pipeline", prefix_name=False)]
    ]


def run(arguments: Arguments) -> int:
    """Measures, prints the table, and writes what was asked for.

    Returns:
        0, or 1 where a check failed, or 130 where someone stopped it; what was measured by then is printed and written.
    """
    import torch

    from leadline.bench.picture import draw
    from leadline.bench.table import print_result
    from leadline.files import write_json, write_text

    action = arguments.action
    if isinstance(action, Pipeline):
        return predict(action)
    _check_options(action)
    threads = torch.get_num_threads()
    try:
        if action.threads is not None:
            torch.set_num_threads(action.threads)
        with contextlib.closing(StatusLine()) as line:
            result = _measure(action, line.show)
    finally:
        torch.set_num_threads(threads)
    if action.json is not None:
        write_json(action.json, result.as_json())
    if action.picture is not None:
        write_text(action.picture, draw(result))
    print_result(result, sys.stdout)
    sys.stdout.flush()
    if result.interrupted:
        print("leadline: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 1 if result.failed else 0


def _check_options(action: Any) -> None:
    """Raises UsageError for what can be known before any work."""
    from leadline.errors import UsageError
    from leadline.files import check_file
    from leadline.training.resolve import usable_device

    for option in ("rounds", "threads", "group", "prompt", "batch"):
        value = getattr(action, option, None)
        if value is not None and value < 1:
            raise UsageError(f"--{option} {value} is too small; 1 or more work")
    if action.picture is not None and action.picture.suffix.lower() != ".svg":
        raise UsageError(f"--picture {action.picture} is drawn as SVG; name a file that ends in .svg")
    if usable_device(action.device).type not in ("cpu", "cuda"):
        raise UsageError(f"--device {action.device} has no clock here; cpu and cuda work")
    for option, path in (("--json", action.json), ("--picture", action.picture)):
        if path is not None:
            check_file(path, option)


def _measure(action: Models | Ops | Decode, say: Callable[[str], None]) -> Result:
    import torch

    from leadline.bench import bench_decode, bench_models, bench_operators
    from leadline.bench.cases import Sizes
    from leadline.bench.decode import DESIGNS as DECODED
    from leadline.bench.decode import DecodeOptions
    from leadline.bench.models import DESIGNS, ModelOptions
    from leadline.bench.operators import OperatorOptions
    from leadline.bench.shapes import BenchShape, default_heads, shape_named
    from leadline.experiments.machine import describe_machine
    from leadline.training.resolve import usable_device

    common: dict[str, Any] = {
        "backends": action.backend,
        "rounds": action.rounds,
        "dtype": getattr(torch, action.dtype),
        "device": usable_device(action.device),
        "clock": action.clock,
        "check_only": action.check_only,
    }
    machine = describe_machine()
    if common["device"].type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(common["device"])
    if isinstance(action, Models):
        given = {key: getattr(action, key) for key in ("blocks", "dim", "heads", "context", "batch")}
        shape, name = shape_named(action.shape, **given)
        common |= {"two_phase": action.two_phase, "designs": action.designs or DESIGNS}
        wish = ModelOptions(shape=shape, shape_name=name, **common)
        return bench_models(wish, machine, say)
    if isinstance(action, Ops):
        sizes = Sizes(tokens=action.tokens, dim=action.dim, count=action.count)
        return bench_operators(
            OperatorOptions(cases=action.operators, sizes=sizes, peers=action.peers, **common), machine, say
        )
    decoder = BenchShape(
        blocks=action.blocks,
        dim=action.dim,
        heads=default_heads(action.dim, 64) if action.heads is None else action.heads,
        context=action.prompt,
        batch=action.batch,
    )
    common |= {"two_phase": action.two_phase, "designs": action.designs or DECODED}
    return bench_decode(DecodeOptions(shape=decoder, group=action.group, **common), machine, say)
