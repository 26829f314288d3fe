"""Bounded tanh's kernels compiled ahead of time for every supported chip: do they fit, and are they few?"""

from __future__ import annotations

import torch
from torch import Tensor
from triton_ahead import CHIPS, DIMS, Cell, cells, compile_ahead

MAY_SPILL_BYTES = 8
"""A documented exception: ptxas may keep two numbers a lane in memory to fit one more program on a multiprocessor. Seen
at 64 registers (sm_80, first site forward, D=7168) and at 80 (sm_100, second site backward, D=1024 to 4096)."""


def both_sites(x: Tensor, with_mean: bool, keep: bool) -> None:
    """Forward at both sites, and backward where something is kept."""
    from leadline.ops.bounded_tanh import triton

    wide = torch.promote_types(x.dtype, torch.float32)
    gain, lam = torch.empty(x.shape[-1], dtype=wide), torch.empty(1, dtype=wide)
    y, moment, stats = triton.first_site(x, gain, lam, 10.0, 1e-6, with_mean, keep)
    flat = moment.flatten()
    _, second = triton.second_site(
        x, gain, lam, lam, flat, torch.empty(1, dtype=wide).expand_as(flat), 10.0, 1e-6, keep
    )
    if keep:
        triton.site_gradients(x, gain, lam, stats, y, moment, True)
        triton.site_gradients(x, gain, lam, second, y, None, False)


def launch(dim: int, count: int, dtype: torch.dtype) -> None:
    both_sites(torch.empty(8, dim, dtype=dtype), False, True)


def launch_every_form(dim: int, count: int, dtype: torch.dtype) -> None:
    """The exact form and generation."""
    for with_mean, keep in ((True, True), (False, False)):
        both_sites(torch.empty(8, dim, dtype=dtype), with_mean, keep)


def launch_with_other_numbers(dim: int, count: int, dtype: torch.dtype) -> None:
    """Other numbers of tokens, and rows that lie apart."""
    for tokens in (1, 16, 33, 5000):
        both_sites(torch.empty(tokens, dim, dtype=dtype), False, True)
    both_sites(torch.empty(8, 3, 2 * dim, dtype=dtype)[1:, :2, :dim], False, True)


def test_kernels_fit_the_chips() -> None:
    kernels = compile_ahead(__file__, "launch", cells(counts=(1,)))
    assert {kernel.cell.chip for kernel in kernels} == set(CHIPS)
    assert {kernel.cell.dim for kernel in kernels} == set(DIMS)
    problems = [problem for kernel in kernels for problem in kernel.problems(MAY_SPILL_BYTES)]
    assert not problems, "\n".join(problems)
    assert {kernel.widest_load_bits for kernel in kernels} == {128}


def test_the_other_forms_fit_too() -> None:
    wanted = [Cell("sm_80", 7168, 1), Cell("sm_100", 4096, 1), Cell("gfx942", 1024, 1)]
    kernels = compile_ahead(__file__, "launch_every_form", wanted)
    assert len(kernels) == 6 * len(wanted)
    assert not [problem for kernel in kernels for problem in kernel.problems(MAY_SPILL_BYTES)]


def test_no_kernel_for_other_numbers_of_tokens_or_strides() -> None:
    """Where D is odd, one more for tensors that start between multiples of 16 bytes. Backward is one for each site."""
    for dim, variants in ((32, 1), (23, 2)):
        kernels = compile_ahead(__file__, "launch_with_other_numbers", [Cell("sm_90", dim, 1)])
        assert sorted(kernel.name for kernel in kernels) == sorted(
            ["first_forward", "second_forward", "site_backward", "site_backward"] * variants
        )


def test_float64_compiles() -> None:
    kernels = compile_ahead(__file__, "launch", [Cell(chip, 256, 1, "float64") for chip in ("sm_80", "gfx942")])
    assert not [problem for kernel in kernels for problem in kernel.problems()]
