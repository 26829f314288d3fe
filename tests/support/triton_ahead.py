"""Compiles kernels ahead of time for GPUs that are not here, just as a launch would, and reads what they use.

A test file gives a function that calls an operator on CPU tensors. In a process of its own, without Triton's
interpreter, every kernel launch in that call is caught before it needs a GPU: Triton's own binder turns the arguments
into a signature with their alignments, and the kernel is compiled for a chip with the launch's own blocks and warps.

    def launch(dim: int, count: int, dtype: torch.dtype) -> None: ...    # calls the operator, forward and backward

    kernels = compile_ahead(__file__, "launch", cells())
    problems = [problem for kernel in kernels for problem in kernel.problems()]

A kernel that several launches share is compiled and listed once. Registers, spills and shared memory are what
`cuobjdump` reads in the binary for NVIDIA (stack counts as spilled), and what the code object's metadata says for AMD.
The compiler checks no limit of shared memory; `problems` does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from triton_interpreter import plain_environment

DIMS = (768, 1024, 2048, 4096, 7168)
COUNTS = (4, 8, 16, 33)
FULL = os.environ.get("LEADLINE_FULL_AOT") == "1"
"""Whether to compile every width with every count on every chip, rather than each at least once on every chip."""


@dataclass(frozen=True)
class Chip:
    """A target of the compiler, and what one program may use on it."""

    backend: str
    arch: int | str
    lanes: int
    registers: int
    shared_bytes: int


CHIPS = {
    "sm_80": Chip("cuda", 80, 32, 255, 163 * 1024),
    "sm_90": Chip("cuda", 90, 32, 255, 227 * 1024),
    "sm_100": Chip("cuda", 100, 32, 255, 227 * 1024),
    "gfx942": Chip("hip", "gfx942", 64, 512, 64 * 1024),
}


@dataclass(frozen=True)
class Cell:
    """What to compile: a chip, a width, a number of sources or streams, a dtype by its name."""

    chip: str
    dim: int
    count: int
    dtype: str = "bfloat16"


@dataclass(frozen=True)
class Kernel:
    """What a compiled kernel uses: registers a lane, bytes spilled a lane, bytes of shared memory (on AMD, of LDS)."""

    name: str
    cell: Cell
    warps: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    widest_load_bits: int
    atomics: bool

    def problems(self, may_spill_bytes: int = 0) -> list[str]:
        """What does not fit its chip, in words; nothing if it fits and spills no more than allowed."""
        chip = CHIPS[self.cell.chip]
        found = []
        if self.registers > chip.registers:
            found.append(f"{self.registers} registers, the chip has {chip.registers}")
        if self.shared_bytes > chip.shared_bytes:
            found.append(f"{self.shared_bytes} bytes of shared memory, the chip has {chip.shared_bytes}")
        if self.spilled_bytes > may_spill_bytes:
            found.append(f"{self.spilled_bytes} bytes spilled, {may_spill_bytes} allowed")
        if self.atomics:
            found.append("atomics, whose order changes from run to run")
        return [f"{self.name} {self.cell}: {problem}" for problem in found]


def cells(
    dims: Sequence[int] = DIMS, counts: Sequence[int] = COUNTS, chips: Iterable[str] = CHIPS, full: bool = FULL
) -> list[Cell]:
    """bf16: each width and each count at least once on each chip, or all pairs; and one float32 pair on each chip."""
    found = []
    for shift, chip in enumerate(chips):
        if full:
            found += [Cell(chip, dim, count) for dim in dims for count in counts]
        else:
            longest = max(len(dims), len(counts))
            found += [Cell(chip, dims[i % len(dims)], counts[(i + shift) % len(counts)]) for i in range(longest)]
        found.append(Cell(chip, 2048, counts[shift % len(counts)], "float32"))
    return found


def compile_ahead(file: str, function: str, wanted: Sequence[Cell]) -> list[Kernel]:
    """All kernels that `function(dim, count, dtype)` of the test file launches, for each cell; skips without Triton."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed (pip install 'leadline[triton]')")
    ran = subprocess.run(
        [sys.executable, __file__, file, function],
        input=json.dumps([asdict(cell) for cell in wanted]),
        env={**plain_environment(), "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        pytest.fail(f"compiling ahead of time:\n{ran.stdout[-4000:]}\n{ran.stderr[-8000:]}", pytrace=False)
    found = json.loads(ran.stdout.splitlines()[-1])
    return [Kernel(**{**kernel, "cell": Cell(**kernel["cell"])}) for kernel in found]


def _compile_cells(file: str, function: str, wanted: list[Cell]) -> list[Kernel]:
    from triton.runtime.jit import JITFunction

    spec = importlib.util.spec_from_file_location("ahead_of_time_calls", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    launch = getattr(module, function)
    found: dict[tuple[Any, ...], Kernel] = {}
    for cell in wanted:

        def caught(self: Any, *args: Any, grid: Any, warmup: bool, cell: Cell = cell, **options: Any) -> None:
            key, compiled = _compiled(self, CHIPS[cell.chip], args, options)
            if key not in found:
                found[key] = _read(compiled, self.fn.__name__, cell)

        JITFunction.run = caught
        launch(cell.dim, cell.count, getattr(torch, cell.dtype))
    return list(found.values())


def _compiled(kernel: Any, chip: Chip, args: Sequence[Any], options: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """What a launch with these arguments would compile, and a key that tells it from others."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    target = GPUTarget(chip.backend, chip.arch, chip.lanes)
    backend = make_backend(target)
    bound, specialization, _ = create_function_from_signature(kernel.signature, kernel.params, backend)(
        *args, **options
    )
    parsed, signature, constants, attributes = kernel._pack_args(backend, options, bound, specialization, {})
    source = ASTSource(kernel, signature, constants, attributes)
    return (chip, source.hash(), parsed.num_warps), triton.compile(source, target=target, options=parsed.__dict__)


def _read(compiled: Any, name: str, cell: Cell) -> Kernel:
    if CHIPS[cell.chip].backend == "cuda":
        text = compiled.asm["ptx"]
        registers, spilled = _cubin_usage(compiled.asm["cubin"])
        loads = re.findall(r"ld\.global[\w.:]*\.v(\d)\.b(\d+)", text)
        widest = [int(many) * int(bits) for many, bits in loads]
        atomics = re.search(r"\b(atom|red)\.", text)
    else:
        text = compiled.asm["amdgcn"]
        registers, spilled = _code_object_usage(text)
        widest = [32 * int(many) for many in re.findall(r"(?:global|buffer)_load_dwordx(\d)", text)]
        atomics = re.search(r"\b(global|buffer|flat)_atomic", text)
    return Kernel(
        name=name,
        cell=cell,
        warps=compiled.metadata.num_warps,
        registers=registers,
        spilled_bytes=spilled,
        shared_bytes=compiled.metadata.shared,
        widest_load_bits=max(widest, default=32),
        atomics=atomics is not None,
    )


def _cubin_usage(cubin: bytes) -> tuple[int, int]:
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    usage = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}
    return usage["REG"], usage["STACK"] + usage["LOCAL"]


def _code_object_usage(text: str) -> tuple[int, int]:
    def last(name: str) -> int:
        return int(re.findall(rf"\.{name}:\s*(\d+)", text)[-1])

    return last("vgpr_count"), max(4 * last("vgpr_spill_count"), last("private_segment_fixed_size"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    cells_asked = [Cell(**cell) for cell in json.load(sys.stdin)]
    print(json.dumps([asdict(kernel) for kernel in _compile_cells(sys.argv[1], sys.argv[2], cells_asked)]))
