"""Bounded tanh: golden values, gradients, dtypes, shapes, compilation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from leadline.errors import UsageError
from leadline.ops.bounded_tanh import attention_gain, bounded_tanh, bounded_tanh_reuse

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "bounded_tanh.json").read_text())
BACKENDS = ["reference", "lean"]


def leaf(value: object) -> Tensor:
    return torch.tensor(value, dtype=torch.float64).requires_grad_()


def assert_close(actual: Tensor, expected: object) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64).reshape(actual.shape)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_equals_the_golden_values_and_gradients(case: dict, backend: str) -> None:
    config, inputs, expected = case["config"], case["inputs"], case["expected"]
    t = {name: leaf(value) for name, value in inputs.items()}
    kappa, eps = config["kappa"], config["eps"]
    c = attention_gain(t["w_v"], t["w_o"], config["heads"], config["kv_heads"], config["length"], backend=backend)
    assert not c.requires_grad
    assert_close(c, expected["c"])
    first, moment = bounded_tanh(t["x"], t["gain"], t["lambda_attn"], kappa, eps, backend=backend)
    second = bounded_tanh_reuse(
        t["x_second"], t["gain_second"], t["lambda_mlp"], t["lambda_attn"], kappa, moment, c, eps, backend=backend
    )
    with_mean, _ = bounded_tanh(
        t["x"].detach() + 0.5, t["gain"], t["lambda_attn"], kappa, eps, with_mean=True, backend=backend
    )
    assert_close(first.detach(), expected["first"])
    assert_close(moment.detach(), expected["second_moment"])
    assert_close(second.detach(), expected["second"])
    assert_close(with_mean.detach(), expected["with_mean_of_x_plus_half"])
    ((first * t["probe"]).sum() + (second * t["probe_second"]).sum()).backward()
    for name, gradient in case["grads"].items():
        assert_close(t[name].grad, gradient)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("with_mean", [False, True])
def test_gradcheck_of_the_first_site(backend: str, with_mean: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    gain = torch.randn(5, dtype=torch.float64, requires_grad=True)
    lam = torch.full((1,), 1.7, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor, gain: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        return bounded_tanh(x, gain, lam, 3.0, 1e-3, with_mean, backend=backend)

    assert torch.autograd.gradcheck(run, (x, gain, lam))
    if backend == "reference":
        assert torch.autograd.gradgradcheck(run, (x, gain, lam))


def test_second_derivatives_of_lean_raise_instead_of_being_wrong() -> None:
    x = torch.randn(2, 5, requires_grad=True)
    y, _ = bounded_tanh(x, torch.ones(5), 1.0, 10.0, 1e-6, backend="lean")
    (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck_of_the_second_site(backend: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    gain = torch.randn(5, dtype=torch.float64, requires_grad=True)
    lam = torch.full((1,), 1.7, dtype=torch.float64, requires_grad=True)
    moment = torch.rand(2, 3, 1, dtype=torch.float64, requires_grad=True)
    c = torch.rand(1, dtype=torch.float64)

    def run(x: Tensor, gain: Tensor, lam: Tensor, moment: Tensor) -> Tensor:
        return bounded_tanh_reuse(x, gain, lam, 2.0, 3.0, moment, c, 1e-3, backend=backend)

    assert torch.autograd.gradcheck(run, (x, gain, lam, moment))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_lambda_is_held_constant_and_the_moment_is_not(backend: str) -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    first = torch.ones(1, dtype=torch.float64, requires_grad=True)
    moment = torch.rand(3, 1, dtype=torch.float64, requires_grad=True)
    c = torch.ones(1, dtype=torch.float64, requires_grad=True)
    gain = torch.ones(4, dtype=torch.float64)
    bounded_tanh_reuse(x, gain, 1.0, first, 10.0, moment, c, 1e-6, backend=backend).sum().backward()
    assert first.grad is None
    assert c.grad is None
    assert moment.grad is not None
    assert moment.grad.abs().min() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_keep_wide_statistics(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(4, 64) * 8).to(dtype)
    gain, lam = torch.ones(64), torch.full((1,), 2.0)
    errors = {}
    for backend in BACKENDS:
        leaf_x = x.clone().requires_grad_()
        y, moment = bounded_tanh(leaf_x, gain, lam, 10.0, 1e-6, backend=backend)
        y.sum().backward()
        assert y.dtype == dtype
        assert moment.dtype == torch.float32
        truth_x = x.double().requires_grad_()
        truth, _ = bounded_tanh(truth_x, gain.double(), lam.double(), 10.0, 1e-6, backend="reference")
        truth.sum().backward()
        errors[backend] = (
            (y.double() - truth).abs().max().item() + 1e-6,
            (leaf_x.grad.double() - truth_x.grad).abs().max().item() + 1e-6,
        )
    assert errors["lean"][0] <= 2 * errors["reference"][0]
    assert errors["lean"][1] <= 2 * errors["reference"][1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(5,), (0, 5), (2, 0, 5), (1, 1, 5), (2, 3, 4, 5)])
def test_any_leading_shape(backend: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, requires_grad=True)
    gain, lam = torch.ones(5, requires_grad=True), torch.ones(1, requires_grad=True)
    y, moment = bounded_tanh(x, gain, lam, 10.0, 1e-6, backend=backend)
    z = bounded_tanh_reuse(x, gain, lam, lam, 10.0, moment, torch.ones(1), 1e-6, backend=backend)
    (y + z).sum().backward()
    assert y.shape == z.shape == shape
    assert moment.shape == (*shape[:-1], 1)
    assert gain.grad.shape == (5,)
    assert lam.grad.shape == (1,)


def test_strided_input_is_accepted() -> None:
    x = torch.randn(5, 3, dtype=torch.float64).t().requires_grad_()
    gain = torch.ones(5, dtype=torch.float64)
    y, _ = bounded_tanh(x, gain, 1.0, 10.0, 1e-6)
    expected, _ = bounded_tanh(x.contiguous(), gain, 1.0, 10.0, 1e-6, backend="reference")
    torch.testing.assert_close(y, expected)


def test_compiles_without_graph_breaks() -> None:
    def run(x: Tensor, gain: Tensor, lam: Tensor) -> Tensor:
        y, moment = bounded_tanh(x, gain, lam, 10.0, 1e-6)
        return y + bounded_tanh_reuse(x + y, gain, lam, lam, 10.0, moment, torch.ones(1), 1e-6)

    arguments = [torch.randn(2, 3, 8), torch.randn(8), torch.ones(1)]
    eager = [a.clone().requires_grad_() for a in arguments]
    compiled = [a.clone().requires_grad_() for a in arguments]
    run(*eager).sum().backward()
    torch.compile(run, fullgraph=True, backend="aot_eager")(*compiled).sum().backward()
    for a, b in zip(eager, compiled, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_tapered_attention_has_its_constant() -> None:
    w_v, w_o = torch.randn(2 * 3, 16, dtype=torch.float64), torch.randn(16, 4 * 3, dtype=torch.float64)
    by_head = sum(w_o[:, h * 3 : h * 3 + 3] @ w_v[(h // 2) * 3 : (h // 2) * 3 + 3] for h in range(4))
    expected = by_head.square().sum() / (32 * 16)
    for backend in BACKENDS:
        torch.testing.assert_close(attention_gain(w_v, w_o, 4, 2, 32, backend=backend), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_does_not_reach_the_constant(backend: str) -> None:
    w_v, w_o = torch.randn(6, 16), torch.randn(16, 12)
    plain = attention_gain(w_v, w_o, 4, 2, 32, backend=backend)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attention_gain(w_v, w_o, 4, 2, 32, backend=backend), plain)


def test_wrong_shapes_and_names_are_named() -> None:
    w_v, w_o = torch.zeros(6, 16), torch.zeros(16, 12)
    with pytest.raises(UsageError, match="multiple of kv_heads=2"):
        attention_gain(w_v, w_o, 3, 2, 32)
    with pytest.raises(UsageError, match="12 columns"):
        attention_gain(w_v, w_o, 2, 2, 32)
    with pytest.raises(UsageError, match="length=0"):
        attention_gain(w_v, w_o, 4, 2, 0)
    with pytest.raises(UsageError, match="backend='fast'"):
        bounded_tanh(torch.zeros(1, 2), torch.ones(2), 1.0, 10.0, 1e-6, backend="fast")


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_that_are_all_alike_have_a_finite_exact_form(backend: str) -> None:
    x = torch.linspace(10.0, 1000.0, 500).unsqueeze(-1).expand(500, 72).contiguous().requires_grad_()
    y, _ = bounded_tanh(x, torch.ones(72), 2.0, 10.0, 1e-6, True, backend=backend)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    torch.testing.assert_close(y, torch.full_like(y, 0.964), rtol=0, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_token_alone_equals_the_token_among_others_to_the_bit(backend: str, dtype: torch.dtype) -> None:
    """Decoding one token at a time gives what prefill gives, at both sites."""
    x = torch.randn(40, 96, generator=torch.Generator().manual_seed(2)).to(dtype)
    gain, lam, c = torch.rand(96, generator=torch.Generator().manual_seed(3)), torch.tensor([1.7]), torch.tensor([0.2])

    def block(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, moment = bounded_tanh(x, gain, lam, 10.0, 1e-6, backend=backend)
        return y, moment, bounded_tanh_reuse(x + y, gain, lam, lam, 10.0, moment, c, 1e-6, backend=backend)

    whole = block(x)
    for token in range(40):
        alone = block(x[token : token + 1])
        assert all(torch.equal(a[0], w[token]) for a, w in zip(alone, whole, strict=True))
