"""Depth attention in two phases: equal to one read of all sources, gradients included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leadline.errors import UsageError
from leadline.ops import Backend, depth_attention
from leadline.ops.depth_attention import read_ahead, read_on

EPS = 1e-6
both = pytest.mark.parametrize("backend", ["reference", "lean"])


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(100 * seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def two_phases(queries: Tensor, bank: list[Tensor], later: list[Tensor], backend: Backend) -> list[Tensor]:
    """Reader s goes on with the first s later sources."""
    ahead = read_ahead(bank, queries, EPS, backend=backend)
    reads = []
    for reader, (mix, lse) in enumerate(zip(ahead.mixes, ahead.lse, strict=True)):
        reads.append(read_on(mix, lse, later[:reader], queries[reader], EPS, backend=backend)[0])
    return reads


def one_read(queries: Tensor, bank: list[Tensor], later: list[Tensor]) -> list[Tensor]:
    gain = torch.ones_like(queries[0])
    return [
        depth_attention([*bank, *later[:reader]], query, gain, EPS, backend="reference")
        for reader, query in enumerate(queries)
    ]


@both
@pytest.mark.parametrize("sources", [1, 2, 5])
@pytest.mark.parametrize("shape", [(6,), (3, 2, 6), (0, 6)])
def test_equal_to_one_read(shape: tuple[int, ...], sources: int, backend: Backend) -> None:
    queries = numbers(3, 6, seed=40)
    bank = [numbers(*shape, seed=i) for i in range(sources)]
    later = [numbers(*shape, seed=20 + i) for i in range(2)]
    inputs = [queries, *bank, *later]
    truth, found = one_read(queries, bank, later), two_phases(queries, bank, later, backend)
    upstream = [numbers(*shape, seed=60 + i).detach() for i in range(3)]
    torch.testing.assert_close(found, truth, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, upstream),
        torch.autograd.grad(truth, inputs, upstream),
        rtol=1e-10,
        atol=1e-11,
    )
    with torch.no_grad():
        torch.testing.assert_close(two_phases(queries, bank, later, backend), truth, rtol=1e-11, atol=1e-12)


@both
def test_gradcheck_of_each_phase(backend: Backend) -> None:
    queries, bank = numbers(2, 4, seed=40), [numbers(3, 4, seed=i) for i in range(3)]

    def first(queries: Tensor, *bank: Tensor) -> tuple[Tensor, ...]:
        found = read_ahead(bank, queries, EPS, backend=backend)
        return *found.mixes, *found.lse, *(source.tanh() for source in found.bank)

    def second(mix: Tensor, lse: Tensor, query: Tensor, *sources: Tensor) -> tuple[Tensor, ...]:
        found, handed = read_on(mix, lse, sources, query, EPS, backend=backend)
        return found, *(source.tanh() for source in handed)

    assert torch.autograd.gradcheck(first, (queries, *bank))
    mix, lse, query = numbers(3, 4, seed=50), numbers(3, seed=51), numbers(4, seed=52)
    assert torch.autograd.gradcheck(second, (mix, lse, query, *bank[:2]))


@both
def test_bfloat16_is_as_near_the_truth_as_the_reference(backend: Backend) -> None:
    queries = numbers(3, 48, seed=40, dtype=torch.float32)
    bank = [numbers(64, 48, seed=i, dtype=torch.bfloat16) for i in range(4)]
    later = [numbers(64, 48, seed=20 + i, dtype=torch.bfloat16) for i in range(2)]
    exact = [[t.detach().double() for t in part] for part in (bank, later)]
    truth = one_read(queries.detach().double(), *exact)
    plain = one_read(queries, bank, later)
    for t, p, f in zip(truth, plain, two_phases(queries, bank, later, backend), strict=True):
        assert f.dtype == torch.bfloat16
        assert (f - t).norm() <= 2 * (p - t).norm()


def test_an_empty_bank_is_an_error() -> None:
    with pytest.raises(UsageError, match="at least one source"):
        read_ahead([], numbers(1, 4), EPS)
