"""The compiled backend: the same values and gradients as the reference, for any number of sources and tokens."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from leadline.errors import UsageError
from leadline.ops import Backend, bounded_tanh, bounded_tanh_reuse, depth_attention, multi_gate_step
from leadline.ops.bounded_tanh.bodies import tanh as fast_tanh
from leadline.ops.choice import chosen, why_not
from leadline.ops.compiled_body import compiled_bodies
from leadline.ops.depth_attention import read_sources
from leadline.ops.depth_attention.compiled import groups
from leadline.ops.stream_mixing import hyper_read, manifold_read, write_streams

EPS = 1e-6
reason = why_not("compiled", "cpu")
needs_compiler = pytest.mark.skipif(reason is not None, reason=str(reason))


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(100 * seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def outcome(function: Callable[..., tuple[Tensor | None, ...]], inputs: list[Tensor]) -> list[Tensor]:
    """What comes out, and all gradients, for fixed upstream gradients."""
    found = [t for t in function(*inputs) if t is not None]
    upstream = [numbers(*t.shape, seed=90 + i, dtype=t.dtype).detach() for i, t in enumerate(found)]
    return [*found, *torch.autograd.grad(found, inputs, upstream)]


def hold(
    function: Callable[..., tuple[Tensor | None, ...]], inputs: list[Tensor], rtol: float = 1e-10, atol: float = 1e-11
) -> None:
    """`function(backend)(*inputs)` on compiled against reference, gradients included."""
    found, truth = (outcome(lambda *t, b=b: function(b, *t), inputs) for b in ("compiled", "reference"))
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def test_groups_hold_every_source_once() -> None:
    for count in range(1, 60):
        found = groups(count)
        assert [i for group in found for i in range(group.start, group.stop)] == list(range(count))
        assert len({group.stop - group.start for group in found}) <= 4


@needs_compiler
def test_depth_attention() -> None:
    """Counts that take one group and several, with the sources handed on and used again."""

    def read(backend: Backend, query: Tensor, gain: Tensor, *sources: Tensor) -> tuple[Tensor, ...]:
        mix, handed = read_sources(sources, query, gain, EPS, backend=backend)
        again = depth_attention(handed[1:], gain, query, EPS, backend=backend)
        return mix, again, handed[0].tanh()

    hold(read, [numbers(6, seed=1), numbers(6, seed=2), *(numbers(7, 6, seed=3 + i) for i in range(13))])


@needs_compiler
@pytest.mark.parametrize("kind", ["competitive", "independent"])
def test_multi_gate(kind: str) -> None:
    """With everything there, and with a part missing."""

    def step(backend: Backend, *tensors: Tensor) -> tuple[Tensor | None, ...]:
        streams, pool, query, bias, *pending = tensors
        gate = (query, bias) if pending else None
        return tuple(multi_gate_step(streams, tuple(pending) or None, pool, gate, kind=kind, eps=EPS, backend=backend))

    pending = [numbers(7, 5, seed=5), numbers(3, 7, seed=6)]
    hold(step, [numbers(3, 7, 5), numbers(5, seed=1), numbers(5, seed=2), numbers(1, seed=3), *pending])

    def pooled(backend: Backend, streams: Tensor, pool: Tensor) -> tuple[Tensor | None, ...]:
        return (multi_gate_step(streams, None, pool, None, kind=kind, eps=EPS, backend=backend).read,)

    hold(pooled, [numbers(3, 4, 5), numbers(5, seed=1)])


@needs_compiler
def test_streams() -> None:
    """Reads of all kinds, and the write after them, with the streams handed on."""

    def hyper(backend: Backend, x: Tensor, w: Tensor, c: Tensor, s: Tensor, f: Tensor) -> tuple[Tensor, ...]:
        found = hyper_read(x, w, c, s, EPS, backend=backend)
        return *found[:4], write_streams(found.streams, f, found.mixing, found.post, backend=backend)

    def manifold(
        backend: Backend, x: Tensor, w: Tensor, b: Tensor, s: Tensor, f: Tensor, *, kind: str = "birkhoff"
    ) -> tuple[Tensor, ...]:
        found = manifold_read(x, w, b, s, kind, 3, EPS, backend=backend)
        return *found[:4], write_streams(found.streams, f, found.mixing, found.post, backend=backend)

    streams, output = numbers(5, 2, 7), numbers(5, 7, seed=4)
    hold(hyper, [streams, numbers(4, 7), numbers(4, 2), numbers(4), output])
    hold(manifold, [streams, numbers(6, 14), numbers(6), numbers(6, seed=3), output])
    sinkhorn = functools.partial(manifold, kind="sinkhorn")
    hold(sinkhorn, [streams, numbers(8, 14), numbers(8), numbers(8, seed=3), output])


@needs_compiler
def test_bounded_tanh() -> None:
    """Both sites, the second with the first one's statistic."""

    def block(backend: Backend, x: Tensor, gain: Tensor, lam: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        first, moment = bounded_tanh(x, gain, lam, 10.0, EPS, backend=backend)
        c = torch.full((1,), 0.3, dtype=torch.float64)
        return first, moment, bounded_tanh_reuse(y, gain, lam, lam, 10.0, moment, c, EPS, backend=backend)

    hold(block, [numbers(5, 6), numbers(6), numbers(1), numbers(5, 6, seed=2)])


def test_the_fast_tanh_is_exact_to_a_few_units_in_the_last_place() -> None:
    for u in (torch.logspace(-30, 2, 20001), torch.linspace(0.3, 0.4, 20001), torch.zeros(1), torch.tensor([math.inf])):
        for sign in (1.0, -1.0):
            truth = torch.tanh(sign * u.double())
            error = (fast_tanh(sign * u).double() - truth).abs()
            assert (error <= 3e-7 * truth.abs()).all()


@needs_compiler
def test_bfloat16_is_as_near_the_truth_as_the_lean_bodies() -> None:
    sources = [numbers(64, 32, seed=i, dtype=torch.bfloat16) for i in range(5)]
    query, gain = numbers(32, seed=9, dtype=torch.float32), numbers(32, seed=8, dtype=torch.float32)
    inputs = [query, gain, *sources]
    exact = [t.detach().double().requires_grad_() for t in inputs]

    def read(backend: Backend, query: Tensor, gain: Tensor, *sources: Tensor) -> tuple[Tensor, ...]:
        return (depth_attention(sources, query, gain, EPS, backend=backend),)

    truth = outcome(lambda *t: read("reference", *t), exact)
    lean, found = (outcome(lambda *t, b=b: read(b, *t), inputs) for b in ("lean", "compiled"))
    for t, a, b in zip(truth, lean, found, strict=True):
        assert a.dtype == b.dtype
        assert (b.double() - t).norm() <= 1.5 * (a.double() - t).norm() + 1e-6 * t.norm()


@needs_compiler
def test_two_runs_are_equal_to_the_bit_and_tokens_do_not_recompile() -> None:
    query, gain = numbers(16, seed=1, dtype=torch.float32), numbers(16, seed=2, dtype=torch.float32)
    seen, compiled = [], []
    for tokens in (1030, 1030, 757, 2029):
        sources = [numbers(tokens, 16, seed=3 + i, dtype=torch.float32) for i in range(4)]
        inputs = [query, gain, *sources]
        seen.append(outcome(lambda q, g, *s: (depth_attention(s, q, g, EPS, backend="compiled"),), inputs))
        compiled.append(compiled_bodies())
    assert len(set(compiled)) == 1
    assert all(torch.equal(a, b) for a, b in zip(*seen[:2], strict=True))


@needs_compiler
def test_sizes_that_happen_to_be_equal_are_not_taken_for_the_same() -> None:
    """A body compiled where tokens and width are equal is not used where they differ, nor the other way round."""

    def read(backend: Backend, query: Tensor, gain: Tensor, *sources: Tensor) -> tuple[Tensor, ...]:
        return (depth_attention(sources, query, gain, EPS, backend=backend),)

    for tokens, dim in ((9, 9), (9, 10), (10, 9), (1, 9), (0, 9)):
        hold(read, [numbers(dim, seed=1), numbers(dim, seed=2), *(numbers(tokens, dim, seed=i) for i in (3, 4))])


def test_a_backend_that_cannot_run_raises_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(2)
    monkeypatch.setattr("leadline.ops.choice._why_not_compiled", lambda: "there is no C++ compiler")
    with pytest.raises(UsageError, match="backend='compiled' can't run here: there is no C\\+\\+ compiler"):
        chosen("compiled", x)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(UsageError, match="backend='triton' can't run here"):
        chosen("triton", x)
    assert chosen("auto", x) == "lean"
