"""The fused bounded tanh under Triton's interpreter, against the reference."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton_interpreter import rounding_to_nearest
from triton_tally import tally

from leadline.ops.bounded_tanh import attention_gain, reference
from leadline.ops.bounded_tanh.kernels import tanh
from leadline.ops.bounded_tanh.triton import (
    bounded_tanh_reuse_triton,
    bounded_tanh_triton,
    first_site,
    programs,
    second_site,
    site_gradients,
    tile_for,
)

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "bounded_tanh.json").read_text())
KAPPA, EPS = 3.0, 1e-6
SHAPES = ((5,), (3, 1), (1, 2, 7), (2, 3, 130), (2, 0, 6), (40, 24))

First = Callable[..., tuple[Tensor, Tensor]]
Second = Callable[..., Tensor]
FUSED = (bounded_tanh_triton, bounded_tanh_reuse_triton)
REFERENCE = (reference.bounded_tanh, reference.bounded_tanh_reuse)

each_form = pytest.mark.parametrize("with_mean", [False, True])


@pytest.fixture(autouse=True)
def _as_on_a_gpu() -> Iterator[None]:
    """New memory is NaN, so that an element which no kernel writes shows; bfloat16 is rounded to nearest."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    with rounding_to_nearest():
        yield
    torch.use_deterministic_algorithms(False)


def numbers(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(100 * seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def upstream_of(tensor: Tensor, seed: int) -> Tensor:
    """The same numbers for every dtype: bfloat16 and float16 hold them exactly."""
    return (numbers(*tensor.shape, seed=seed).detach() * 16).round().div(16).to(tensor.dtype)


def first_inputs(*shape: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """x, gain, λ."""
    wide = torch.promote_types(dtype, torch.float32)
    lam = torch.full((1,), 1.75, dtype=wide, requires_grad=True)
    return [numbers(*shape, seed=1, dtype=dtype), numbers(shape[-1], seed=2, dtype=wide), lam]


def second_inputs(*shape: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """x, gain, λ, second moment."""
    x, gain, lam = first_inputs(*shape, dtype=dtype)
    return [x, gain, lam, numbers(*shape[:-1], 1, seed=3, dtype=gain.dtype).detach().square().requires_grad_()]


def first_outcome(run: First, inputs: list[Tensor], with_mean: bool) -> list[Tensor]:
    """y, the second moment, and the gradients of both together."""
    y, moment = run(*inputs, KAPPA, EPS, with_mean)
    return [y, moment, *torch.autograd.grad((y, moment), inputs, (upstream_of(y, 8), upstream_of(moment, 9)))]


def second_outcome(run: Second, inputs: list[Tensor], c: Tensor | None = None) -> list[Tensor]:
    x, gain, lam, moment = inputs
    c = torch.full((1,), 0.625, dtype=gain.dtype) if c is None else c
    y = run(x, gain, lam, 2.5, KAPPA, moment, c, EPS)
    return [y, *torch.autograd.grad(y, inputs, upstream_of(y, 8))]


def assert_alike(found: list[Tensor], truth: list[Tensor]) -> None:
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@triton.jit
def tanh_kernel(x_ptr, y_ptr, SIZE: tl.constexpr, LEVELS: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(y_ptr + at, tanh(tl.load(x_ptr + at), LEVELS))


@pytest.mark.parametrize(("dtype", "levels"), [(torch.float32, 5), (torch.float64, 8)], ids=str)
def test_tanh_is_right_to_rounding_at_every_size(dtype: torch.dtype, levels: int) -> None:
    sizes = torch.cat((torch.logspace(-37, 0, 2000), torch.linspace(0.6, 0.65, 500), torch.linspace(1, 120, 1500)))
    x = torch.cat((sizes, -sizes, torch.tensor([0.0, float("inf"), -float("inf"), float("nan")]))).to(dtype)
    x = torch.cat((x, x.new_zeros(8192 - len(x))))
    y = torch.empty_like(x)
    tanh_kernel[(1,)](x, y, 8192, levels)
    truth = torch.tanh(x.double())
    assert y.isnan().eq(truth.isnan()).all()
    error = (y.double() - truth).abs().nan_to_num() / truth.abs().nan_to_num().clamp_min(1e-300)
    assert error.max() < 4 * torch.finfo(dtype).eps
    assert y.nan_to_num().abs().max() == 1


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_golden(case: dict[str, Any]) -> None:
    config, expected = case["config"], case["expected"]
    t = {k: torch.tensor(v, dtype=torch.float64).requires_grad_() for k, v in case["inputs"].items()}
    kappa, eps = config["kappa"], config["eps"]
    c = attention_gain(t["w_v"], t["w_o"], config["heads"], config["kv_heads"], config["length"])
    first, moment = bounded_tanh_triton(t["x"], t["gain"], t["lambda_attn"], kappa, eps)
    second = bounded_tanh_reuse_triton(
        t["x_second"], t["gain_second"], t["lambda_mlp"], t["lambda_attn"], kappa, moment, c, eps
    )
    exact, _ = bounded_tanh_triton(t["x"].detach() + 0.5, t["gain"], t["lambda_attn"], kappa, eps, True)
    loss = (first * t["probe"]).sum() + (second * t["probe_second"]).sum()
    found = [first, moment, second, exact, *torch.autograd.grad(loss, [t[name] for name in case["grads"]])]
    names = ("first", "second_moment", "second", "with_mean_of_x_plus_half")
    for a, b in zip(found, [*[expected[name] for name in names], *case["grads"].values()], strict=True):
        torch.testing.assert_close(a, torch.as_tensor(b, dtype=torch.float64).reshape(a.shape), rtol=1e-9, atol=1e-9)


@each_form
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_first_site_equals_the_reference(shape: tuple[int, ...], with_mean: bool) -> None:
    inputs = first_inputs(*shape)
    assert_alike(first_outcome(FUSED[0], inputs, with_mean), first_outcome(REFERENCE[0], inputs, with_mean))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_second_site_equals_the_reference(shape: tuple[int, ...]) -> None:
    inputs = second_inputs(*shape)
    assert_alike(second_outcome(FUSED[1], inputs), second_outcome(REFERENCE[1], inputs))


def test_a_constant_for_every_position_and_a_shared_moment() -> None:
    x, gain, lam, _ = second_inputs(2, 3, 6)
    c = numbers(3, 1, seed=5).detach().square()
    moment = numbers(3, 1, seed=6).detach().square().requires_grad_()
    inputs = [x, gain, lam, moment]
    assert_alike(second_outcome(FUSED[1], inputs, c), second_outcome(REFERENCE[1], inputs, c))


@each_form
@pytest.mark.parametrize("used", [0, 1])
def test_where_only_one_result_is_used(used: int, with_mean: bool) -> None:
    inputs = first_inputs(3, 7)
    outcomes = []
    for run in (FUSED[0], REFERENCE[0]):
        loss = run(*inputs, KAPPA, EPS, with_mean)[used].square().sum()
        outcomes.append(list(torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)))
    assert_alike(*outcomes)


@each_form
def test_both_sites_one_after_the_other(with_mean: bool) -> None:
    """Gradients reach x through the second site's statistic; λ_first and c stay constant in it."""
    outcomes = []
    for first, second in (FUSED, REFERENCE):
        x, gain, lam = first_inputs(2, 3, 7)
        c = torch.full((), 0.5, dtype=torch.float64, requires_grad=True)
        lam_first = torch.full((1,), 2.0, dtype=torch.float64, requires_grad=True)
        y, moment = first(x, gain, lam_first, KAPPA, EPS, with_mean)
        z = second(x + y, gain, lam, lam_first, KAPPA, moment, c, EPS)
        outcomes.append([z, *torch.autograd.grad((z * upstream_of(z, 7)).sum(), [x, gain, lam, lam_first])])
        direct = second(x, gain, lam, lam_first, KAPPA, moment.detach(), c, EPS).sum()
        assert torch.autograd.grad(direct, [lam_first, c], allow_unused=True) == (None, None)
    assert_alike(*outcomes)


@each_form
def test_gradcheck(with_mean: bool) -> None:
    inputs = first_inputs(2, 3)
    assert torch.autograd.gradcheck(lambda *t: bounded_tanh_triton(*t, KAPPA, 1e-3, with_mean), inputs)
    c = torch.ones(1, dtype=torch.float64)
    run = lambda x, g, lam, v: bounded_tanh_reuse_triton(x, g, lam, 2.0, KAPPA, v, c, 1e-3)  # noqa: E731
    assert torch.autograd.gradcheck(run, second_inputs(2, 3))


@each_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_narrow_dtypes_are_as_near_the_truth_as_plain_pytorch(dtype: torch.dtype, with_mean: bool) -> None:
    def compare(run: Callable[..., list[Tensor]], index: int, inputs: list[Tensor], *rest: bool) -> None:
        wide = [t.detach().double().requires_grad_() for t in inputs]
        truth = run(REFERENCE[index], wide, *rest)
        for right, near, found in zip(
            truth, run(REFERENCE[index], inputs, *rest), run(FUSED[index], inputs, *rest), strict=True
        ):
            assert found.dtype == near.dtype
            assert (found - right).norm() <= 2 * (near - right).norm() + 1e-6 * right.norm()

    compare(first_outcome, 0, first_inputs(6, 45, dtype=dtype), with_mean)
    compare(second_outcome, 1, second_inputs(6, 45, dtype=dtype))


def test_values_that_are_all_alike_have_a_finite_exact_form() -> None:
    x = torch.linspace(10.0, 1000.0, 20).unsqueeze(-1).expand(20, 72).contiguous().requires_grad_()
    y, _ = bounded_tanh_triton(x, torch.ones(72), 2.0, 10.0, 1e-6, True)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    torch.testing.assert_close(y, torch.full_like(y, 0.964), rtol=0, atol=2e-3)


def test_huge_inputs_saturate_and_small_ones_are_linear() -> None:
    x = torch.tensor([[1e4, -1e4, 1e-20, 0.0]], dtype=torch.float32)
    y = bounded_tanh_reuse_triton(x, torch.ones(4), 1.0, 1.0, 1.0, torch.ones(1, 1), torch.zeros(1), 0.0)
    torch.testing.assert_close(y, torch.tensor([[1.0, -1.0, 1e-20, 0.0]]), rtol=1e-6, atol=0)


def in_nan(tensor: Tensor, before: int, behind: int) -> Tensor:
    """The same values in the middle of a tensor of NaN: a read beside a row shows."""
    wider = tensor.new_full((*tensor.shape[:-1], before + tensor.shape[-1] + behind), float("nan"))
    wider[..., before : before + tensor.shape[-1]] = tensor.detach()
    return wider[..., before : before + tensor.shape[-1]].requires_grad_()


@pytest.mark.parametrize("dim", [6, 16])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: in_nan(x, 16, 16),
        lambda x: in_nan(x, 1, 2),
        lambda x: x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_(),
        lambda x: x.detach().permute(2, 0, 1).contiguous().permute(1, 2, 0).requires_grad_(),
        lambda x: in_nan(x.detach().permute(1, 0, 2), 3, 3).detach().permute(1, 0, 2).requires_grad_(),
    ],
    ids=["even gaps", "odd gaps", "rows swapped", "columns first", "rows swapped with gaps"],
)
def test_any_strides_and_nothing_beside_a_row_is_read(change: Callable[[Tensor], Tensor], dim: int) -> None:
    x, gain, lam, moment = second_inputs(3, 4, dim)
    first = [change(x), in_nan(gain, 2, 2), lam]
    assert_alike(first_outcome(FUSED[0], first, True), first_outcome(REFERENCE[0], [x, gain, lam], True))
    second = [change(x), gain, lam, in_nan(moment, 1, 1)]
    assert_alike(second_outcome(FUSED[1], second), second_outcome(REFERENCE[1], [x, gain, lam, moment]))


def test_upstream_gradients_of_any_strides() -> None:
    inputs = first_inputs(3, 4, 6)
    weights = numbers(4, 3, 6, seed=4).detach()
    outcomes = []
    for run in (FUSED[0], REFERENCE[0]):
        y, moment = run(*inputs, KAPPA, EPS)
        loss = y.sum() + (y.transpose(0, 1) * weights).sum() + moment.sum()
        outcomes.append([*torch.autograd.grad(y.sum(), inputs, retain_graph=True), *torch.autograd.grad(loss, inputs)])
    assert_alike(*outcomes)


def test_two_runs_give_the_same_bits() -> None:
    inputs = first_inputs(40, 24, dtype=torch.float32)
    for a, b in zip(first_outcome(FUSED[0], inputs, True), first_outcome(FUSED[0], inputs, True), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("tokens", "dim"), [(3, 8), (9, 33), (5, 130)])
@pytest.mark.parametrize("keep", [True, False])
@each_form
def test_bytes_moved_at_the_first_site_are_those_stated(tokens: int, dim: int, keep: bool, with_mean: bool) -> None:
    x, gain, lam = [t.detach() for t in first_inputs(tokens, dim, dtype=torch.bfloat16)]
    shares = programs(tokens, tile_for(x.dtype, dim))
    small = 1 + (2 + with_mean if keep else 0)
    with tally() as counted:
        y, moment, stats = first_site(x, gain, lam, KAPPA, EPS, with_mean, keep)
    assert counted.read(x) == tokens * dim
    assert counted.read() == tokens * dim + shares * (dim + 1)
    assert counted.written(y) == tokens * dim
    assert counted.written() == tokens * (dim + small)
    assert counted.bytes_read == 2 * tokens * dim + 4 * shares * (dim + 1)
    assert counted.bytes_written == tokens * (2 * dim + 4 * small)
    assert counted.stray(x, gain, lam, y, moment, *([stats] if keep else [])) == 0
    if keep:
        with tally() as counted:
            dx, _, _, _ = site_gradients(x, gain, lam, stats, torch.ones_like(y), torch.ones_like(moment), True)
        assert counted.read(x) == tokens * dim
        assert counted.read() == tokens * (2 * dim + 3 + with_mean) + shares * (dim + 1)
        assert counted.written(dx) == tokens * dim
        assert counted.written() == tokens * dim + shares * (dim + 1)


@pytest.mark.parametrize(("tokens", "dim"), [(3, 8), (9, 33), (5, 130)])
@pytest.mark.parametrize("keep", [True, False])
def test_bytes_moved_at_the_second_site_are_those_stated(tokens: int, dim: int, keep: bool) -> None:
    x, gain, lam, moment = [t.detach() for t in second_inputs(tokens, dim, dtype=torch.bfloat16)]
    shares = programs(tokens, tile_for(x.dtype, dim))
    c = torch.ones(1).expand(tokens)
    with tally() as counted:
        y, stats = second_site(x, gain, lam, lam.clone(), moment.flatten(), c, KAPPA, EPS, keep)
    assert counted.read(x) == tokens * dim
    assert counted.read() == tokens * (dim + 2) + shares * (dim + 2)
    assert counted.written() == tokens * (dim + 2 * keep)
    assert counted.bytes_written == tokens * (2 * dim + 8 * keep)
    if keep:
        with tally() as counted:
            dx, _, _, dmoment = site_gradients(x, gain, lam, stats, torch.ones_like(y), None, False)
        assert counted.read() == tokens * (2 * dim + 2) + shares * (dim + 1)
        assert counted.written(dx) == tokens * dim
        assert counted.written(dmoment) == tokens
        assert counted.written() == tokens * (dim + 1) + shares * (dim + 1)


@each_form
def test_what_is_kept_for_the_backward_pass_is_small(with_mean: bool) -> None:
    inputs = first_inputs(2, 3, 8, dtype=torch.float32)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        bounded_tanh_triton(*inputs, KAPPA, EPS, with_mean)
    known = {t.untyped_storage().data_ptr() for t in inputs}
    assert sum(t.numel() for t in saved if t.untyped_storage().data_ptr() not in known) == 6 * (2 + with_mean)


@each_form
def test_without_gradients_decode_equals_prefill_bit_by_bit(with_mean: bool) -> None:
    x, gain, lam = first_inputs(6, 40, dtype=torch.float32)
    c = torch.ones(1)
    with torch.no_grad():
        y, moment = bounded_tanh_triton(x, gain, lam, KAPPA, EPS, with_mean)
        z = bounded_tanh_reuse_triton(x, gain, lam, lam, KAPPA, moment, c, EPS)
        for t in range(len(x)):
            one, own = bounded_tanh_triton(x[t : t + 1], gain, lam, KAPPA, EPS, with_mean)
            assert torch.equal(one[0], y[t])
            again = bounded_tanh_reuse_triton(x[t : t + 1], gain, lam, lam, KAPPA, own, c, EPS)
            assert torch.equal(again[0], z[t])


@each_form
def test_opcheck(with_mean: bool) -> None:
    x, gain, lam, moment = [t.detach() for t in second_inputs(2, 3, 6, dtype=torch.float32)]
    for keep in (True, False):
        torch.library.opcheck(first_site, (x, gain, lam, KAPPA, EPS, with_mean, keep))
        torch.library.opcheck(
            second_site, (x, gain, lam, lam.clone(), moment.flatten(), gain.square(), KAPPA, EPS, keep)
        )
    y, _, stats = first_site(x, gain, lam, KAPPA, EPS, with_mean, True)
    torch.library.opcheck(site_gradients, (x, gain, lam, stats, y, moment, True))
    if not with_mean:
        torch.library.opcheck(site_gradients, (x, gain, lam, stats, y, None, False))


@each_form
@pytest.mark.parametrize("dynamic", [None, True])
def test_compiles_whole(dynamic: bool | None, with_mean: bool) -> None:
    def model(x: Tensor, gain: Tensor, lam: Tensor) -> Tensor:
        for _ in range(2):
            y, moment = bounded_tanh_triton(x, gain, lam, KAPPA, EPS, with_mean)
            x = y + bounded_tanh_reuse_triton(x + y, gain, lam, lam, KAPPA, moment, torch.ones(1), EPS)
        return x

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for tokens in (3, 5):
        inputs = first_inputs(2, tokens, 6)
        outcomes = []
        for run in (model, compiled):
            made = run(*inputs)
            outcomes.append([made, *torch.autograd.grad(made, inputs, upstream_of(made, 8))])
        assert_alike(*outcomes)


def test_a_second_derivative_raises() -> None:
    inputs = first_inputs(2, 5)
    y, _ = bounded_tanh_triton(*inputs, KAPPA, EPS)
    (first,) = torch.autograd.grad(y.square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
