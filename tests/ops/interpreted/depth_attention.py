"""The fused depth-attention read under Triton's interpreter, against the reference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from triton_interpreter import rounding_to_nearest
from triton_tally import tally

from leadline.ops.depth_attention import depth_attention, source_root
from leadline.ops.depth_attention.reference import depth_attention_reference
from leadline.ops.depth_attention.triton import MOST_SOURCES, read_backward, read_forward, read_triton
from leadline.ops.kernels import partial_rows

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "depth_attention.json").read_text())
EPS = 1e-6
COUNTS = (1, 2, 3, 9, 33, 70, MOST_SOURCES + 1)
SHAPES = ((4,), (3, 1), (1, 2, 7), (2, 130), (2, 0, 6))


@pytest.fixture(autouse=True)
def _as_on_a_gpu() -> Iterator[None]:
    """New memory is NaN, so that an element which no kernel writes shows; bfloat16 is rounded to nearest."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    with rounding_to_nearest():
        yield
    torch.use_deterministic_algorithms(False)


def numbers(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(100 * seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def inputs(count: int, *shape: int, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor, Tensor]:
    dim, wide = shape[-1], torch.promote_types(dtype, torch.float32)
    sources = [numbers(*shape, seed=i + 1, dtype=dtype) for i in range(count)]
    return sources, numbers(dim, seed=50, dtype=wide), numbers(dim, seed=51, dtype=wide)


def upstream_of(mix: Tensor) -> Tensor:
    """The same numbers for every dtype: bfloat16 and float16 hold them exactly."""
    return (numbers(*mix.shape, seed=99, dtype=torch.float64).detach() * 16).round().div(16).to(mix.dtype)


def fused(sources: Sequence[Tensor], query: Tensor, gain: Tensor) -> list[Tensor]:
    mix, _ = read_triton(sources, query, gain, EPS)
    return [mix, *torch.autograd.grad(mix, [*sources, query, gain], upstream_of(mix))]


def reference(sources: Sequence[Tensor], query: Tensor, gain: Tensor) -> list[Tensor]:
    mix = depth_attention_reference(sources, query, gain, EPS)
    return [mix, *torch.autograd.grad(mix, [*sources, query, gain], upstream_of(mix))]


def widened(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.detach().double().requires_grad_() for t in tensors]


def surrounded_by_nan(tensor: Tensor, before: int, behind: int) -> Tensor:
    """The same values in the middle of a wider tensor of NaN: a read beside a row shows."""
    wider = tensor.new_full((*tensor.shape[:-1], before + tensor.shape[-1] + behind), float("nan"))
    wider[..., before : before + tensor.shape[-1]] = tensor.detach()
    return wider[..., before : before + tensor.shape[-1]].requires_grad_()


def in_the_middle_of_nan(tensor: Tensor, before: int) -> Tensor:
    """Contiguous, with NaN right before and behind it."""
    flat = tensor.new_full((tensor.numel() + 64,), float("nan"))
    flat[before : before + tensor.numel()] = tensor.detach().flatten()
    return flat[before : before + tensor.numel()].view(tensor.shape).requires_grad_()


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_golden(case: dict[str, Any]) -> None:
    values = {k: torch.tensor(v, dtype=torch.float64).requires_grad_() for k, v in case["inputs"].items()}
    sources = values["sources"].unbind(0)
    mix = depth_attention(sources, values["query"], values["key_gain"], case["config"]["eps"], backend="triton")
    found = torch.autograd.grad((mix * values["probe"]).sum(), [values[name] for name in case["grads"]])
    for tensor, expected in zip([mix, *found], [case["expected"]["mix"], *case["grads"].values()], strict=True):
        torch.testing.assert_close(tensor, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_reference(count: int, shape: tuple[int, ...]) -> None:
    arguments = inputs(count, *shape)
    for found, truth in zip(fused(*arguments), reference(*arguments), strict=True):
        torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-10)


def plain(sources: list[Tensor], query: Tensor, gain: Tensor) -> list[Tensor]:
    """As plain PyTorch would do it in the sources' dtype."""
    dtype, stacked = sources[0].dtype, torch.stack(sources)
    root = (stacked.float().square().mean(-1, keepdim=True) + EPS).rsqrt()
    keys = (stacked * root.to(dtype)) * gain.to(dtype)
    weights = torch.softmax(torch.einsum("ktd,d->kt", keys, query.to(dtype)).float(), 0)
    mix = (weights.to(dtype).unsqueeze(-1) * stacked).sum(0)
    return [mix, *torch.autograd.grad(mix, [*sources, query, gain], upstream_of(mix))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("count", "sharpness"), [(1, 1.0), (2, 0.15), (2, 1.0), (3, 0.15), (9, 1.0), (33, 1.0)])
def test_narrow_sources_are_as_near_the_truth_as_plain_pytorch(
    count: int, sharpness: float, dtype: torch.dtype
) -> None:
    """The error is at most twice plain PyTorch's; of query and gain also where two sources' sharp weights cancel."""
    sources, query, gain = inputs(count, 6, 45, dtype=dtype)
    with torch.no_grad():
        query *= sharpness
    wide = widened([*sources, query, gain])
    outcomes = zip(
        reference(wide[:count], *wide[count:]), plain(sources, query, gain), fused(sources, query, gain), strict=True
    )
    sharp = count == 2 and sharpness == 1
    for place, (truth, near, found) in enumerate(outcomes):
        assert found.dtype == near.dtype
        if not (sharp and 1 <= place <= count):
            assert (found - truth).norm() <= 2 * (near - truth).norm() + 4e-6 * truth.norm()


def test_gradcheck() -> None:
    sources, query, gain = inputs(2, 1, 5)
    assert torch.autograd.gradcheck(lambda q, g, *s: read_triton(s, q, g, EPS)[0], (query, gain, *sources))


@pytest.mark.parametrize("used", [(), (0,), (1, 2), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("reads", [True, False])
def test_gradients_of_later_uses_come_back_through_the_read(used: tuple[int, ...], reads: bool) -> None:
    """Uses of the sources handed on are added; what is not used counts as zero; so does a mix that is not used."""
    sources, query, gain = inputs(4, 3, 6)
    if not (used or reads):
        return
    mix, handed = read_triton(sources, query, gain, EPS)
    truth = depth_attention_reference(sources, query, gain, EPS)

    def loss(mix: Tensor, handed: Sequence[Tensor]) -> Tensor:
        later = sum(((i + 2) * handed[i].square().sum() for i in used), torch.zeros((), dtype=mix.dtype))
        return later + (mix * upstream_of(mix)).sum() if reads else later

    wanted = [*sources, query, gain]
    found = torch.autograd.grad(loss(mix, handed), wanted, allow_unused=True, materialize_grads=True)
    expected = torch.autograd.grad(loss(truth, sources), wanted, allow_unused=True, materialize_grads=True)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_a_chain_of_reads_that_hand_on() -> None:
    sources, query, gain = inputs(3, 4, 5)

    def chain(read: object) -> Tensor:
        bank = list(sources)
        for _ in range(3):
            if read is read_triton:
                mix, handed = read_triton(bank, query, gain, EPS)
            else:
                mix, handed = depth_attention_reference(bank, query, gain, EPS), tuple(bank)
            bank = [*handed, mix.tanh()]
        return bank[-1].square().sum() + bank[0].sum()

    for a, b in zip(
        torch.autograd.grad(chain(read_triton), [*sources, query, gain]),
        torch.autograd.grad(chain(None), [*sources, query, gain]),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dim", [6, 8])
def test_any_strides_and_alignments_and_nothing_beside_a_source_is_read(dim: int) -> None:
    sources, query, gain = inputs(6, 3, 5, dim)
    truth = reference(sources, query, gain)
    odd = [
        surrounded_by_nan(sources[0], 3, 3),
        sources[1].detach().permute(2, 0, 1).contiguous().permute(1, 2, 0).requires_grad_(),
        sources[2].detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_(),
        in_the_middle_of_nan(sources[3], 16),
        in_the_middle_of_nan(sources[4], 1),
        sources[5],
    ]
    for a, b in zip(fused(odd, query, gain), truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_an_upstream_gradient_of_any_strides() -> None:
    sources, query, gain = inputs(3, 4, 6)
    mix, handed = read_triton(sources, query, gain, EPS)
    found = torch.autograd.grad(mix.sum() + handed[1].sum(), [*sources, query, gain])
    truth = depth_attention_reference(sources, query, gain, EPS)
    expected = torch.autograd.grad(truth.sum() + sources[1].sum(), [*sources, query, gain])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_one_source_is_the_identity_with_exactly_zero_gradient() -> None:
    (source,), query, gain = inputs(1, 3, 8)
    mix, (handed,) = read_triton([source], query, gain, EPS)
    dsource, dquery, dgain = torch.autograd.grad(mix, (source, query, gain), upstream_of(mix))
    assert torch.equal(mix, source)
    assert torch.equal(handed, source)
    assert torch.equal(dsource, upstream_of(mix))
    assert not dquery.any()
    assert not dgain.any()


def test_large_scores_and_small_sources() -> None:
    """The maximum is subtracted as it grows; eps counts in float64 as it was given."""
    sources, query, gain = inputs(9, 4, 6)
    steep = [s.detach().mul(10.0 ** (i - 7)).requires_grad_() for i, s in enumerate(sources)]
    for scale in (1.0, 1e3):
        q = (query * scale).detach().requires_grad_()
        for a, b in zip(fused(steep, q, gain), reference(steep, q, gain), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_saved_numbers_are_those_stated() -> None:
    sources, query, gain = inputs(5, 2, 3, 8, dtype=torch.float32)
    mix, root, score, lse = read_forward(sources, query.detach() * gain.detach(), EPS)
    truth = torch.stack([source_root(s.detach(), EPS).flatten() for s in sources], 1)
    scores = torch.stack([(s.detach() * query * gain).sum(-1).flatten() for s in sources], 1) * truth
    torch.testing.assert_close(root, truth)
    torch.testing.assert_close(score, scores)
    torch.testing.assert_close(lse, scores.logsumexp(1))
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        mix, _ = read_triton(sources, query, gain, EPS)
    known = {t.untyped_storage().data_ptr() for t in (*sources, query, gain, mix)}
    own = sum(t.numel() for t in saved if t.untyped_storage().data_ptr() not in known)
    assert own == 6 * (5 + 5 + 1)


def test_two_runs_give_the_same_bits() -> None:
    arguments = inputs(5, 20, 12, dtype=torch.float32)
    for a, b in zip(fused(*arguments), fused(*arguments), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("count", "dim", "tokens", "given"), [(2, 5, 7, 0), (9, 12, 6, 4), (33, 3, 5, 33)])
def test_bytes_moved_are_those_stated(count: int, dim: int, tokens: int, given: int) -> None:
    """Each source is read once forward and once backward, and nothing else of its size but what the table says."""
    sources, query, gain = inputs(count, tokens, dim, dtype=torch.bfloat16)
    direction = (query * gain).detach()
    with tally() as counted:
        mix, root, score, lse = read_forward(sources, direction, EPS)
    programs = -(-tokens // 4)
    assert [counted.read(source) for source in sources] == [tokens * dim] * count
    assert counted.read() == count * tokens * dim + programs * dim
    assert counted.written(mix) == tokens * dim
    assert counted.written() == tokens * (dim + 2 * count + 1)
    assert counted.bytes_read == 2 * count * tokens * dim + 4 * programs * dim
    assert counted.bytes_written == 2 * tokens * dim + 4 * tokens * (2 * count + 1)
    assert counted.stray(*sources, direction, mix, root, score, lse) == 0

    handed = [torch.ones_like(source) if i < given else None for i, source in enumerate(sources)]
    upstream = upstream_of(mix)
    with tally() as counted:
        grads, _ = read_backward(upstream, mix, root, score, lse, sources, handed, direction)
    rows = partial_rows(tokens)
    assert [counted.read(source) for source in sources] == [tokens * dim] * count
    assert all(counted.read(grad) == tokens * dim for grad in handed if grad is not None)
    assert not counted.read(grads)
    assert counted.read() == tokens * ((count + given + 2) * dim + 2 * count + 1) + rows * dim
    assert [counted.written(grad) for grad in grads] == [tokens * dim] * count
    assert counted.written() == count * tokens * dim + rows * dim


def test_a_gradient_that_is_not_handed_in_is_not_read() -> None:
    """Autograd makes no zeros for sources that nothing uses later, and the kernel reads only what came in."""
    count, dim, tokens = 4, 8, 6
    sources, query, gain = inputs(count, tokens, dim)
    mix, handed = read_triton(sources, query, gain, EPS)
    with tally() as counted:
        torch.autograd.grad(mix.sum() + handed[2].sum(), [*sources, query, gain])
    assert counted.read() == tokens * ((count + 1 + 2) * dim + 2 * count + 1) + partial_rows(tokens) * dim


def test_bytes_moved_between_launches_are_those_stated() -> None:
    count, dim, tokens = MOST_SOURCES + 2, 3, 2
    sources, query, gain = inputs(count, tokens, dim, dtype=torch.float32)
    direction, programs, rows = (query * gain).detach(), -(-tokens // 4), partial_rows(tokens)
    with tally() as counted:
        mix, root, score, lse = read_forward(sources, direction, EPS)
    assert counted.read() == count * tokens * dim + 2 * programs * dim + tokens * (dim + 1)
    assert counted.written() == tokens * (dim + 2 * count + 1) + tokens * (dim + 1)
    with tally() as counted:
        read_backward(upstream_of(mix), mix, root, score, lse, sources, [None] * count, direction)
    assert counted.read() == tokens * ((count + 4) * dim + 2 * count + 2) + 2 * rows * dim
    assert counted.written() == count * tokens * dim + 2 * rows * dim


@pytest.mark.parametrize("count", [2, 9])
def test_opcheck(count: int) -> None:
    sources, query, gain = inputs(count, 2, 3, 6, dtype=torch.float32)
    flat, direction = [s.detach() for s in sources], (query * gain).detach()
    torch.library.opcheck(read_forward, (flat, direction, EPS))
    mix, root, score, lse = read_forward(flat, direction, EPS)
    handed = [None, *[torch.ones_like(s) for s in flat[1:]]]
    torch.library.opcheck(read_backward, (upstream_of(mix), mix, root, score, lse, flat, handed, direction))


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiles_whole(dynamic: bool | None) -> None:
    def model(sources: list[Tensor], query: Tensor, gain: Tensor) -> Tensor:
        mix, handed = read_triton(sources, query, gain, EPS)
        again, _ = read_triton([*handed, mix.tanh()], query, gain, EPS)
        return again

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for tokens in (3, 5):
        sources, query, gain = inputs(3, tokens, 6)
        outcomes = []
        for run in (model, compiled):
            mix = run(sources, query, gain)
            outcomes.append([mix, *torch.autograd.grad(mix, [*sources, query, gain], upstream_of(mix))])
        for a, b in zip(*outcomes, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_without_gradients_the_sources_come_back_themselves() -> None:
    sources, query, gain = inputs(4, 3, 6)
    with torch.no_grad():
        mix, handed = read_triton(sources, query, gain, EPS)
    assert all(a is b for a, b in zip(handed, sources, strict=True))
    torch.testing.assert_close(mix, depth_attention_reference(sources, query, gain, EPS).detach())


def test_a_second_derivative_raises() -> None:
    sources, query, gain = inputs(2, 2, 3)
    mix, _ = read_triton(sources, query, gain, EPS)
    (grad,) = torch.autograd.grad(mix.square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
