"""Depth attention's kernels compiled ahead of time for every supported chip: do they fit, and are they few?"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from triton_ahead import CHIPS, COUNTS, DIMS, Cell, Kernel, cells, compile_ahead


def read(sources: list[Tensor], handed: bool) -> None:
    """One read forward and backward."""
    from leadline.ops.depth_attention.triton import read_backward, read_forward

    dim, dtype = sources[0].shape[-1], sources[0].dtype
    direction = torch.empty(dim, dtype=torch.promote_types(dtype, torch.float32))
    mix, root, score, lse = read_forward(sources, direction, 1e-6)
    incoming = [torch.empty_like(s) if handed else None for s in sources]
    read_backward(torch.empty_like(mix), mix, root, score, lse, sources, incoming, direction)


def launch(dim: int, count: int, dtype: torch.dtype) -> None:
    """A forward kernel and two backward kernels: with and without gradients handed in."""
    for handed in (True, False):
        read([torch.empty(8, dim, dtype=dtype) for _ in range(count)], handed)


def launch_with_other_numbers(dim: int, count: int, dtype: torch.dtype) -> None:
    """Other numbers of tokens and sources; then a source that does not start at a multiple of 16 bytes."""
    for tokens in (1, 16, 33, 5000):
        for fewer in range(3):
            read([torch.empty(tokens, dim, dtype=dtype) for _ in range(count - fewer)], False)
    for odd in range(3):
        whole = [torch.empty(4 * dim + 1, dtype=dtype) for _ in range(count)]
        read([flat[int(i == odd) :][: 4 * dim].view(4, dim) for i, flat in enumerate(whole)], False)


def test_kernels_fit_the_chips_without_spilling() -> None:
    kernels = compile_ahead(__file__, "launch", cells())
    assert {kernel.cell.chip for kernel in kernels} == set(CHIPS)
    assert {kernel.cell.dim for kernel in kernels} == set(DIMS)
    problems = [problem for kernel in kernels for problem in kernel.problems()]
    assert not problems, "\n".join(problems)
    assert {kernel.widest_load_bits for kernel in kernels} == {128}


def test_no_kernel_for_other_numbers_of_tokens_or_sources() -> None:
    kernels = compile_ahead(__file__, "launch_with_other_numbers", [Cell("sm_90", 64, 8, "float32")])
    assert sorted(kernel.name for kernel in kernels) == ["backward_kernel", "forward_kernel"]


def test_float64_compiles_for_every_chip() -> None:
    kernels = compile_ahead(__file__, "launch", [Cell(chip, 1024, 8, "float64") for chip in CHIPS])
    assert len(kernels) == 3 * len(CHIPS)
    assert not [problem for kernel in kernels for problem in kernel.problems()]


def test_what_does_not_fit_is_named() -> None:
    fits = Kernel("kernel", Cell("gfx942", 768, 4), 4, 512, 0, 64 * 1024, 128, False)
    assert fits.problems() == []
    for changes, word in (
        ({"registers": 513}, "registers"),
        ({"shared_bytes": 64 * 1024 + 1}, "shared memory"),
        ({"spilled_bytes": 4}, "spilled"),
        ({"atomics": True}, "atomics"),
    ):
        (problem,) = replace(fits, **changes).problems()
        assert word in problem
    assert replace(fits, spilled_bytes=4).problems(may_spill_bytes=4) == []


@pytest.mark.parametrize("full", [False, True])
def test_every_width_and_every_count_is_compiled_on_every_chip(full: bool) -> None:
    for chip in CHIPS:
        narrow = [cell for cell in cells(full=full) if cell.chip == chip and cell.dtype == "bfloat16"]
        assert {cell.dim for cell in narrow} == set(DIMS)
        assert {cell.count for cell in narrow} == set(COUNTS)
        assert [cell for cell in cells(full=full) if cell.chip == chip and cell.dtype == "float32"]
        assert len(narrow) == (len(DIMS) * len(COUNTS) if full else len(DIMS))
