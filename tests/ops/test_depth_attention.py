"""Depth attention: golden values, gradients, and what goes wrong in other code."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leadline.errors import UsageError
from leadline.ops import Backend, depth_attention, use_backend
from leadline.ops.choice import why_not
from leadline.ops.depth_attention import depth_attention_weights, source_root
from leadline.ops.precision import FEW_NUMBERS

CASES = json.loads((Path(__file__).parents[1] / "golden" / "depth_attention.json").read_text())
BACKENDS: tuple[Backend, ...] = ("reference", "lean")
EPS = 1e-6

both = pytest.mark.parametrize("backend", BACKENDS)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(100 * seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def inputs(count: int, *shape: int, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor, Tensor]:
    """Sources of shape `shape`, a query and a key gain; the last two stay wide, as parameters do."""
    dim, wide = shape[-1], torch.promote_types(dtype, torch.float32)
    sources = [numbers(*shape, seed=i + 1, dtype=dtype) for i in range(count)]
    return sources, numbers(dim, seed=50, dtype=wide), numbers(dim, seed=51, dtype=wide)


def outcome(sources: list[Tensor], query: Tensor, gain: Tensor, backend: Backend) -> list[Tensor]:
    """The mix and the gradients of sources, query and gain, for a fixed upstream gradient."""
    mixed = depth_attention(sources, query, gain, EPS, backend=backend)
    upstream = numbers(*mixed.shape, seed=99, dtype=mixed.dtype).detach()
    return [mixed, *torch.autograd.grad(mixed, [*sources, query, gain], upstream)]


def poisoned(tensor: Tensor, dim: int) -> Tensor:
    """The same values in the middle of a wider tensor of NaN, so that a read beside a source shows."""
    wider = torch.full((*tensor.shape[:-1], dim + 6), float("nan"), dtype=tensor.dtype)
    wider[..., 3:-3] = tensor.detach()
    return wider[..., 3:-3].requires_grad_()


@both
@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_golden(case: dict[str, Any], backend: Backend) -> None:
    values = {k: torch.tensor(v, dtype=torch.float64).requires_grad_() for k, v in case["inputs"].items()}
    mixed = depth_attention(
        values["sources"].unbind(0), values["query"], values["key_gain"], case["config"]["eps"], backend=backend
    )
    found = torch.autograd.grad((mixed * values["probe"]).sum(), [values[k] for k in case["grads"]])
    weights = depth_attention_weights(
        values["sources"].unbind(0), values["query"], values["key_gain"], case["config"]["eps"]
    )

    def close(found: Tensor, expected: Any) -> None:
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)

    close(mixed, case["expected"]["mix"])
    close(weights.movedim(0, -1), case["expected"]["weights"])
    for gradient, expected in zip(found, case["grads"].values(), strict=True):
        close(gradient, expected)


@both
@pytest.mark.parametrize("count", [1, 2, 5])
def test_gradcheck(count: int, backend: Backend) -> None:
    sources, query, gain = inputs(count, 2, 3, 5)
    assert torch.autograd.gradcheck(
        lambda q, g, *s: depth_attention(s, q, g, EPS, backend=backend), (query, gain, *sources), fast_mode=False
    )


@pytest.mark.parametrize("count", [1, 2, 33, 70])
@pytest.mark.parametrize("shape", [(4,), (3, 1), (2, 3, 7), (1, 1, 64), (5, 130), (0, 6), (2, 0, 6), (2, 2, 2, 31)])
def test_lean_equals_reference(count: int, shape: tuple[int, ...]) -> None:
    """Any width, any leading shape, no tokens, and more than 32 sources: none is dropped, all get their gradient."""
    arguments = inputs(count, *shape)
    truth, found = outcome(*arguments, "reference"), outcome(*arguments, "lean")
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)
    assert all(torch.isfinite(t).all() for t in found)
    if torch.Size(shape).numel():
        assert all(gradient.any() for gradient in found[1 : 1 + count])


def test_any_strides_and_nothing_beside_a_source_is_read() -> None:
    sources, query, gain = inputs(4, 3, 5, 6)
    truth = outcome(sources, query, gain, "lean")
    strided = [
        poisoned(sources[0], 6),
        sources[1].detach().permute(2, 0, 1).contiguous().permute(1, 2, 0).requires_grad_(),
        sources[2].detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_(),
        poisoned(sources[3], 6),
    ]
    assert not any(s.is_contiguous() for s in strided)
    for backend in BACKENDS:
        for a, b in zip(outcome(strided, query, gain, backend), truth, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@both
def test_one_source_is_the_identity_with_exactly_zero_gradient(backend: Backend) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        (source,), query, gain = inputs(1, 3, 8, dtype=dtype)
        mixed = depth_attention([source], query, gain, EPS, backend=backend)
        upstream = numbers(3, 8, seed=9, dtype=dtype).detach()
        dsource, dquery, dgain = torch.autograd.grad(mixed, (source, query, gain), upstream)
        assert torch.equal(mixed, source)
        assert torch.equal(dsource, upstream)
        assert not dquery.any()
        assert not dgain.any()


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_sources_are_as_near_the_truth_as_plain_pytorch(dtype: torch.dtype, backend: Backend) -> None:
    """bf16 keys rounded before the dot product would miss the bar: here only the result is rounded."""
    sources, query, gain = inputs(9, 64, 48, dtype=dtype)

    def plain(sources: list[Tensor], query: Tensor, gain: Tensor) -> list[Tensor]:
        stacked = torch.stack(sources)
        root = (stacked.float().square().mean(-1, keepdim=True) + EPS).rsqrt()
        keys = (stacked * root.to(dtype)) * gain.to(dtype)
        weights = torch.softmax(torch.einsum("ktd,d->kt", keys, query.to(dtype)).float(), 0)
        mixed = (weights.to(dtype).unsqueeze(-1) * stacked).sum(0)
        upstream = numbers(*mixed.shape, seed=99, dtype=dtype).detach()
        return [mixed, *torch.autograd.grad(mixed, [*sources, query, gain], upstream)]

    wide = [s.detach().double().requires_grad_() for s in sources]
    exact = outcome(
        wide, query.detach().double().requires_grad_(), gain.detach().double().requires_grad_(), "reference"
    )
    found = outcome(sources, query, gain, backend)
    for t, p, f in zip(exact, plain(sources, query, gain), found, strict=True):
        assert f.dtype == p.dtype
        assert (f - t).norm() <= 2 * (p - t).norm() + 1e-6 * t.norm()


def test_a_bfloat16_result_is_the_wide_result_rounded_once() -> None:
    sources, query, gain = inputs(5, 16, 32, dtype=torch.bfloat16)
    for backend in BACKENDS:
        mixed = depth_attention(sources, query, gain, EPS, backend=backend)
        wide = depth_attention([s.double() for s in sources], query.double(), gain.double(), EPS)
        assert mixed.dtype == torch.bfloat16
        assert (mixed.double() - wide).abs().max() <= (2**-8 + 1e-5) * wide.abs().max()


def test_what_is_kept_is_the_sources_the_mix_and_two_numbers_a_token_for_each() -> None:
    """No stacked copy: every wide tensor that is kept shares the memory of a source or of what comes out."""
    for dtype in (torch.float32, torch.bfloat16):
        sources, query, gain = inputs(6, 11, 32, dtype=dtype)
        kept: list[Tensor] = []

        def keep(tensor: Tensor, kept: list[Tensor] = kept) -> Tensor:
            kept.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            mix = depth_attention(sources, query, gain, EPS, backend="lean")
        pointers = {t.data_ptr() for t in (*sources, mix)}
        large = [t for t in kept if t.numel() >= 11 * 32]
        assert len(large) == len(sources) + 1
        assert all(t.data_ptr() in pointers for t in large)
        small = [t for t in kept if t.numel() < 11 * 32 and 11 in t.shape]
        assert sum(t.numel() for t in small) == (2 * 6 + 1) * 11


def test_roots_given_are_used_and_carry_no_gradient() -> None:
    sources, query, gain = inputs(4, 3, 8)
    roots = [source_root(s.detach(), EPS) for s in sources]
    truth = outcome(sources, query, gain, "lean")
    mixed = depth_attention(sources, query, gain, EPS, roots=roots, backend="lean")
    assert torch.equal(mixed, truth[0])
    upstream = numbers(*mixed.shape, seed=99).detach()
    for a, b in zip(torch.autograd.grad(mixed, [*sources, query, gain], upstream), truth[1:], strict=True):
        assert torch.equal(a, b)
    doubled = depth_attention(sources, query, gain, EPS, roots=[2 * r for r in roots], backend="lean")
    assert not torch.allclose(doubled, mixed)


def test_second_derivatives_raise_on_lean_and_are_right_on_reference() -> None:
    sources, query, gain = inputs(3, 2, 4)
    assert torch.autograd.gradgradcheck(
        lambda q, g, *s: depth_attention(s, q, g, EPS, backend="reference"), (query, gain, *sources), fast_mode=True
    )
    mixed = depth_attention(sources, query, gain, EPS, backend="lean")
    (first,) = torch.autograd.grad(mixed.square().sum(), sources[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.square().sum().backward()


@both
def test_only_what_needs_a_gradient_gets_one(backend: Backend) -> None:
    sources, query, gain = inputs(4, 3, 5)
    for frozen in (sources[1], sources[2], gain):
        frozen.requires_grad_(False)
    depth_attention(sources, query, gain, EPS, backend=backend).sum().backward()
    assert sources[1].grad is sources[2].grad is gain.grad is None
    assert all(t.grad is not None for t in (sources[0], sources[3], query))


@both
def test_the_same_source_twice_gets_both_gradients(backend: Backend) -> None:
    (a, b), query, gain = inputs(2, 3, 5)
    assert torch.autograd.gradcheck(
        lambda a, b: depth_attention([a, b, a], query, gain, EPS, backend=backend), (a, b), fast_mode=True
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_runs_are_equal_to_the_bit(dtype: torch.dtype) -> None:
    arguments = inputs(7, 130, 48, dtype=dtype)
    first, second = outcome(*arguments, "lean"), outcome(*arguments, "lean")
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("tokens", [1, 3, 400])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_reading_without_gradients_gives_the_same(tokens: int, dtype: torch.dtype) -> None:
    """One token is read stacked and many are read listed; 400 tokens of 48 numbers are many."""
    sources, query, gain = inputs(5, 2, tokens, 48, dtype=dtype)
    assert (sources[0].numel() > FEW_NUMBERS) == (tokens == 400)
    expected = depth_attention(sources, query, gain, EPS).detach()
    with torch.no_grad():
        found = depth_attention(sources, query, gain, EPS)
        alone = depth_attention(sources[:1], query, gain, EPS)
    assert torch.equal(alone, sources[0])
    assert found.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 1e-2
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@both
def test_autocast_has_no_say(backend: Backend) -> None:
    arguments = inputs(4, 3, 16, dtype=torch.float32)
    plain = outcome(*arguments, backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = outcome(*arguments, backend)
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))


@both
def test_float64_scalars_survive_a_compiler_and_tokens_do_not_recompile(backend: Backend) -> None:
    """Statistics of float64 sources stay float64 in a compiled graph; one graph serves every number of tokens."""
    torch._dynamo.reset()
    graphs = 0

    def count(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    def read(sources: list[Tensor], query: Tensor, gain: Tensor) -> Tensor:
        return depth_attention(sources, query, gain, 1e-12, backend=backend)

    compiled = torch.compile(read, fullgraph=True, backend=count, dynamic=True)
    for tokens in (2, 3, 17, 130):
        sources, query, gain = inputs(3, tokens, 6)
        torch.testing.assert_close(compiled(sources, query, gain), read(sources, query, gain), rtol=1e-13, atol=1e-13)
    assert graphs == 1
    torch._dynamo.reset()
    sources, query, gain = inputs(3, 4, 6)
    lowered = torch.compile(read, fullgraph=True, backend="aot_eager")(sources, query, gain)
    truth = torch.autograd.grad(read(sources, query, gain).square().sum(), [*sources, query, gain])
    found = torch.autograd.grad(lowered.square().sum(), [*sources, query, gain])
    torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-12)


@settings(max_examples=30)
@given(
    count=st.integers(1, 40),
    dim=st.integers(1, 33),
    tokens=st.integers(0, 4),
    spread=st.floats(0, 30),
    seed=st.integers(0, 99),
    backend=st.sampled_from(BACKENDS),
)
def test_a_mix_is_a_mean_of_its_sources(
    count: int, dim: int, tokens: int, spread: float, seed: int, backend: Backend
) -> None:
    sources = [numbers(tokens, dim, seed=seed + i).detach() for i in range(count)]
    query, gain = spread * numbers(dim, seed=seed).detach(), numbers(dim, seed=seed + 1).detach()
    weights = depth_attention_weights(sources, query, gain, EPS)
    mixed = depth_attention(sources, query, gain, EPS, backend=backend)
    stacked = torch.stack(sources)
    torch.testing.assert_close(weights.sum(0), torch.ones(tokens, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close((weights.unsqueeze(-1) * stacked).sum(0), mixed, rtol=1e-10, atol=1e-12)
    assert (mixed.norm(dim=-1) <= stacked.norm(dim=-1).amax(0) * (1 + 1e-12)).all()
    even = depth_attention(sources, torch.zeros(dim, dtype=torch.float64), gain, EPS, backend=backend)
    torch.testing.assert_close(even, stacked.mean(0), rtol=1e-12, atol=1e-13)


def test_large_scores_do_not_overflow() -> None:
    sources, query, gain = inputs(4, 3, 8, dtype=torch.float32)
    for backend in BACKENDS:
        found = outcome(sources, (1e4 * query).detach().requires_grad_(), gain, backend)
        assert all(torch.isfinite(t).all() for t in found)


def test_wrong_arguments_are_errors() -> None:
    sources, query, gain = inputs(2, 3, 4)
    with pytest.raises(UsageError, match="at least one source"):
        depth_attention([], query, gain, EPS)
    with pytest.raises(UsageError, match="2 sources and 1 roots"):
        depth_attention(sources, query, gain, EPS, roots=[source_root(sources[0], EPS)])
    with pytest.raises(UsageError, match="backend='fast' is not known; auto, reference, lean, compiled and triton"):
        depth_attention(sources, query, gain, EPS, backend="fast")
    with pytest.raises(UsageError, match="not known"), use_backend("fast"):
        pass


def test_a_backend_can_be_chosen_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    sources, query, gain = inputs(2, 3, 4)

    def fail(*_: object, **__: object) -> Tensor:
        raise AssertionError("lean ran")

    monkeypatch.setattr(sys.modules["leadline.ops.depth_attention"], "read_lean", fail)
    with use_backend("reference"):
        depth_attention(sources, query, gain, EPS)
    with pytest.raises(AssertionError, match="lean ran"):
        depth_attention(sources, query, gain, EPS)


@both
def test_neither_inputs_nor_the_upstream_gradient_are_mutated(backend: Backend) -> None:
    sources, query, gain = inputs(4, 3, 8)
    roots = [source_root(s.detach(), EPS) for s in sources]
    mixed = depth_attention(sources, query, gain, EPS, roots=roots, backend=backend)
    upstream = numbers(*mixed.shape, seed=9).detach()
    given = [*sources, query, gain, *roots, upstream]
    before = [(t.detach().clone(), t._version) for t in given]
    mixed.backward(upstream)
    assert all(torch.equal(t, old) and t._version == version for t, (old, version) in zip(given, before, strict=True))


@pytest.mark.parametrize("backend", ["lean", "compiled"])
def test_sharp_weights_of_few_narrow_sources_keep_the_querys_gradient(backend: Backend) -> None:
    """`do·o` from a rounded o would be off by as much as the difference that it is part of."""
    if backend == "compiled" and (reason := why_not("compiled", "cpu")):
        pytest.skip(reason)
    sources = [numbers(64, 512, seed=i, dtype=torch.bfloat16) for i in range(3)]
    query, gain = numbers(512, seed=7, dtype=torch.float32), torch.ones(512)
    upstream = torch.randn(64, 512, generator=torch.Generator().manual_seed(5)).bfloat16()
    exact = [source.detach().double() for source in sources]
    query_exact = query.detach().double().requires_grad_()
    mix = depth_attention(exact, query_exact, gain.double(), EPS, backend="reference")
    (truth,) = torch.autograd.grad(mix, query_exact, upstream.double())
    (found,) = torch.autograd.grad(depth_attention(sources, query, gain, EPS, backend=backend), query, upstream)
    assert (found - truth).norm() <= 1e-3 * truth.norm()
