"""The fused stream operators under Triton's interpreter, against formulas written out here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from triton_interpreter import rounding_to_nearest
from triton_tally import tally

from leadline.errors import UsageError
from leadline.ops.stream_mixing import triton_hyper, triton_manifold, triton_write
from leadline.ops.stream_mixing.triton import hyper_read, manifold_read, write_streams
from leadline.ops.stream_mixing.triton_rows import weight_gradient, weight_tile

EPS = 1e-6
SIZES = ((7, 1, 33), (5, 2, 8), (6, 3, 7), (9, 4, 130), (4, 5, 40), (0, 4, 6))
"""Tokens, streams, width."""
KINDS = ("hyper", "sinkhorn", "birkhoff", "write")
Outcome = tuple[Tensor, ...]


@pytest.fixture(autouse=True)
def _as_on_a_gpu() -> Iterator[None]:
    """New memory is NaN, so that an element which no kernel writes shows; bfloat16 is rounded to nearest."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    with rounding_to_nearest():
        yield
    torch.use_deterministic_algorithms(False)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(100 * seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def inputs(kind: str, tokens: int, streams: int, dim: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """What an operator differentiates with respect to; coefficients are float32 or wider and have odd strides."""
    wide = torch.promote_types(dtype, torch.float32)
    x = numbers(tokens, streams, dim, seed=1, dtype=dtype)
    if kind == "write":
        mixing = numbers(streams, streams, tokens, seed=3, dtype=wide)
        return [x, numbers(tokens, dim, seed=2, dtype=dtype), mixing, numbers(streams, tokens, seed=4, dtype=wide)]
    if kind == "hyper":
        k = streams + 2
        small = (numbers(k, streams, seed=3, dtype=wide), numbers(k, seed=4, dtype=wide))
        return [x, numbers(k, dim, seed=2, dtype=wide), *small]
    k = 2 * streams + (streams**2 if kind == "sinkhorn" else math.factorial(streams))
    weight = numbers(streams * dim, k, seed=2, dtype=wide)
    with torch.no_grad():
        weight *= 0.1
    return [x, weight, numbers(k, seed=3, dtype=wide), numbers(k, seed=4, dtype=wide)]


def fused(kind: str, values: Sequence[Tensor], iterations: int = 6) -> Outcome:
    a, b, c, d = values
    if kind == "write":
        return (write_streams(a, b, c.permute(2, 0, 1), d.t()),)
    if kind == "hyper":
        return hyper_read(a, b, c, d, EPS)
    return manifold_read(a, b.t(), c, d, kind, iterations, EPS)


def truth(kind: str, values: Sequence[Tensor], iterations: int = 6) -> Outcome:
    """Plain PyTorch, token for token as the formulas are printed."""
    a, b, c, d = values
    dtype = torch.promote_types(a.dtype, torch.float32)
    streams = a.shape[1]
    x = a.to(dtype)
    if kind == "write":
        mixed = torch.einsum("ijt,tjd->tid", c, x) + torch.einsum("it,td->tid", d, b.to(dtype))
        return (mixed.to(a.dtype),)
    if kind == "hyper":
        rms = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()
        made = c.t() + d * torch.tanh(torch.einsum("tid,kd->tik", rms, b))
        pre, post = made[..., 0], made[..., -1]
        mixing = torch.stack([made[..., 1 + j] for j in range(streams)], 1)
    else:
        v = x.flatten(1)
        u = c + d * ((v / (v.square().mean(-1, keepdim=True) + EPS).sqrt()) @ b)
        pre, post = torch.sigmoid(u[:, :streams]), 2 * torch.sigmoid(u[:, streams : 2 * streams])
        mixing = _mixing(kind, u[:, 2 * streams :], streams, iterations)
    return pre, (pre.unsqueeze(-1) * x).sum(1).to(a.dtype), mixing, post, a


def _mixing(kind: str, u: Tensor, streams: int, iterations: int) -> Tensor:
    if kind == "birkhoff":
        orders = list(itertools.permutations(range(streams)))
        weights = torch.softmax(u, -1)
        return torch.stack(
            [
                torch.stack([sum(weights[:, r] for r, o in enumerate(orders) if o[i] == j) for j in range(streams)], -1)
                for i in range(streams)
            ],
            1,
        )
    m = torch.exp(u.unflatten(-1, (streams, streams)))
    for _ in range(iterations):
        m = m / m.sum(1, keepdim=True)
        m = m / m.sum(2, keepdim=True)
    return m


def upstream_of(output: Tensor, place: int) -> Tensor:
    """The same numbers for every dtype: bfloat16 and float16 hold them exactly."""
    return (numbers(*output.shape, seed=90 + place).detach() * 16).round().div(16).to(output.dtype)


def differentiated(outputs: Outcome, wanted: Sequence[Tensor]) -> list[Tensor]:
    grads = torch.autograd.grad(outputs, wanted, [upstream_of(o, i) for i, o in enumerate(outputs)])
    return [*outputs, *grads]


def close(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-9) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_formulas(kind: str, sizes: tuple[int, int, int]) -> None:
    values = inputs(kind, *sizes)
    close(differentiated(fused(kind, values), values), differentiated(truth(kind, values), values))


@pytest.mark.parametrize(("kind", "streams"), [("hyper", 16), ("hyper", 33), ("sinkhorn", 16), ("sinkhorn", 33)])
@pytest.mark.parametrize("dim", [18])
def test_many_streams(kind: str, streams: int, dim: int) -> None:
    values = inputs(kind, 3, streams, dim)
    close(differentiated(fused(kind, values, 3), values), differentiated(truth(kind, values, 3), values), 1e-8)


@pytest.mark.parametrize(("streams", "dim"), [(8, 70), (9, 21), (16, 70), (33, 5)])
def test_many_streams_are_written(streams: int, dim: int) -> None:
    values = inputs("write", 3, streams, dim)
    close(differentiated(fused("write", values), values), differentiated(truth("write", values), values))


@pytest.mark.parametrize("iterations", [1, 2, 20, 33])
def test_any_number_of_iterations(iterations: int) -> None:
    values = inputs("sinkhorn", 18, 4, 6)
    found, expected = fused("sinkhorn", values, iterations), truth("sinkhorn", values, iterations)
    close(differentiated(found, values), differentiated(expected, values))


def test_sinkhorn_stands_logits_that_exp_cannot() -> None:
    values = inputs("sinkhorn", 2, 2, 4)
    with torch.no_grad():
        values[2][4:] = torch.tensor([5000.0, -5000.0, 5000.0, 4000.0])
    outcome = differentiated(fused("sinkhorn", values, 20), values)
    assert all(torch.isfinite(t).all() for t in outcome)
    torch.testing.assert_close(outcome[2].sum(2), torch.ones(2, 2, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_narrow_streams_are_as_near_the_truth_as_plain_pytorch(kind: str, dtype: torch.dtype) -> None:
    values = inputs(kind, 7, 3, 45, dtype)
    exact = [v.detach().double().requires_grad_() for v in values]
    outcomes = (differentiated(run(kind, v), v) for run, v in ((truth, exact), (truth, values), (fused, values)))
    for true, near, found in zip(*outcomes, strict=True):
        assert found.dtype == near.dtype
        assert (found - true).norm() <= 2 * (near - true).norm() + 1e-6 * true.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_any_strides_and_nothing_beside_a_row_is_read(kind: str) -> None:
    values = inputs(kind, 5, 3, 6)
    expected = differentiated(truth(kind, values), values)
    x = values[0].detach()
    beside = x.new_full((5, 4, 11), float("nan"))
    beside[:, :3, 2:8] = x
    for odd in (
        beside[:, :3, 2:8],
        x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
        x.transpose(0, 1).contiguous().transpose(0, 1),
    ):
        own = [odd.requires_grad_(), *values[1:]]
        close(differentiated(fused(kind, own), own), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_upstream_gradients_of_any_strides(kind: str) -> None:
    values = inputs(kind, 4, 3, 6)
    outcomes = [torch.autograd.grad([o.sum() for o in run(kind, values)], values) for run in (fused, truth)]
    close(*outcomes)


@pytest.mark.parametrize("kind", ["hyper", "sinkhorn", "birkhoff"])
@pytest.mark.parametrize("used", [(0,), (1,), (2,), (3,), (4,), (1, 4)], ids=str)
def test_what_is_not_used_counts_as_zero(kind: str, used: tuple[int, ...]) -> None:
    values = inputs(kind, 4, 3, 6)
    outcomes = []
    for run in (fused, truth):
        outputs = run(kind, values)
        loss = sum((outputs[i] * upstream_of(outputs[i], i)).sum() for i in used)
        outcomes.append(torch.autograd.grad(loss, values, allow_unused=True, materialize_grads=True))
    close(*outcomes)


@pytest.mark.parametrize("kind", ["hyper", "sinkhorn", "birkhoff"])
def test_a_read_and_its_write_pass_one_gradient_back(kind: str) -> None:
    """Two sites: read, a sublayer, write of the streams handed on."""
    values = inputs(kind, 5, 4, 12)

    def network(read: Callable[..., Outcome], write: Callable[..., Tensor]) -> Tensor:
        streams = values[0]
        for _ in range(2):
            _, h, mixing, post, streams = read(kind, [streams, *values[1:]])
            streams = write(streams, torch.tanh(h), mixing, post)
        return streams.square().sum()

    def plain(streams: Tensor, output: Tensor, mixing: Tensor, post: Tensor) -> Tensor:
        return torch.einsum("tij,tjd->tid", mixing, streams) + post.unsqueeze(-1) * output.unsqueeze(1)

    found = torch.autograd.grad(network(fused, write_streams), values)
    close(found, torch.autograd.grad(network(truth, plain), values), 1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_no_token_reaches_another(kind: str) -> None:
    """An infinite or missing number in one token leaves all others as they were, and the gradients of their streams."""
    values = inputs(kind, 6, 3, 20)
    for bad in (float("inf"), float("nan")):
        spoilt = [v.detach().clone().requires_grad_() for v in values]
        with torch.no_grad():
            spoilt[0][2, 1, 4] = bad
        others = [0, 1, 3, 4, 5]
        for sound, odd in zip(fused(kind, values), fused(kind, spoilt), strict=True):
            assert torch.equal(sound[others], odd[others])
        before, after = (differentiated(fused(kind, v), v[:1])[-1] for v in (values, spoilt))
        assert torch.equal(before[others], after[others])


@pytest.mark.parametrize("kind", KINDS)
def test_two_runs_give_the_same_bits(kind: str) -> None:
    values = inputs(kind, 70, 4, 20, torch.float32)
    first, second = (differentiated(fused(kind, values), values) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(kind: str) -> None:
    values = inputs(kind, 2, 3, 4)
    assert torch.autograd.gradcheck(lambda *v: fused(kind, v), values, fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_derivative_raises(kind: str) -> None:
    values = inputs(kind, 2, 2, 3)
    output = fused(kind, values)[0]
    (grad,) = torch.autograd.grad(output.square().sum(), values[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_without_gradients_nothing_is_kept_and_the_streams_are_themselves(kind: str) -> None:
    values = inputs(kind, 4, 3, 6)
    with torch.no_grad():
        outputs = fused(kind, values)
    assert kind == "write" or outputs[-1] is values[0]
    close(outputs, [o.detach() for o in truth(kind, values)])


def test_what_cannot_work_says_so() -> None:
    values = inputs("sinkhorn", 2, 6, 4)
    with pytest.raises(UsageError, match="at most 5"):
        manifold_read(values[0], values[1].t(), *values[2:], "birkhoff", 1, EPS)
    with pytest.raises(UsageError, match="sinkhorn and birkhoff"):
        manifold_read(values[0], values[1].t(), *values[2:], "other", 1, EPS)
    with pytest.raises(UsageError, match="at least 1"):
        manifold_read(values[0], values[1].t(), *values[2:], "sinkhorn", 0, EPS)


def operators(kind: str, values: Sequence[Tensor], iterations: int = 6) -> list[tuple[Any, tuple[Any, ...]]]:
    """The forward and the backward operator, and arguments."""
    a, b, c, d = (v.detach() for v in values)
    if kind == "write":
        arguments = (a, b, c.permute(2, 0, 1), d.t())
        new = triton_write.forward(*arguments)
        return [(triton_write.forward, arguments), (triton_write.backward, (new, *arguments))]
    if kind == "hyper":
        module: Any = triton_hyper
        arguments = (a, b, c, d, EPS)
        known = (a, b, c, d)
    else:
        module = triton_manifold
        arguments = (a, b.t(), c, d, kind, iterations, EPS)
        known = (a, b.t(), c, d, kind, iterations)
    pre, h, mixing, post, y, root = module.forward(*arguments)
    return [(module.forward, arguments), (module.backward, (pre, h, mixing, post, torch.ones_like(a), *known, y, root))]


@pytest.mark.parametrize("kind", KINDS)
def test_opcheck(kind: str) -> None:
    for operator, arguments in operators(kind, inputs(kind, 3, 3, 6, torch.float32)):
        torch.library.opcheck(operator, arguments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_compiles_whole(kind: str, dynamic: bool | None) -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda *v: fused(kind, v), fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for tokens in (3, 5):
        values = inputs(kind, tokens, 3, 6)
        close(differentiated(compiled(*values), values), differentiated(fused(kind, values), values), 1e-12)


def test_hyper_moves_what_it_states() -> None:
    tokens, streams, dim = 21, 3, 70
    k, state = streams + 2, tokens * streams * dim
    values = inputs("hyper", tokens, streams, dim, torch.bfloat16)
    (forward, arguments), (backward, given) = operators("hyper", values)
    x, weight, static, scale, _ = arguments
    tile = triton_hyper.hyper_tile(streams, dim, x.dtype, summed=True)
    programs, steps = -(-tokens // (tile.rows // streams)), -(-dim // tile.columns)
    with tally() as counted:
        results = forward(*arguments)
    assert counted.read(x) == 2 * state
    assert counted.read(weight) == programs * k * dim
    assert counted.read() == 2 * state + programs * k * (dim + 1) + tokens * streams * (k + steps)
    assert counted.written(results[1]) == tokens * dim
    assert counted.written() == tokens * dim + tokens * streams * (2 * k + 1)
    assert counted.stray(x, weight, static, scale, *results) == 0

    tile = triton_hyper.hyper_tile(streams, dim, x.dtype, summed=False)
    programs = -(-tokens // (tile.rows // streams))
    own, partial = tokens * streams * k, gradient_moves(x, tokens * streams, k, per_stream=True)
    dh, handed = given[1], given[4]
    with tally() as counted:
        results = backward(*given)
    assert counted.read(x) == 2 * state + state
    assert counted.read(dh) == 2 * state
    assert counted.read(handed) == state
    expected = 5 * state + programs * k * (dim + 1) + 2 * own + 2 * tokens * streams
    assert counted.read() == expected + partial[0]
    assert counted.written(results[0]) == state
    assert counted.written() == state + 2 * own + partial[1]


def gradient_moves(x: Tensor, rows: int, k: int, per_stream: bool) -> tuple[int, int]:
    """Elements that the weight's gradient reads and writes, counted alone and against what is stated."""
    tokens, streams, dim = x.shape
    given = numbers(rows, k, dtype=torch.float32).detach()
    with tally() as counted:
        weight_gradient(x, given, per_stream)
    blocks = -(-k // 64)
    chunks = -(-dim // weight_tile(dim, k, x.dtype).columns) * (1 if per_stream else streams)
    assert counted.read(x) == blocks * tokens * streams * dim
    assert counted.read() == blocks * tokens * streams * dim + chunks * rows * k
    width = dim if per_stream else streams * dim
    assert counted.written() % (k * width) == 0
    return counted.read(), counted.written()


@pytest.mark.parametrize("kind", ["sinkhorn", "birkhoff"])
@pytest.mark.parametrize("streams", [4, 5])
def test_manifold_moves_what_it_states(kind: str, streams: int) -> None:
    tokens, dim = 21, 40
    state = tokens * streams * dim
    values = inputs(kind, tokens, streams, dim, torch.bfloat16)
    (forward, arguments), (backward, given) = operators(kind, values)
    x, weight = arguments[:2]
    k = weight.shape[0]
    tile = triton_manifold.manifold_tile(streams, dim, x.dtype, summed=True)
    blocks, programs = -(-k // triton_manifold.MOST_COUNTS), -(-tokens // tile.rows)
    with tally() as counted:
        results = forward(*arguments)
    h, y = results[1], results[4]
    assert counted.read(x) == (blocks + 1) * state
    assert counted.read(weight) == programs * k * streams * dim
    assert counted.read(y) == tokens * k
    assert counted.written(h) == tokens * dim
    assert counted.written() == tokens * (dim + streams**2 + 2 * streams + k + 1)

    tile = triton_manifold.manifold_tile(streams, dim, x.dtype, summed=False)
    programs, steps = -(-tokens // tile.rows), -(-dim // tile.columns)
    partial = gradient_moves(x, tokens, k, per_stream=False)
    dh, dmixing, handed, y = given[1], given[2], given[4], given[-2]
    with tally() as counted:
        results = backward(*given)
    assert counted.read(x) == 2 * state + -(-k // 64) * state
    assert counted.read(dh) == tokens * dim + state
    assert counted.read(handed) == state
    assert counted.read(weight) == programs * k * streams * dim
    assert counted.read(y) == 2 * tokens * k + steps * tokens * streams
    assert counted.read(dmixing) == tokens * streams**2
    assert counted.written(results[0]) == state
    assert counted.written() == state + 2 * tokens * k + partial[1]


@pytest.mark.parametrize(("streams", "dim"), [(4, 300), (3, 70), (16, 70)])
def test_the_write_moves_what_it_states(streams: int, dim: int) -> None:
    tokens = 5
    state, small = tokens * streams * dim, tokens * streams * (streams + 1)
    (forward, arguments), (backward, given) = operators("write", inputs("write", tokens, streams, dim, torch.bfloat16))
    blocks = -(-dim // triton_write.forward_tile(streams, dim, torch.bfloat16).columns)
    with tally() as counted:
        new = forward(*arguments)
    assert counted.read(arguments[0]) == state
    assert counted.read(arguments[1]) == tokens * dim
    assert counted.read() == state + tokens * dim + blocks * small
    assert counted.written(new) == counted.written() == state

    blocks = -(-dim // triton_write.backward_tile(streams, dim, torch.bfloat16).columns)
    with tally() as counted:
        results = backward(*given)
    coefficients = tokens * streams * (1 + (blocks if streams <= triton_write.MOST_IN_LANES else 1) * streams)
    assert counted.read() == 2 * state + tokens * dim + coefficients
    assert [counted.written(r) for r in results[:2]] == [state, tokens * dim]
    assert counted.written() == state + tokens * dim + small


def test_saved_numbers_are_those_stated() -> None:
    tokens, streams, dim = 5, 3, 8
    for kind in KINDS:
        values = inputs(kind, tokens, streams, dim, torch.float32)
        saved: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=saved: kept.append(t) or t, lambda t: t):
            fused(kind, values)
        known = {v.untyped_storage().data_ptr() for v in values}
        own = sum(t.numel() for t in saved if t.untyped_storage().data_ptr() not in known)
        k = streams + 2 if kind == "hyper" else values[2].shape[0]
        stated = {"write": 0, "hyper": tokens * streams * (k + 1)}.get(kind, tokens * (k + 1))
        assert own == stated
