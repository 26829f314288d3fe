"""Chunked cross-entropy: the plain formula's values and gradients, without the logits of the whole batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from leadline.errors import UsageError
from leadline.ops import chunked_cross_entropy


def inputs(dtype: torch.dtype, tokens: int = 37, dim: int = 8, vocabulary: int = 50) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(tokens, dim, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, dim, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(vocabulary, (tokens,), generator=generator)


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    logits = F.linear(hidden, weight)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide, targets, reduction=reduction)


def some_ignored(targets: Tensor) -> Tensor:
    """Two of three don't count, among them a whole chunk of 5."""
    targets = torch.where(torch.arange(len(targets)) % 3 > 0, -100, targets)
    targets[5:10] = -100
    return targets


@pytest.fixture(params=["library", "recomputed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With PyTorch's own chunked loss, where this PyTorch has it, and without."""
    if request.param == "recomputed":
        monkeypatch.delattr(torch.nn, "LinearCrossEntropyOptions", raising=False)
    return request.param


@pytest.mark.parametrize("ignored", [False, True], ids=["all", "some"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("chunk", [1, 5, 37, 100])
def test_values_and_gradients(way: str, chunk: int, dtype: torch.dtype, reduction: str, ignored: bool) -> None:
    hidden, weight, targets = inputs(dtype)
    targets = some_ignored(targets) if ignored else targets
    found = chunked_cross_entropy(hidden, weight, targets, chunk, reduction)
    truth = plain(hidden, weight, targets, reduction)
    assert found.dtype == truth.dtype == torch.promote_types(dtype, torch.float32)
    # Chunks of another shape are other products, and a narrow weight's gradient is a sum of narrow ones.
    precision = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(found, truth, rtol=precision, atol=precision)
    upstream = torch.linspace(-1, 2, found.numel(), dtype=found.dtype).view_as(found) + 3
    gradients = [torch.autograd.grad(loss, (hidden, weight), upstream) for loss in (found, truth)]
    for a, b in zip(*gradients, strict=True):
        scale = float(b.abs().max())
        torch.testing.assert_close(a, b, rtol=4 * precision, atol=4 * precision * scale)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_under_autocast_it_is_the_plain_formula_too(reduction: str) -> None:
    hidden, weight, targets = inputs(torch.float32)
    targets = some_ignored(targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, truth = (f(hidden, weight, targets, *more) for f, more in
                        ((chunked_cross_entropy, (10, reduction)), (plain, (reduction,))))  # fmt: skip
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, truth, rtol=1e-2, atol=1e-2)
    a, b = (torch.autograd.grad(loss.sum(), hidden)[0] for loss in (found, truth))
    torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def test_the_mean_is_over_the_targets_that_count() -> None:
    """64 rows of which 24 count: by hand, in bfloat16."""
    hidden, weight, targets = inputs(torch.bfloat16, tokens=64)
    targets[:40] = -100
    found = chunked_cross_entropy(hidden, weight, targets, 16)
    logits = F.linear(hidden, weight).double()[40:]
    truth = -logits.log_softmax(-1).gather(1, targets[40:, None]).mean()
    assert float(found.detach()) == pytest.approx(float(truth.detach()), rel=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("chunk", [5, 100])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_over_no_targets_at_all_it_is_zero(way: str, dtype: torch.dtype, chunk: int, reduction: str) -> None:
    hidden, weight, targets = inputs(dtype)
    loss = chunked_cross_entropy(hidden, weight, torch.full_like(targets, -100), chunk, reduction)
    assert float(loss.detach()) == 0
    assert all(not gradient.any() for gradient in torch.autograd.grad(loss, (hidden, weight)))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradcheck(way: str, reduction: str) -> None:
    hidden, weight, targets = inputs(torch.float64, tokens=11, dim=3, vocabulary=5)
    targets = some_ignored(targets)
    assert torch.autograd.gradcheck(lambda h, w: chunked_cross_entropy(h, w, targets, 4, reduction), (hidden, weight))


def test_an_unknown_reduction_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"reduction='average' is not known; mean, sum, none work"):
        chunked_cross_entropy(*inputs(torch.float32), 4, "average")


class Largest(TorchDispatchMode):
    """The most numbers that one result had."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else (result,):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return result


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_logits_of_the_whole_batch_never_exist(way: str, reduction: str) -> None:
    hidden, weight, targets = inputs(torch.float32, tokens=640, dim=4, vocabulary=500)
    with Largest() as seen:
        chunked_cross_entropy(hidden, weight, targets, 16, reduction).sum().backward()
    assert seen.numbers <= 640 * 500 / 8


def test_no_tokens_in_a_chunk_is_an_error() -> None:
    with pytest.raises(UsageError, match="chunk=0 is too small"):
        chunked_cross_entropy(*inputs(torch.float32), 0)
