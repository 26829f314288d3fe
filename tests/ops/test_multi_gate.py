"""The multi-gate step: against the printed equations, gradients, precision, bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leadline.errors import UsageError
from leadline.ops import Backend, multi_gate_step
from leadline.ops.multi_gate import GateKind, Step

BACKENDS: tuple[Backend, ...] = ("reference", "lean")
KINDS: tuple[GateKind, ...] = ("competitive", "independent")
EPS = 1e-6

both = pytest.mark.parametrize("backend", BACKENDS)
each_kind = pytest.mark.parametrize("kind", KINDS)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(100 * seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


@dataclass
class Arguments:
    """A step's tensors, in the order of its arguments; None where a part is left out."""

    streams: Tensor
    output: Tensor | None
    beta: Tensor | None
    pool_query: Tensor | None
    gate_query: Tensor | None
    gate_bias: Tensor | None

    @staticmethod
    def of(*shape: int, parts: str = "fpg", dtype: torch.dtype = torch.float64) -> Arguments:
        """For streams of `shape` (N, ..., D), with the parts wanted: f flush, p pool, g gate."""
        dim, wide = shape[-1], torch.promote_types(dtype, torch.float32)
        beta = torch.sigmoid(numbers(*shape[:-1], seed=3, dtype=wide).detach()).requires_grad_()
        flushes, pools, gates = ("f" in parts), ("p" in parts), ("g" in parts)
        return Arguments(
            numbers(*shape, seed=1, dtype=dtype),
            numbers(*shape[1:], seed=2, dtype=dtype) if flushes else None,
            beta if flushes else None,
            numbers(dim, seed=4, dtype=wide) if pools else None,
            numbers(dim, seed=5, dtype=wide) if gates else None,
            numbers(1, seed=6, dtype=wide) if gates else None,
        )

    def step(self, kind: GateKind, backend: Backend) -> Step:
        pending = None if self.output is None or self.beta is None else (self.output, self.beta)
        gate = None if self.gate_query is None or self.gate_bias is None else (self.gate_query, self.gate_bias)
        return multi_gate_step(self.streams, pending, self.pool_query, gate, kind=kind, eps=EPS, backend=backend)

    def tensors(self) -> list[Tensor]:
        return [t for t in vars(self).values() if t is not None]

    def double(self) -> Arguments:
        return Arguments(*[None if t is None else t.detach().double().requires_grad_() for t in vars(self).values()])

    def outcome(self, kind: GateKind, backend: Backend) -> list[Tensor]:
        """What the step gives and all gradients, for fixed upstream gradients."""
        given = [t for t in self.step(kind, backend) if t is not None]
        upstream = [numbers(*t.shape, seed=20 + i, dtype=t.dtype).detach() for i, t in enumerate(given)]
        return [*given, *torch.autograd.grad(given, self.tensors(), upstream)]


PARTS = ("fpg", "pg", "fp", "p")


def written_out(a: Arguments, kind: GateKind) -> Step:
    """The equations of arXiv 2605.23259 for one token, stream by stream."""
    streams = list(a.streams)
    if a.output is not None and a.beta is not None:
        streams = [(1 - b) * s + b * a.output for s, b in zip(streams, a.beta, strict=True)]
    units = [s / (s.square().mean() + EPS).sqrt() for s in streams]
    root = streams[0].shape[0] ** 0.5
    read = streams[0]
    if a.pool_query is not None:
        scores = torch.stack([(a.pool_query @ u / root).exp() for u in units])
        read = sum(w * s for w, s in zip(scores / scores.sum(), streams, strict=True))
    gates = None
    if a.gate_query is not None and a.gate_bias is not None:
        z = torch.stack([a.gate_query @ u / root for u in units])
        if kind == "independent":
            gates = 1 / (1 + (-(z + a.gate_bias)).exp())
        else:
            gates = z.exp() / (a.gate_bias.exp() + z.exp().sum())
    return Step(torch.stack(streams), read, gates)


@both
@each_kind
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("streams", [1, 2, 5])
def test_the_equations(streams: int, parts: str, kind: GateKind, backend: Backend) -> None:
    arguments = Arguments.of(streams, 7, parts=parts)
    for found, truth in zip(arguments.step(kind, backend), written_out(arguments, kind), strict=True):
        torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-13)


@both
@each_kind
@pytest.mark.parametrize("parts", PARTS)
def test_gradcheck(parts: str, kind: GateKind, backend: Backend) -> None:
    arguments = Arguments.of(3, 2, 4, parts=parts)

    def given(*tensors: Tensor) -> list[Tensor]:
        values = iter(tensors)
        again = Arguments(*[None if t is None else next(values) for t in vars(arguments).values()])
        return [t for t in again.step(kind, backend) if t is not None and t.requires_grad]

    assert torch.autograd.gradcheck(given, arguments.tensors(), fast_mode=False)


@both
@each_kind
@pytest.mark.parametrize("used", ["streams", "read", "gates"])
def test_gradcheck_where_only_one_result_is_used(used: str, kind: GateKind, backend: Backend) -> None:
    arguments = Arguments.of(3, 2, 4)

    def given(*tensors: Tensor) -> Tensor:
        result: Tensor = getattr(Arguments(*tensors).step(kind, backend), used)
        return result

    assert torch.autograd.gradcheck(given, arguments.tensors(), fast_mode=True)


@both
@each_kind
def test_one_stream_without_a_pool_query(kind: GateKind, backend: Backend) -> None:
    arguments = Arguments.of(1, 2, 4, parts="fg")

    def given(*tensors: Tensor) -> list[Tensor]:
        streams, output, beta, query, bias = tensors
        return [t for t in Arguments(streams, output, beta, None, query, bias).step(kind, backend) if t is not None]

    step = arguments.step(kind, backend)
    assert torch.equal(step.read, step.streams[0])
    assert torch.autograd.gradcheck(given, arguments.tensors(), fast_mode=True)


@each_kind
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize(
    "shape",
    [(4, 4), (2, 3, 1), (3, 2, 3, 7), (5, 1, 1, 64), (4, 5, 130), (3, 0, 6), (3, 2, 0, 6), (40, 3, 9), (4, 90, 33)],
)
def test_lean_equals_reference(shape: tuple[int, ...], parts: str, kind: GateKind) -> None:
    arguments = Arguments.of(*shape, parts=parts)
    truth, found = (arguments.outcome(kind, backend) for backend in BACKENDS)
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)
    with torch.no_grad():
        for a, b in zip(arguments.step(kind, "lean"), arguments.step(kind, "reference"), strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@each_kind
def test_any_strides_and_nothing_beside_a_stream_is_read(kind: GateKind) -> None:
    arguments = Arguments.of(3, 4, 5, 6)
    truth = arguments.outcome(kind, "lean")
    poisoned = torch.full((3, 4, 5, 12), float("nan"), dtype=torch.float64)
    poisoned[..., 3:-3] = arguments.streams.detach()
    arguments.streams = poisoned[..., 3:-3].requires_grad_()
    assert arguments.output is not None
    assert arguments.beta is not None
    arguments.output = arguments.output.detach().permute(2, 0, 1).contiguous().permute(1, 2, 0).requires_grad_()
    arguments.beta = arguments.beta.detach().permute(2, 1, 0).contiguous().permute(2, 1, 0).requires_grad_()
    assert not any(t.is_contiguous() for t in (arguments.streams, arguments.output, arguments.beta))
    for backend in BACKENDS:
        for a, b in zip(arguments.outcome(kind, backend), truth, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@both
@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_streams_are_as_near_the_truth_as_plain_pytorch(
    dtype: torch.dtype, kind: GateKind, backend: Backend
) -> None:
    arguments = Arguments.of(4, 64, 48, dtype=dtype)

    def plain(a: Arguments) -> list[Tensor]:
        """The equations with every step rounded to the dtype that flows."""
        assert a.output is not None
        assert a.beta is not None
        assert a.pool_query is not None
        assert a.gate_query is not None
        assert a.gate_bias is not None
        beta = a.beta.to(dtype).unsqueeze(-1)
        streams = (1 - beta) * a.streams + beta * a.output
        unit = streams * (streams.square().mean(-1, keepdim=True) + EPS).rsqrt()
        pool = torch.softmax((unit @ a.pool_query.to(dtype)) / 48**0.5, 0)
        z = (unit @ a.gate_query.to(dtype)) / 48**0.5
        bias = a.gate_bias.to(dtype)
        carried = torch.cat((bias.expand(1, 64), z))
        gates = torch.sigmoid(z + bias) if kind == "independent" else torch.softmax(carried, 0)[1:]
        given = [streams, (pool.unsqueeze(-1) * streams).sum(0), gates]
        upstream = [numbers(*t.shape, seed=20 + i, dtype=dtype).detach().to(t.dtype) for i, t in enumerate(given)]
        return [*given, *torch.autograd.grad(given, a.tensors(), upstream)]

    exact = arguments.double().outcome(kind, "reference")
    found = arguments.outcome(kind, backend)
    names = ["streams", "read", "gates", *(f"d{name}" for name in vars(arguments))]
    for name, t, p, f in zip(names, exact, plain(arguments), found, strict=True):
        wide = name in ("gates", "dbeta", "dpool_query", "dgate_query", "dgate_bias")
        assert f.dtype == (torch.float32 if wide else dtype), name
        assert (f - t).norm() <= 2 * (p - t).norm() + 1e-4 * t.norm(), name


@both
@each_kind
def test_a_flush_and_a_read_equal_a_read_of_what_was_flushed(kind: GateKind, backend: Backend) -> None:
    """To the bit: what is read and gated is the streams as they are kept, rounded."""
    for dtype in (torch.float32, torch.bfloat16):
        arguments = Arguments.of(4, 33, 48, dtype=dtype)
        step = arguments.step(kind, backend)
        arguments.streams, arguments.output, arguments.beta = step.streams, None, None
        again = arguments.step(kind, backend)
        assert torch.equal(again.read, step.read)
        assert step.gates is not None
        assert again.gates is not None
        assert torch.equal(again.gates, step.gates)


def test_a_step_keeps_its_streams_and_its_output_and_a_few_numbers_a_token() -> None:
    arguments = Arguments.of(4, 11, 32, dtype=torch.bfloat16)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        step = arguments.step("competitive", "lean")
    large = [t for t in kept if t.numel() >= 11 * 32]
    shared = {t.data_ptr() for t in (arguments.streams, arguments.output, step.streams) if t is not None}
    assert {t.data_ptr() for t in large} == shared
    assert len(large) == 3
    assert all(t.dtype == torch.bfloat16 for t in large)
    assert sum(t.numel() for t in kept if t.numel() < 11 * 32 and 11 in t.shape) <= 5 * 4 * 11


def test_a_step_without_a_flush_hands_the_streams_on() -> None:
    for backend in BACKENDS:
        arguments = Arguments.of(4, 11, 32, parts="pg")
        assert arguments.step("competitive", backend).streams is arguments.streams


@each_kind
def test_two_runs_are_equal_to_the_bit(kind: GateKind) -> None:
    arguments = Arguments.of(4, 130, 48, dtype=torch.float32)
    first, second = arguments.outcome(kind, "lean"), arguments.outcome(kind, "lean")
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@both
def test_autocast_has_no_say(backend: Backend) -> None:
    arguments = Arguments.of(3, 5, 16, dtype=torch.float32)
    plain = arguments.outcome("competitive", backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = arguments.outcome("competitive", backend)
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))


@both
@each_kind
def test_compiles_and_the_number_of_tokens_does_not_recompile(kind: GateKind, backend: Backend) -> None:
    torch._dynamo.reset()
    graphs = 0

    def count(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    def step(*tensors: Tensor) -> Step:
        return Arguments(*tensors).step(kind, backend)

    compiled = torch.compile(step, fullgraph=True, backend=count, dynamic=True)
    for tokens in (2, 3, 17, 130):
        tensors = Arguments.of(3, tokens, 6).tensors()
        torch.testing.assert_close(tuple(compiled(*tensors)), tuple(step(*tensors)), rtol=1e-13, atol=1e-13)
    assert graphs == 1


def test_lean_second_derivatives_raise_instead_of_being_wrong() -> None:
    arguments = Arguments.of(3, 2, 4)
    read = arguments.step("competitive", "lean").read
    (first,) = torch.autograd.grad(read.square().sum(), arguments.streams, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.square().sum().backward()


@settings(max_examples=40)
@given(
    count=st.integers(1, 6),
    dim=st.integers(1, 20),
    spread=st.floats(0, 20),
    bias=st.floats(-10, 10),
    seed=st.integers(0, 99),
    kind=st.sampled_from(KINDS),
    backend=st.sampled_from(BACKENDS),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_streams_and_reads_are_bounded(
    count: int, dim: int, spread: float, bias: float, seed: int, kind: GateKind, backend: Backend, dtype: torch.dtype
) -> None:
    """`‖s'‖ ≤ max(‖s‖, ‖F‖)` and `‖h‖ ≤ max ‖s'‖`, up to rounding; the gates are weights."""
    wide = torch.promote_types(dtype, torch.float32)
    streams, output = numbers(count, 5, dim, seed=seed, dtype=dtype), numbers(5, dim, seed=seed + 1, dtype=dtype)
    gate = (spread * numbers(dim, seed=seed + 2, dtype=wide), torch.tensor([bias], dtype=wide))
    pool = spread * numbers(dim, seed=seed + 3, dtype=wide)
    beta = multi_gate_step(streams, None, pool, gate, kind=kind, eps=EPS, backend=backend).gates
    assert beta is not None
    assert ((beta >= 0) & (beta <= 1)).all()
    if kind == "competitive":
        assert (beta.sum(0) <= 1 + 1e-6).all()
    step = multi_gate_step(streams, (output, beta), pool, None, kind=kind, eps=EPS, backend=backend)
    slack = 1 + 8 * torch.finfo(dtype).eps
    before = torch.maximum(streams.double().norm(dim=-1), output.double().norm(dim=-1))
    after = step.streams.double().norm(dim=-1)
    assert (after <= before * slack).all()
    assert (step.read.double().norm(dim=-1) <= after.amax(0) * slack).all()


@each_kind
def test_a_gate_of_zero_or_one_is_exact(kind: GateKind) -> None:
    streams, output = numbers(3, 5, 8, dtype=torch.float32), numbers(5, 8, seed=1, dtype=torch.float32)
    pool = torch.zeros(8)
    for backend in BACKENDS:
        for value, expected in ((0.0, streams), (1.0, output.expand(3, 5, 8))):
            pending = (output, torch.full((3, 5), value))
            step = multi_gate_step(streams, pending, pool, None, kind=kind, eps=EPS, backend=backend)
            torch.testing.assert_close(step.streams, expected, rtol=1e-6, atol=1e-6)


def test_wrong_arguments_are_errors() -> None:
    streams, query = numbers(2, 3, 4), numbers(4)
    with pytest.raises(UsageError, match="gate='soft' is not known; competitive and independent work"):
        multi_gate_step(streams, None, query, None, kind="soft", eps=EPS)
    with pytest.raises(UsageError, match="2 streams need a pool query"):
        multi_gate_step(streams, None, None, None, kind="competitive", eps=EPS)
    with pytest.raises(UsageError, match="not known"):
        multi_gate_step(streams, None, query, None, kind="competitive", eps=EPS, backend="x")


@both
@each_kind
@pytest.mark.parametrize(("streams", "parts"), [*((3, parts) for parts in PARTS), (1, "fg"), (1, "g")])
def test_neither_inputs_nor_upstream_gradients_are_mutated(
    streams: int, parts: str, kind: GateKind, backend: Backend
) -> None:
    """Whether all results are used or one of them."""
    arguments = Arguments.of(streams, 5, 8, parts=parts)
    results = [t for t in arguments.step(kind, backend) if t is not None]
    upstream = [numbers(*t.shape, seed=30 + i).detach() for i, t in enumerate(results)]
    given = [*arguments.tensors(), *upstream]
    before = [(t.detach().clone(), t._version) for t in given]
    for used in (slice(None), slice(0, 1), slice(1, 2)):
        torch.autograd.grad(results[used], arguments.tensors(), upstream[used], retain_graph=True, allow_unused=True)
        for t, (old, version) in zip(given, before, strict=True):
            assert torch.equal(t, old)
            assert t._version == version


@each_kind
def test_narrow_steps_under_autocast_have_wide_gates(kind: GateKind) -> None:
    arguments = Arguments.of(3, 5, 8, dtype=torch.bfloat16)
    for backend in BACKENDS:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            step = arguments.step(kind, backend)
        assert step.gates is not None
        assert step.gates.dtype == torch.float32
        assert step.streams.dtype == step.read.dtype == torch.bfloat16
