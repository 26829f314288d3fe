"""Every GPU check and every GPU benchmark in one run, for the day there is a GPU.

    python benchmarks/gpu.py [--minutes 8] [--json gpu.json] [--only checks ops models decode]

Parts, each within its share of the time:

- checks: each operator in float64, float32 and bfloat16 at real sizes. Values and gradients against a float64 truth
  (float64: nearly equal; else at most twice plain PyTorch's error in the same dtype), two runs equal to the bit, memory
  that nothing wrote poisoned with NaN, and, at the first width, `torch.compile(fullgraph=True)`.
- ops: time and achieved bandwidth of each operator, beside a measured copy of as many bytes, for widths of 768 to 7168.
- models: forward and backward of 12 blocks of width 768 as multiples of PreNorm.
- decode: one token of cached generation.

Exit codes: 0 all checks pass, 1 one fails or a part breaks, 2 there is no GPU, 130 interrupted. What was found is
printed and written in every case but the third. `--device cpu --tiny` runs the parts themselves without a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leadline.bench import bench_decode, bench_models, bench_operators
from leadline.bench.cases import CASES, Case, Inputs, Maker, Sizes
from leadline.bench.checks import errors
from leadline.bench.decode import DecodeOptions
from leadline.bench.models import ModelOptions
from leadline.bench.operators import OperatorOptions, values_and_gradients
from leadline.bench.results import Result, versions
from leadline.bench.rounds import Candidate, run_rounds, timer_for
from leadline.bench.running import TWO_PHASES
from leadline.bench.shapes import BenchShape
from leadline.bench.table import print_result
from leadline.choices import Backend
from leadline.experiments.machine import describe_machine
from leadline.files import write_json
from leadline.ops.choice import why_not
from leadline.statistics import median_of

EXACT = 1e-9
TIMES_PLAIN = 2.0
ALWAYS = {torch.float32: 2**-18, torch.bfloat16: 2**-7}
"""An error this small, relative to the length, is allowed even where plain PyTorch happens to do better."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run, and at what sizes.

    Attributes:
        fused: the backend under test.
        seconds: for everything.
        shares: of the time, by part.
    """

    device: torch.device
    fused: Backend
    seconds: float
    tokens: int
    dims: tuple[int, ...]
    counts: tuple[int, ...]
    model: BenchShape
    decoder: BenchShape
    rounds: int
    shares: dict[str, float] = dataclasses.field(
        default_factory=lambda: {"checks": 0.4, "ops": 0.25, "models": 0.22, "decode": 0.13}
    )


def plan_for(device: torch.device, minutes: float, tiny: bool) -> Plan:
    """Real sizes, or ones that a CPU does in seconds."""
    fused: Backend = "triton" if why_not("triton", device.type) is None else "lean"
    if tiny:
        small = BenchShape(blocks=2, dim=16, heads=1, context=8, batch=1)
        return Plan(
            device=device, fused=fused, seconds=60 * minutes, tokens=6, dims=(16,), counts=(4,), model=small,
            decoder=small, rounds=2,
        )  # fmt: skip
    return Plan(
        device=device, fused=fused, seconds=60 * minutes, tokens=8192, dims=(768, 1024, 2048, 4096, 7168),
        counts=(4, 8, 16, 33), model=BenchShape(blocks=12, dim=768, heads=12, context=1024, batch=8),
        decoder=BenchShape(blocks=12, dim=768, heads=12, context=64, batch=1), rounds=15,
    )  # fmt: skip


class Budget:
    """A part's share of the time, and what is left of all of it."""

    def __init__(self, seconds: float, end: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.end = min(clock() + seconds, end)

    def over(self) -> bool:
        """Whether the part should stop."""
        return self.clock() >= self.end


def main(arguments: list[str] | None = None) -> int:
    """Runs the parts; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the script itself")
    parser.add_argument("--tiny", action="store_true", help="sizes that a CPU does in seconds")
    parser.add_argument("--minutes", type=float, default=8.0, help="for everything")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="these parts")
    parser.add_argument("--json", type=Path, default=None, help="where to write what was found")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(
            "gpu.py: there is no GPU that PyTorch can use; --device cpu --tiny tries the script itself", file=sys.stderr
        )
        return 2
    plan = plan_for(device, options.minutes, options.tiny)
    found: dict[str, Any] = {"machine": machine(device), "versions": versions(), "fused": plan.fused, "parts": {}}
    end = time.monotonic() + plan.seconds
    interrupted = False
    shares = sum(plan.shares[name] for name in options.only)
    for name in options.only:
        budget = Budget(plan.seconds * plan.shares[name] / shares, end)
        if budget.over():
            found["parts"][name] = {"ok": True, "skipped": "there was no time left"}
            print(f"{name}: skipped, there was no time left")
            continue
        began = time.monotonic()
        part: dict[str, Any] = {"ok": True}
        found["parts"][name] = part
        print(f"\n{name}")
        try:
            PARTS[name](plan, budget, part)
        except KeyboardInterrupt:
            interrupted = True
        except Exception as error:
            traceback.print_exc()
            part.update(ok=False, error=f"{type(error).__name__}: {error}")
        part["seconds"] = time.monotonic() - began
        if interrupted or part.get("interrupted"):
            interrupted = True
            break
    found["ok"] = all(part["ok"] for part in found["parts"].values())
    found["interrupted"] = interrupted
    if options.json is not None:
        write_json(options.json, found)
    print("\nall checks that ran pass" if found["ok"] else "\nFAILED: see above")
    return 130 if interrupted else 0 if found["ok"] else 1


def machine(device: torch.device) -> dict[str, Any]:
    """The machine, and the GPU's name and memory."""
    told = describe_machine()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        told.update(gpu=properties.name, gpu_bytes=properties.total_memory, cuda=torch.version.cuda)
    return told


def settings(plan: Plan) -> Iterator[tuple[Case, Sizes, torch.dtype]]:
    """Every operator at every width, the counts in turn, in every dtype; the most telling first: time may run out."""
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        for number, dim in enumerate(plan.dims):
            count = plan.counts[number % len(plan.counts)]
            for case in CASES.values():
                fewer = 4 if case.name == "mhc-lite step" else count  # all permutations of more streams are too many
                sizes = Sizes(tokens=min(plan.tokens, 1000), dim=dim, count=fewer)
                yield case, sizes, dtype
                if case.two_phase is not None:
                    again = dataclasses.replace(case, name=f"{case.name}{TWO_PHASES}", work=case.two_phase)
                    yield again, sizes, dtype


def checks(plan: Plan, budget: Budget, part: dict[str, Any]) -> None:
    """Every operator, against the truth."""
    rows: list[dict[str, Any]] = []
    part["rows"] = rows
    todo = list(settings(plan))
    for case, sizes, dtype in todo:
        if budget.over():
            part["note"] = f"{len(todo) - len(rows)} of {len(todo)} checks are left out: there was no time left"
            print(part["note"])
            return
        said = check(case, sizes, dtype, plan)
        words = "ok" if not said else "; ".join(said)
        name = str(dtype).removeprefix("torch.")
        rows.append({"operator": case.name, **dataclasses.asdict(sizes), "dtype": name, "failed": said})
        part["ok"] = part["ok"] and not said
        print(f"  {case.name:<16} D={sizes.dim:<5} n={sizes.count:<3} {name:<9} {words}", flush=True)


def check(case: Case, sizes: Sizes, dtype: torch.dtype, plan: Plan) -> list[str]:
    """What is wrong with the fused operator there; nothing where it is right."""

    def fused(inputs: Inputs) -> Any:
        return case.work(inputs, plan.fused)

    def plain(inputs: Inputs) -> Any:
        return case.work(inputs, "reference")

    inputs = case.make(Maker(sizes, dtype, plan.device))
    try:
        with poisoned():
            found, names = values_and_gradients(fused, inputs)
        again, _ = values_and_gradients(fused, inputs)
        truth, _ = values_and_gradients(plain, inputs.widened())
        usual, _ = values_and_gradients(plain, inputs)
    except Exception as error:
        return [f"{type(error).__name__}: {error}".splitlines()[0]]
    said = accuracy(errors(found, truth), errors(usual, truth), names, dtype)
    if not all(same(one, two) for one, two in zip(found, again, strict=True)):
        said.append("two runs differ")
    if sizes.dim == plan.dims[0]:
        said += compiles(fused, inputs, found, names, dtype)
    return said


def accuracy(found: list[float], usual: list[float], names: list[str], dtype: torch.dtype) -> list[str]:
    """Where the error is larger than it may be."""
    said = []
    for name, error, plain in zip(names, found, usual, strict=True):
        allowed = EXACT if dtype == torch.float64 else max(TIMES_PLAIN * plain, ALWAYS[dtype])
        if not error <= allowed:
            said.append(f"{name} is off by {error:.1e}, more than {allowed:.1e}")
    return said


def compiles(
    work: Callable[[Inputs], Any],
    inputs: Inputs,
    eager: list[Tensor | None],
    names: list[str],
    dtype: torch.dtype,
) -> list[str]:
    """Whether it compiles as one graph, with the same outputs. Inductor has no part in it: it would take minutes."""
    torch.compiler.reset()
    try:
        outputs = torch.compile(work, fullgraph=True, backend="aot_eager")(inputs)
    except Exception as error:
        return [f"torch.compile(fullgraph=True): {type(error).__name__}: {str(error).splitlines()[0]}"]
    rounding = EXACT if dtype == torch.float64 else ALWAYS[dtype]
    off = errors([output.detach() for output in outputs], eager[: len(outputs)])
    return [
        f"compiled, {name} is off by {error:.1e}" for name, error in zip(names, off, strict=False) if error > rounding
    ]


class poisoned:  # noqa: N801
    """Fills memory that nothing has written yet with NaN, as far as PyTorch's own allocations go."""

    def __enter__(self) -> None:
        self.before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True

    def __exit__(self, *what: object) -> None:
        torch.use_deterministic_algorithms(self.before)


def same(one: Tensor | None, two: Tensor | None) -> bool:
    """Equal to the bit."""
    return one is two or (one is not None and two is not None and torch.equal(one, two))


def ops(plan: Plan, budget: Budget, part: dict[str, Any]) -> None:
    """Time and bandwidth of each operator and of a copy of as many bytes, at each width."""
    part["runs"], part["bandwidth"] = [], []
    dtype = torch.bfloat16
    for dim in plan.dims:
        if budget.over():
            part["note"] = f"D={dim} and wider are left out: there was no time left"
            print(part["note"])
            return
        sizes = Sizes(tokens=plan.tokens, dim=dim, count=4)
        options = OperatorOptions(
            sizes=sizes, backends=(plan.fused,), rounds=plan.rounds, dtype=dtype, device=plan.device
        )
        result = bench_operators(options, {}, until=budget.over)
        keep(result, part)
        for row in result.rows:
            if row.backend != plan.fused or row.time is None:
                continue
            moved = CASES[row.group].rows(sizes.count) * sizes.tokens * sizes.dim * dtype.itemsize
            operator = f"{row.group}{row.label.removeprefix(plan.fused)}"
            copied = copy_seconds(moved, plan)
            told = {
                "operator": operator,
                "dim": dim,
                "bytes": moved,
                "gb_per_second": moved / row.time.median / 1e9,
                "copy_gb_per_second": moved / copied / 1e9,
            }
            part["bandwidth"].append(told)
            print(
                f"  {operator:<16} D={dim:<5} {told['gb_per_second']:8.1f} GB/s of the bytes that must move; "
                f"a copy of as many: {told['copy_gb_per_second']:8.1f} GB/s",
                flush=True,
            )
        if result.interrupted:
            return


def copy_seconds(moved: int, plan: Plan) -> float:
    """How long a copy takes that reads and writes `moved` bytes together; the median of several."""
    source = torch.empty(max(1, moved // 2), dtype=torch.uint8, device=plan.device).fill_(1)
    target = torch.empty_like(source)
    candidate = Candidate(name="copy", call=lambda: target.copy_(source))
    timings = run_rounds([candidate], plan.rounds, timer_for(plan.device, "wall"), warm=2)
    if timings.interrupted:
        raise KeyboardInterrupt
    return median_of(timings.seconds["copy"]).median


def models(plan: Plan, budget: Budget, part: dict[str, Any]) -> None:
    """Whole decoders."""
    options = ModelOptions(
        shape=plan.model,
        backends=("lean", plan.fused),
        rounds=plan.rounds,
        warm=2,
        dtype=torch.bfloat16,
        device=plan.device,
    )
    keep(bench_models(options, {}, say, budget.over), part)


def decode(plan: Plan, budget: Budget, part: dict[str, Any]) -> None:
    """Generation."""
    options = DecodeOptions(shape=plan.decoder, rounds=plan.rounds, dtype=torch.bfloat16, device=plan.device)
    keep(bench_decode(options, {}, say, budget.over), part)


def keep(result: Result, part: dict[str, Any]) -> None:
    """Prints a result and puts it into the part."""
    print_result(result, sys.stdout)
    part.setdefault("runs", []).append(json.loads(json.dumps(result.as_json(), default=str)))
    part["ok"] = part["ok"] and not result.failed
    part["interrupted"] = result.interrupted


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


PARTS: dict[str, Callable[[Plan, Budget, dict[str, Any]], None]] = {
    "checks": checks,
    "ops": ops,
    "models": models,
    "decode": decode,
}

if __name__ == "__main__":
    sys.exit(main())
