"""The multi-gate step's kernels compiled ahead of time for every supported chip: do they fit, and are they few?"""

from __future__ import annotations

import torch
from torch import Tensor
from triton_ahead import CHIPS, COUNTS, DIMS, Cell, cells, compile_ahead

MAY_SPILL_BYTES = 16
"""A documented exception: rarely ptxas keeps four numbers a lane in memory, mostly to fit one more program on a
multiprocessor. Seen for sm_90 at D=1024, N=16 (168 registers) and for sm_80 at D=7168, N=33."""
MAY_SPILL_BYTES_OF_DOUBLES = 128
"""Doubles serve checks, not speed."""


def step(streams: Tensor, parts: str = "fpg", kind: str = "competitive", keep: bool = True) -> None:
    """One step forward and backward, with the parts wanted: f flush, p pool, g gate."""
    from leadline.ops.multi_gate import triton

    count, dim, wide = len(streams), streams.shape[-1], torch.promote_types(streams.dtype, torch.float32)
    output = torch.empty_like(streams[0]) if "f" in parts else None
    beta = torch.empty(count, *streams.shape[1:-1], dtype=wide) if "f" in parts else None
    pool = torch.empty(dim, dtype=wide) if "p" in parts else None
    gate, bias = (torch.empty(dim, dtype=wide), torch.empty(1, dtype=wide)) if "g" in parts else (None, None)
    independent = kind == "independent"
    _, read, gates, stats = triton.step(streams, output, beta, pool, gate, bias, independent, 1e-6, keep)
    if keep:
        made = gates if "g" in parts else None
        upstream = torch.empty_like(streams), torch.empty_like(read), made
        triton.step_gradients(streams, output, beta, pool, gate, made, stats, *upstream, independent)


def launch(dim: int, count: int, dtype: torch.dtype) -> None:
    step(torch.empty(count, 8, dim, dtype=dtype))


def launch_every_form(dim: int, count: int, dtype: torch.dtype) -> None:
    """The accumulation phase, the readout, generation, and the independent gate."""
    step(torch.empty(1, 8, dim, dtype=dtype), parts="")
    step(torch.empty(1, 8, dim, dtype=dtype), parts="fg", kind="independent")
    step(torch.empty(count, 8, dim, dtype=dtype), parts="p")
    step(torch.empty(count, 8, dim, dtype=dtype), parts="fp")
    step(torch.empty(count, 8, dim, dtype=dtype), parts="pg", kind="independent")
    step(torch.empty(count, 8, dim, dtype=dtype), keep=False)


def launch_with_other_numbers(dim: int, count: int, dtype: torch.dtype) -> None:
    """Other numbers of tokens, and rows that lie apart."""
    for tokens in (1, 16, 33, 5000):
        step(torch.empty(count, tokens, dim, dtype=dtype))
    step(torch.empty(count, 8, 3, 2 * dim, dtype=dtype)[:, 1:, :2, :dim])


def test_kernels_fit_the_chips() -> None:
    kernels = compile_ahead(__file__, "launch", cells())
    assert {kernel.cell.chip for kernel in kernels} == set(CHIPS)
    assert {kernel.cell.dim for kernel in kernels} == set(DIMS)
    assert {kernel.cell.count for kernel in kernels} == set(COUNTS)
    problems = [problem for kernel in kernels for problem in kernel.problems(MAY_SPILL_BYTES)]
    assert not problems, "\n".join(problems)
    assert {kernel.widest_load_bits for kernel in kernels} == {128}


def test_every_form_of_a_step_compiles() -> None:
    kernels = compile_ahead(__file__, "launch_every_form", [Cell("sm_90", 256, 2), Cell("gfx942", 256, 2)])
    assert len(kernels) == 2 * (6 + 5)
    assert not [problem for kernel in kernels for problem in kernel.problems()]


def test_no_kernel_for_other_numbers_of_tokens_or_strides() -> None:
    """Where D is odd, one more for tensors that start between multiples of 16 bytes."""
    for dim, variants in ((32, 1), (23, 2)):
        kernels = compile_ahead(__file__, "launch_with_other_numbers", [Cell("sm_90", dim, 2)])
        assert sorted(kernel.name for kernel in kernels) == ["step_backward"] * variants + ["step_forward"] * variants


def test_float64_compiles() -> None:
    kernels = compile_ahead(__file__, "launch", [Cell(chip, 256, 4, "float64") for chip in ("sm_80", "gfx942")])
    assert len(kernels) == 4
    assert not [problem for kernel in kernels for problem in kernel.problems(MAY_SPILL_BYTES_OF_DOUBLES)]
