"""The norm folded into a read: the same values and gradients as the norm called on what was read."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from compiled import each_backend, needs_compiler
from torch import Tensor

from leadline.ops import Backend, multi_gate_step
from leadline.ops.depth_attention import read_sources
from leadline.ops.next_norm import NextNorm, normed
from leadline.ops.stream_mixing import hyper_read, manifold_read, write_streams

EPS, NORM_EPS = 1e-6, 0.03
NAMES = ("reference", "lean", "traced")

Read = Callable[[Backend, NextNorm | None, list[Tensor]], tuple[Tensor | None, ...]]
"""What comes out, the read first; with a norm it is normed."""


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(100 * seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def outcome(found: tuple[Tensor | None, ...], inputs: list[Tensor], used: slice) -> list[Tensor]:
    """What comes out, and the gradients for fixed upstream gradients of the outputs in `used`."""
    outputs = [t for t in found if t is not None]
    upstream = [numbers(*t.shape, seed=90 + i, dtype=t.dtype).detach() for i, t in enumerate(outputs)]
    grads = torch.autograd.grad(outputs[used], inputs, upstream[used], allow_unused=True)
    return [*outputs, *(torch.zeros_like(t) if g is None else g for g, t in zip(grads, inputs, strict=True))]


def hold(read: Read, backend: Backend, inputs: list[Tensor], used: slice = slice(None)) -> None:
    """The folded norm against the norm called on the reference's read."""
    gain = numbers(inputs[0].shape[-1], seed=77)
    first, *rest = read("reference", None, inputs)
    assert first is not None
    norm = NextNorm(gain, NORM_EPS)
    truth = outcome((normed(first, norm), *rest), [*inputs, gain], used)
    found = outcome(read(backend, norm, inputs), [*inputs, gain], used)
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@each_backend(*NAMES, cases=[1, 3, 11], compiled=[3])
def test_depth_attention(backend: Backend, case: int) -> None:
    """One source, one group of them, and several, with a later use of the sources handed on."""

    def read(backend: Backend, norm: NextNorm | None, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        query, gain, *sources = inputs
        mix, handed = read_sources(sources, query, gain, EPS, norm=norm, backend=backend)
        return mix, handed[0].tanh()

    inputs = [numbers(6, seed=1), numbers(6, seed=2), *(numbers(2, 5, 6, seed=3 + i) for i in range(case))]
    hold(read, backend, inputs)
    hold(read, backend, inputs, slice(1, None))


GATES = [(kind, streams) for kind in ("competitive", "independent") for streams in (1, 3)]


@each_backend(*NAMES, cases=GATES, compiled=[("competitive", 3)])
def test_multi_gate(backend: Backend, case: tuple[str, int]) -> None:
    kind, streams = case

    def step(backend: Backend, norm: NextNorm | None, inputs: list[Tensor]) -> tuple[Tensor | None, ...]:
        x, pool, query, bias, *pending = inputs
        gate = (query, bias) if pending else None
        found = multi_gate_step(
            x,
            tuple(pending) or None,
            pool if streams > 1 else None,
            gate,
            kind=kind,
            eps=EPS,
            norm=norm,
            backend=backend,
        )
        return found.read, found.gates, found.streams.tanh()

    inputs = [numbers(streams, 2, 4, 5), numbers(5, seed=1), numbers(5, seed=2), numbers(1, seed=3)]
    hold(step, backend, inputs)
    inputs += [numbers(2, 4, 5, seed=5), numbers(streams, 2, 4, seed=6)]
    hold(step, backend, inputs)
    hold(step, backend, inputs, slice(1, None))


@each_backend(*NAMES, cases=["hyper", "sinkhorn", "birkhoff"], compiled=["hyper", "birkhoff"])
def test_streams(backend: Backend, case: str) -> None:
    kind = case
    n, dim, tokens = 3, 7, 5
    rows = 2 * n + {"hyper": 0, "sinkhorn": n * n, "birkhoff": math.factorial(n)}[kind]

    def read(backend: Backend, norm: NextNorm | None, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        x, weight, static, scale, output = inputs
        if kind == "hyper":
            found = hyper_read(x, weight, static, scale, EPS, norm=norm, backend=backend)
        else:
            found = manifold_read(x, weight, static, scale, kind, 3, EPS, norm=norm, backend=backend)
        new = write_streams(found.streams, output, found.mixing, found.post, backend=backend)
        return found.h, found.pre, found.mixing, found.post, new

    weights = [numbers(n + 2, dim), numbers(n + 2, n), numbers(n + 2)]
    if kind != "hyper":
        weights = [numbers(rows, n * dim), numbers(rows), numbers(rows, seed=3)]
    inputs = [numbers(tokens, n, dim), *weights, numbers(tokens, dim, seed=4)]
    hold(read, backend, inputs)
    hold(read, backend, inputs, slice(1, None))
    hold(read, backend, inputs, slice(0, 1))


@needs_compiler
def test_bfloat16_is_as_near_the_truth_as_the_norm_on_its_own() -> None:
    sources = [numbers(64, 32, seed=i, dtype=torch.bfloat16) for i in range(11)]
    query, gain, norm_gain = (numbers(32, seed=9 - i, dtype=torch.float32) for i in range(3))
    inputs = [query, gain, norm_gain, *sources]
    exact = [t.detach().double().requires_grad_() for t in inputs]

    def run(backend: Backend, inputs: list[Tensor]) -> list[Tensor]:
        norm = NextNorm(inputs[2], NORM_EPS)
        mix = read_sources(inputs[3:], *inputs[:2], EPS, norm=norm, backend=backend)[0]
        return outcome((mix,), inputs, slice(None))

    for t, a, b in zip(run("reference", exact), run("lean", inputs), run("compiled", inputs), strict=True):
        assert a.dtype == b.dtype
        assert (b.double() - t).norm() <= 1.5 * (a.double() - t).norm() + 1e-6 * t.norm()


DTYPES = [torch.float64, torch.bfloat16]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@each_backend("traced", cases=DTYPES, compiled=[torch.bfloat16])
def test_few_tokens_without_gradients(backend: Backend, case: torch.dtype, mode: Callable[[], torch.no_grad]) -> None:
    """The short bodies of generation, for any number of sources and with parts missing."""
    dtype = case
    rtol = 1e-9 if dtype == torch.float64 else 0.05
    norm = NextNorm(numbers(16, seed=77, dtype=dtype).detach(), NORM_EPS)
    query, gain = numbers(16, seed=1), numbers(16, seed=2)
    streams, output, beta = (numbers(*s, seed=5, dtype=dtype) for s in ((4, 2, 1, 16), (2, 1, 16), (4, 2, 1)))
    beta = beta.to(torch.promote_types(dtype, torch.float32)).sigmoid()
    with mode():
        for count in (2, 3, 9):
            sources = [numbers(2, 1, 16, seed=3 + i, dtype=dtype).detach() for i in range(count)]
            for with_norm in (norm, None):
                a, b = (
                    read_sources(sources, query, gain, EPS, norm=with_norm, backend=each)[0]
                    for each in (backend, "reference")
                )
                torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)
        for kind in ("competitive", "independent"):
            for pending in ((output, beta), None):
                for gate in ((gain, query[:1]), None):
                    a_step, b_step = (
                        multi_gate_step(streams, pending, query, gate, kind=kind, eps=EPS, norm=norm, backend=each)
                        for each in (backend, "reference")
                    )
                    for a_part, b_part in zip(a_step, b_step, strict=True):
                        if b_part is None:
                            assert a_part is None
                        else:
                            torch.testing.assert_close(a_part, b_part, rtol=rtol, atol=rtol)
