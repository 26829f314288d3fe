"""The fused multi-gate step under Triton's interpreter, against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from triton_interpreter import rounding_to_nearest
from triton_tally import Tally, tally

from leadline.ops.multi_gate import triton as fused
from leadline.ops.multi_gate.parts import Parameters, pending_of
from leadline.ops.multi_gate.reference import multi_gate_step_reference
from leadline.ops.multi_gate.triton import multi_gate_step_triton, step, step_gradients

EPS = 1e-6
KINDS = ("competitive", "independent")
PARTS = ("fpg", "pg", "fp", "p", "fg", "g", "f", "")
"""f flush, p pool, g gate: which parts of a step are there. One stream alone needs no pool."""

each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _as_on_a_gpu() -> Iterator[None]:
    """New memory is NaN, so that an element which no kernel writes shows; bfloat16 is rounded to nearest."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    with rounding_to_nearest():
        yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=["held", "again", "parts"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the backward pass looks at streams twice: held, read again, or read again in parts of four columns."""
    if request.param != "held":
        monkeypatch.setattr(fused, "MOST_HELD", 0)
    if request.param == "parts":
        monkeypatch.setattr(fused, "WIDEST", 4)
        monkeypatch.setattr(fused, "PART", 4)
    return str(request.param)


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

    def step(self, kind: str, run: object = multi_gate_step_triton) -> list[Tensor]:
        parameters = Parameters(self.pool_query, self.gate_query, self.gate_bias, kind == "independent", EPS)
        assert callable(run)
        return [t for t in run(self.streams, pending_of(self.output, self.beta), parameters) if t is not None]

    def tensors(self) -> list[Tensor]:
        return [t for t in vars(self).values() if t is not None]

    def double(self) -> Arguments:
        return Arguments(*[None if t is None else t.detach().double().requires_grad_() for t in vars(self).values()])

    def outcome(self, kind: str, run: object = multi_gate_step_triton) -> list[Tensor]:
        """What the step gives and all gradients, for fixed upstream gradients that every dtype holds exactly."""
        given = self.step(kind, run)
        upstream = [(numbers(*t.shape, seed=20 + i).detach() * 16).round().div(16) for i, t in enumerate(given)]
        return [
            *given,
            *torch.autograd.grad(given, self.tensors(), [u.to(t.dtype) for u, t in zip(upstream, given, strict=True)]),
        ]


def assert_alike(found: list[Tensor], truth: list[Tensor]) -> None:
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@each_kind
@pytest.mark.parametrize("shape", [(1, 4), (2, 3, 1), (2, 0, 6), (4, 2, 1, 7), (5, 3, 2, 37), (16, 2, 3)], ids=str)
def test_equals_the_reference(shape: tuple[int, ...], kind: str, way: str) -> None:
    for parts in PARTS if shape[0] == 1 else PARTS[:4]:
        arguments = Arguments.of(*shape, parts=parts)
        assert_alike(arguments.outcome(kind), arguments.outcome(kind, multi_gate_step_reference))


@each_kind
@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)], ids=str)
def test_where_only_some_results_are_used(used: tuple[int, ...], kind: str, way: str) -> None:
    arguments = Arguments.of(3, 2, 7)
    outcomes = []
    for run in (multi_gate_step_triton, multi_gate_step_reference):
        given = arguments.step(kind, run)
        loss = sum(((given[i] + i).square().sum() for i in used), torch.zeros((), dtype=torch.float64))
        outcomes.append(list(torch.autograd.grad(loss, arguments.tensors(), materialize_grads=True, allow_unused=True)))
    assert_alike(*outcomes)


@each_kind
def test_gradcheck(kind: str) -> None:
    arguments = Arguments.of(2, 1, 3)
    assert torch.autograd.gradcheck(lambda *tensors: Arguments(*tensors).step(kind), arguments.tensors())


def plain(
    streams: Tensor, pending: tuple[Tensor, Tensor] | None, parameters: Parameters
) -> tuple[Tensor, Tensor, Tensor]:
    """As plain PyTorch would do it in the streams' dtype."""
    dtype = streams.dtype
    pool, gate, bias, independent, eps = parameters
    if pending is not None:
        streams = streams + pending[1].to(dtype).unsqueeze(-1) * (pending[0] - streams)
    unit = streams * (streams.float().square().mean(-1, keepdim=True) + eps).rsqrt().to(dtype)
    scores = [(unit * q.to(dtype)).sum(-1).float() / unit.shape[-1] ** 0.5 for q in (pool, gate)]
    read = (torch.softmax(scores[0], 0).to(dtype).unsqueeze(-1) * streams).sum(0)
    carry = bias.expand(1, *scores[1].shape[1:])
    made = torch.sigmoid(scores[1] + bias)
    return streams, read, made if independent else torch.softmax(torch.cat((carry, scores[1])), 0)[1:]


@each_kind
@pytest.mark.parametrize("parts", ["fpg", "pg"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("streams", [1, 2, 4, 5, 16])
def test_narrow_streams_are_as_near_the_truth_as_plain_pytorch(
    streams: int, dtype: torch.dtype, parts: str, kind: str
) -> None:
    arguments = Arguments.of(streams, 6, 45, parts=parts, dtype=dtype)
    truth = arguments.double().outcome(kind, multi_gate_step_reference)
    near, found = arguments.outcome(kind, plain), arguments.outcome(kind)
    for right, a, b in zip(truth, near, found, strict=True):
        assert a.dtype == b.dtype
        luck = max(4e-6, torch.finfo(dtype).eps) if right.numel() == 1 else 4e-6
        assert (b - right).norm() <= 2 * (a - right).norm() + luck * right.norm()


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_narrow_streams_are_rounded_once(dtype: torch.dtype, kind: str) -> None:
    """What is read and gated is what is handed on: within a rounding of the reference, which does the same."""
    arguments = Arguments.of(4, 7, 33, dtype=dtype)
    pairs = zip(arguments.outcome(kind), arguments.outcome(kind, multi_gate_step_reference), strict=True)
    for place, (a, b) in enumerate(pairs):
        assert a.dtype == b.dtype
        if a.dtype == torch.bfloat16:
            torch.testing.assert_close(a, b, rtol=2**-7, atol=2**-8)
        elif place == 2:
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_streams_come_back_themselves_where_nothing_is_pending() -> None:
    arguments = Arguments.of(3, 2, 5, parts="pg")
    assert arguments.step("competitive")[0] is arguments.streams
    with torch.no_grad():
        assert arguments.step("competitive")[0] is arguments.streams


@each_kind
@pytest.mark.parametrize("parts", PARTS)
def test_without_gradients(parts: str, kind: str) -> None:
    arguments = Arguments.of(1, 3, 5, parts=parts)
    with torch.no_grad():
        assert_alike(arguments.step(kind), arguments.step(kind, multi_gate_step_reference))


def in_nan(tensor: Tensor, before: int, behind: int) -> Tensor:
    """The same values in the middle of a tensor of NaN: a read beside a row shows."""
    wider = tensor.new_full((*tensor.shape[:-1], before + tensor.shape[-1] + behind), float("nan"))
    wider[..., before : before + tensor.shape[-1]] = tensor.detach()
    return wider[..., before : before + tensor.shape[-1]].requires_grad_()


def transposed(tensor: Tensor, *order: int) -> Tensor:
    """The same values with the dimensions in another order in memory."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.detach().permute(*order).contiguous().permute(*back).requires_grad_()


@pytest.mark.parametrize("dim", [6, 16])
@pytest.mark.parametrize("case", range(4))
def test_any_strides_and_nothing_beside_a_row_is_read(case: int, dim: int, way: str) -> None:
    plain_ones = Arguments.of(3, 2, 4, dim)
    assert plain_ones.output is not None
    assert plain_ones.beta is not None
    streams, output, beta = plain_ones.streams, plain_ones.output, plain_ones.beta
    changed = [
        {"streams": in_nan(streams, 16, 16), "output": in_nan(output, 1, 3), "beta": in_nan(beta, 1, 1)},
        {"streams": transposed(streams, 1, 2, 0, 3), "output": transposed(output, 1, 0, 2)},
        {"streams": transposed(streams, 3, 0, 1, 2), "output": transposed(output, 2, 0, 1)},
        {"streams": in_nan(transposed(streams, 2, 0, 1, 3), 3, 3), "beta": transposed(beta, 2, 1, 0)},
    ][case]
    odd = Arguments(**{**vars(plain_ones), **changed})
    assert_alike(odd.outcome("competitive"), plain_ones.outcome("competitive", multi_gate_step_reference))


def test_upstream_gradients_of_any_strides() -> None:
    arguments = Arguments.of(3, 2, 4, 6)
    weights = numbers(3, 4, 2, seed=9).detach()
    outcomes = []
    for run in (multi_gate_step_triton, multi_gate_step_reference):
        new, read, gates = arguments.step("competitive", run)
        loss = new.sum() + read[:, 1:, ::2].sum() + (gates.transpose(1, 2) * weights).sum()
        outcomes.append(list(torch.autograd.grad(loss, arguments.tensors())))
    assert_alike(*outcomes)


@each_kind
def test_large_scores_and_small_streams(kind: str) -> None:
    arguments = Arguments.of(4, 3, 6)
    assert arguments.pool_query is not None
    assert arguments.gate_query is not None
    with torch.no_grad():
        arguments.streams *= 10.0 ** torch.arange(-4, 0).view(4, 1, 1)
        arguments.pool_query *= 1e3
        arguments.gate_query *= 1e2
    assert_alike(arguments.outcome(kind), arguments.outcome(kind, multi_gate_step_reference))


def test_one_stream_gives_its_pool_query_no_gradient() -> None:
    arguments = Arguments.of(1, 3, 8, parts="p")
    _, read = arguments.step("competitive")
    torch.testing.assert_close(read, arguments.streams[0])
    (dquery,) = torch.autograd.grad(read.square().sum(), [arguments.pool_query])
    assert dquery.abs().max() < 1e-15


def test_two_runs_give_the_same_bits() -> None:
    arguments = Arguments.of(5, 20, 12, dtype=torch.float32)
    for a, b in zip(arguments.outcome("competitive"), arguments.outcome("competitive"), strict=True):
        assert torch.equal(a, b)


def counted_step(arguments: Arguments, keep: bool) -> tuple[list[Tensor], Tally]:
    tensors = [None if t is None else t.detach() for t in vars(arguments).values()]
    with tally() as counted:
        made = step(*tensors, False, EPS, keep)
    return made, counted


@pytest.mark.parametrize(("count", "tokens", "dim"), [(1, 3, 8), (4, 9, 6), (5, 6, 33)])
@pytest.mark.parametrize("flush", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_a_forward_pass_moves_what_is_stated(count: int, tokens: int, dim: int, flush: bool, keep: bool) -> None:
    arguments = Arguments.of(count, tokens, dim, parts="fpg" if flush else "pg", dtype=torch.bfloat16)
    made, counted = counted_step(arguments, keep)
    new, read, _, _ = made
    programs = fused.programs(tokens, fused.forward_tile(torch.bfloat16, dim))
    parameters = programs * (2 * dim + 1)
    rows, small = count * dim + flush * dim, 4 * count if keep else count
    assert counted.read(arguments.streams) == tokens * count * dim
    assert counted.read() == tokens * (rows + flush * count) + parameters
    assert counted.bytes_read == tokens * (2 * rows + 4 * flush * count) + 4 * parameters
    assert counted.written(read) == tokens * dim
    assert not flush or counted.written(new) == tokens * count * dim
    assert counted.written() == tokens * (flush * count * dim + dim + small)
    assert counted.bytes_written == tokens * (2 * (flush * count * dim + dim) + 4 * small)
    assert counted.stray(*[t for t in (*arguments.tensors(), *made) if t.numel()]) == 0


@pytest.mark.parametrize(("count", "tokens", "dim"), [(1, 3, 8), (4, 9, 6), (5, 6, 12)])
@pytest.mark.parametrize("flush", [True, False])
def test_a_backward_pass_moves_what_is_stated(count: int, tokens: int, dim: int, flush: bool, way: str) -> None:
    arguments = Arguments.of(count, tokens, dim, parts="fpg" if flush else "pg", dtype=torch.bfloat16)
    (new, read, gates, stats), _ = counted_step(arguments, keep=True)
    streams, output, beta, pool, gate, _ = [None if t is None else t.detach() for t in vars(arguments).values()]
    upstream = torch.ones_like(streams), torch.ones_like(read), torch.ones_like(gates)
    with tally() as counted:
        step_gradients(streams, output, beta, pool, gate, gates, stats, *upstream, False)
    fixed = fused.backward_tile(torch.bfloat16, dim)
    programs, parts = fused.programs(tokens, fixed), -(-dim // fixed.columns)
    tiles = -(-tokens // fixed.rows)
    twice = not fused.may_hold(count, dim)
    assert twice == (way != "held" or count > 4)
    assert parts == (-(-dim // 4) if way == "parts" else 1)
    assert counted.read(streams) == tokens * count * dim * (1 + twice)
    assert not flush or counted.read(output) == tokens * dim * (1 + (parts > 1))
    assert counted.read(upstream[0]) == tokens * count * dim
    assert counted.read(upstream[1]) == tokens * dim * (1 + (parts > 1))
    rows = (2 + twice) * count * dim + (1 + flush) * dim * (1 + (parts > 1))
    small = (3 + 7 * parts) * count if flush else (3 + 5 * parts) * count
    assert counted.read() == tokens * (rows + small) + 2 * dim * (tiles if parts > 1 else programs)
    assert not flush or not counted.read(new)
    assert counted.written() == tokens * (count * dim + flush * (dim + count)) + programs * (2 * dim + 1)
    assert counted.bytes_written == tokens * (2 * (count + flush) * dim + 4 * flush * count) + programs * (8 * dim + 4)


def test_what_is_kept_for_the_backward_pass_is_small() -> None:
    arguments = Arguments.of(4, 2, 3, 8, dtype=torch.bfloat16)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        made = arguments.step("competitive")
    known = {t.untyped_storage().data_ptr() for t in (*arguments.tensors(), made[2])}
    own = sum(t.numel() for t in saved if t.untyped_storage().data_ptr() not in known)
    assert own == 6 * 3 * 4


@pytest.mark.parametrize("parts", ["fpg", "pg", "p"])
def test_opcheck(parts: str) -> None:
    arguments = Arguments.of(3, 2, 6, parts=parts, dtype=torch.float32)
    given = [None if t is None else t.detach() for t in vars(arguments).values()]
    for keep in (True, False):
        torch.library.opcheck(step, (*given, True, EPS, keep))
    _, read, gates, stats = step(*given, True, EPS, True)
    made = gates if "g" in parts else None
    upstream = torch.ones_like(arguments.streams).detach(), torch.ones_like(read), made
    torch.library.opcheck(step_gradients, (*given[:5], made, stats, *upstream, True))


@each_kind
@pytest.mark.parametrize("dynamic", [None, True])
def test_compiles_whole(dynamic: bool | None, kind: str) -> None:
    def model(streams: Tensor, output: Tensor, beta: Tensor, pool: Tensor, query: Tensor, bias: Tensor) -> Tensor:
        first = Arguments(streams, output, beta, pool, query, bias).step(kind)
        second = Arguments(first[0], first[1].tanh(), first[2], pool, query, bias).step(kind)
        return second[0].sum(0) + second[1] * second[2].sum(0).unsqueeze(-1)

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for tokens in (3, 5):
        tensors = Arguments.of(3, tokens, 6).tensors()
        outcomes = []
        for run in (model, compiled):
            made = run(*tensors)
            outcomes.append([made, *torch.autograd.grad(made.square().sum(), tensors)])
        assert_alike(*outcomes)


def test_a_second_derivative_raises() -> None:
    arguments = Arguments.of(2, 2, 3)
    (grad,) = torch.autograd.grad(arguments.step("competitive")[1].square().sum(), arguments.streams, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
