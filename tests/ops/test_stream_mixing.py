"""The stream operators: lean against reference, gradients against finite differences, doubly stochastic mixings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leadline.choices import Backend
from leadline.errors import UsageError
from leadline.ops.stream_mixing import birkhoff, hyper_read, manifold_read, sinkhorn, write_streams
from leadline.ops.stream_mixing.reference import permutations

BACKENDS: tuple[Backend, ...] = ("reference", "lean")


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def cases(tokens: int, streams: int, dim: int) -> dict[str, tuple[Callable[..., object], tuple[Tensor, ...]]]:
    """Every operator with float64 inputs of these sizes; coefficients have odd strides."""
    streams_TND = numbers(tokens, streams, dim)
    pre = numbers(streams, tokens)
    mixing = numbers(streams, streams, tokens)
    k = streams + 2

    def rows(count: int) -> list[tuple[int, tuple[int, ...]]]:
        return [(count, (streams * dim,)), (count, ()), (count, ())]

    return {
        "hyper": (
            lambda x, w, c, s, backend: tuple(hyper_read(x, w, c, s, 1e-6, backend=backend)),
            (streams_TND, numbers(k, dim), numbers(k, streams), numbers(k)),
        ),
        "sinkhorn read": (
            lambda x, w, b, s, backend: tuple(manifold_read(x, w, b, s, "sinkhorn", 4, 1e-6, backend=backend)),
            (streams_TND, *(numbers(m, *size) for m, size in rows(2 * streams + streams**2))),
        ),
        "birkhoff read": (
            lambda x, w, b, s, backend: tuple(manifold_read(x, w, b, s, "birkhoff", 4, 1e-6, backend=backend)),
            (streams_TND, *(numbers(m, *size) for m, size in rows(2 * streams + math.factorial(streams)))),
        ),
        "write": (
            lambda x, f, m, p, backend: write_streams(x, f, m.permute(2, 0, 1), p.t(), backend=backend),
            (streams_TND, numbers(tokens, dim), mixing, pre),
        ),
        "sinkhorn": (lambda z, backend: sinkhorn(z, 6, backend=backend), (mixing,)),
        "sinkhorn once": (lambda z, backend: sinkhorn(z, 1, backend=backend), (mixing,)),
        "birkhoff": (
            lambda z, backend: birkhoff(z, streams, backend=backend),
            (numbers(math.factorial(streams), tokens),),
        ),
    }


NAMES = tuple(cases(1, 1, 1))


@pytest.mark.parametrize("sizes", [(3, 1, 5), (2, 3, 7), (5, 4, 130), (1, 2, 3), (0, 4, 6)])
@pytest.mark.parametrize("name", NAMES)
def test_lean_equals_reference(name: str, sizes: tuple[int, int, int]) -> None:
    operator, inputs = cases(*sizes)[name]
    results = []
    for backend in BACKENDS:
        outputs = operator(*inputs, backend=backend)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = sum((o * numbers(*o.shape, seed=i).detach()).sum() for i, o in enumerate(outputs))
        results.append((*outputs, *torch.autograd.grad(loss, inputs)))
        with torch.no_grad():
            again = operator(*inputs, backend=backend)
        assert torch.equal(again[0] if isinstance(again, tuple) else again, outputs[0])
    for truth, lean in zip(*results, strict=True):
        torch.testing.assert_close(lean, truth, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name: str, backend: Backend) -> None:
    operator, inputs = cases(2, 3, 4)[name]
    assert torch.autograd.gradcheck(lambda *x: operator(*x, backend=backend), inputs, fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_lean_second_derivatives_raise_instead_of_being_wrong(name: str) -> None:
    operator, inputs = cases(2, 3, 4)[name]
    outputs = operator(*inputs, backend="lean")
    output = outputs[0] if isinstance(outputs, tuple) else outputs
    (first,) = torch.autograd.grad(output.square().sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.square().sum().backward()


@pytest.mark.parametrize("name", ["hyper", "sinkhorn read", "birkhoff read", "write"])
def test_bfloat16_streams_are_as_near_the_truth_as_plain_pytorch(name: str) -> None:
    operator, inputs = cases(64, 4, 48)[name]
    exact = [
        x.detach().to(torch.bfloat16 if i < (2 if name == "write" else 1) else torch.float32).double()
        for i, x in enumerate(inputs)
    ]
    narrow = [x.to(torch.bfloat16 if i < (2 if name == "write" else 1) else torch.float32) for i, x in enumerate(exact)]

    def outputs(values: list[Tensor], backend: Backend) -> list[Tensor]:
        values = [v.requires_grad_() for v in values]
        result = operator(*values, backend=backend)
        result = list(result) if isinstance(result, tuple) else [result]
        grads = torch.autograd.grad(sum(r.double().square().sum() for r in result), values)
        return [*result, *grads]

    truth = outputs(exact, "reference")
    for t, r, lean in zip(truth, outputs(narrow, "reference"), outputs(narrow, "lean"), strict=True):
        assert lean.dtype == r.dtype
        assert (lean - t).norm() <= 2 * (r - t).norm() + 1e-6 * t.norm()


@pytest.mark.parametrize("streams", [1, 2, 3, 4])
def test_permutations_are_lexicographic_and_begin_with_the_identity(streams: int) -> None:
    table = permutations(streams, torch.device("cpu"), torch.float64)
    matrices = table.t().unflatten(1, (streams, streams))
    assert torch.equal(matrices[0], torch.eye(streams, dtype=torch.float64))
    orders = [tuple(m.argmax(-1).tolist()) for m in matrices]
    assert orders == list(itertools.permutations(range(streams)))


@settings(max_examples=40)
@given(
    streams=st.integers(1, 6),
    tokens=st.integers(0, 5),
    spread=st.floats(0, 3),
    seed=st.integers(0, 99),
    lean=st.booleans(),
)
def test_sinkhorn_is_nearly_doubly_stochastic(streams: int, tokens: int, spread: float, seed: int, lean: bool) -> None:
    """Each iteration brings it nearer by tanh²(d/4), where d is the logarithm of its largest cross ratio (Birkhoff)."""
    logits = spread * numbers(streams, streams, tokens, seed=seed).detach()
    mixing = sinkhorn(logits, 200, backend="lean" if lean else "reference")
    assert (mixing >= 0).all()
    torch.testing.assert_close(mixing.sum(1), torch.ones_like(mixing[0]), rtol=0, atol=1e-12)
    cross = logits[:, None, :, None] + logits[None, :, None, :] - logits[:, None, None, :] - logits[None, :, :, None]
    d = cross.flatten(0, 3).amax(0)
    assert ((mixing.sum(0) - 1).abs() <= torch.expm1(d * torch.tanh(d / 4) ** 400) + 1e-12).all()


@settings(max_examples=40)
@given(
    streams=st.integers(1, 5),
    tokens=st.integers(0, 5),
    spread=st.floats(0, 50),
    seed=st.integers(0, 99),
    lean=st.booleans(),
)
def test_birkhoff_is_doubly_stochastic(streams: int, tokens: int, spread: float, seed: int, lean: bool) -> None:
    logits = spread * numbers(math.factorial(streams), tokens, seed=seed).detach()
    mixing = birkhoff(logits, streams, backend="lean" if lean else "reference")
    assert (mixing >= 0).all()
    ones = torch.ones_like(mixing[0])
    torch.testing.assert_close(mixing.sum(0), ones, rtol=0, atol=1e-12)
    torch.testing.assert_close(mixing.sum(1), ones, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sinkhorn_stands_logits_that_exp_cannot(backend: Backend) -> None:
    logits = torch.tensor([[500.0, -500.0], [500.0, 400.0]]).unsqueeze(-1).requires_grad_()
    mixing = sinkhorn(logits, 20, backend=backend)
    (grad,) = torch.autograd.grad(mixing[0, 0].sum(), logits)
    assert torch.isfinite(mixing).all()
    assert torch.isfinite(grad).all()
    torch.testing.assert_close(mixing.sum(1), torch.ones(2, 1))


def test_autocast_has_no_say() -> None:
    inputs = [numbers(4, 2, 8), numbers(4, 8), numbers(4, 2), numbers(4)]
    inputs = [x.detach().float() for x in inputs]
    for backend in BACKENDS:
        plain = hyper_read(*inputs, 1e-6, backend=backend)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = hyper_read(*inputs, 1e-6, backend=backend)
        assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))


def test_an_unknown_backend_raises() -> None:
    with pytest.raises(UsageError, match="compiled and triton"):
        sinkhorn(torch.zeros(2, 2, 1), backend="fast")
