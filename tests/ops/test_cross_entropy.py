"""Cross-entropy in chunks: the plain formula's values and gradients, without the logits of the whole batch."""

from __future__ import annotations

import contextlib

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
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets, reduction=reduction)


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("chunk", [1, 5, 37, 100])
def test_values_and_gradients(chunk: int, library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not library:
        monkeypatch.delattr(torch.nn, "LinearCrossEntropyOptions", raising=False)
    hidden, weight, targets = inputs(torch.float64)
    found, truth = chunked_cross_entropy(hidden, weight, targets, chunk), plain(hidden, weight, targets)
    torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad(3 * found, (hidden, weight)), torch.autograd.grad(3 * truth, (hidden, weight)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("way", ["bfloat16", "autocast"])
def test_narrow_numbers_are_those_of_the_plain_formula(way: str) -> None:
    hidden, weight, targets = inputs(torch.bfloat16 if way == "bfloat16" else torch.float32)
    context = torch.autocast("cpu", dtype=torch.bfloat16) if way == "autocast" else contextlib.nullcontext()
    with context:
        found, truth = chunked_cross_entropy(hidden, weight, targets, 10), plain(hidden, weight, targets)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, truth, rtol=1e-6, atol=1e-6)
    a, b = (torch.autograd.grad(loss, hidden)[0] for loss in (found, truth))
    torch.testing.assert_close(a, b)


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


@pytest.mark.parametrize("library", [True, False])
def test_the_logits_of_the_whole_batch_never_exist(library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not library:
        monkeypatch.delattr(torch.nn, "LinearCrossEntropyOptions", raising=False)
    hidden, weight, targets = inputs(torch.float32, tokens=640, dim=4, vocabulary=500)
    with Largest() as seen:
        chunked_cross_entropy(hidden, weight, targets, 16).backward()
    assert seen.numbers <= 640 * 500 / 8


def test_no_tokens_in_a_chunk_is_an_error() -> None:
    with pytest.raises(UsageError, match="chunk=0 is too small"):
        chunked_cross_entropy(*inputs(torch.float32), 0)
    with pytest.raises(UsageError, match="'max' is not known; mean, sum, none work"):
        chunked_cross_entropy(*inputs(torch.float32), 4, reduction="max")


WAYS = [torch.float64, torch.float32, torch.bfloat16, torch.float16, "autocast"]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("chunk", [16, 64, 100])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_targets_that_do_not_count(way: torch.dtype | str, chunk: int, reduction: str) -> None:
    dtype = way if isinstance(way, torch.dtype) else torch.float32
    hidden, weight, targets = inputs(dtype, tokens=64)
    targets[torch.randperm(64, generator=torch.Generator().manual_seed(2))[:40]] = -100
    context = torch.autocast("cpu", dtype=torch.bfloat16) if way == "autocast" else contextlib.nullcontext()
    with context:
        found = chunked_cross_entropy(hidden, weight, targets, chunk, reduction=reduction)
        truth = plain(hidden, weight, targets, reduction)
    assert found.shape == truth.shape
    torch.testing.assert_close(found, truth, rtol=1e-6, atol=1e-6)
    # A gradient of its own for every token, where there is one.
    upstream = torch.rand(truth.shape, generator=torch.Generator().manual_seed(3)).to(truth.dtype)
    grads = [torch.autograd.grad(loss, (hidden, weight), upstream) for loss in (found, truth)]
    wide = 1e-2 if dtype.itemsize == 2 or way == "autocast" else 1e-5
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=wide, atol=wide * float(b.abs().max()))


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("chunk", [16, 100])
def test_no_target_counts(way: torch.dtype | str, chunk: int) -> None:
    hidden, weight, targets = inputs(way if isinstance(way, torch.dtype) else torch.float32, tokens=40)
    context = torch.autocast("cpu", dtype=torch.bfloat16) if way == "autocast" else contextlib.nullcontext()
    with context:
        found = chunked_cross_entropy(hidden, weight, torch.full_like(targets, -100), chunk)
    assert float(found.detach()) == 0.0
    for gradient in torch.autograd.grad(found, (hidden, weight)):
        assert float(gradient.abs().max()) == 0.0


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradcheck(reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.nn, "LinearCrossEntropyOptions", raising=False)  # its backward pass runs once alone
    hidden, weight, targets = inputs(torch.float64, tokens=9, dim=3, vocabulary=5)
    targets[::4] = -100

    def loss(hidden: Tensor, weight: Tensor) -> Tensor:
        return chunked_cross_entropy(hidden, weight, targets, 4, reduction=reduction)

    assert torch.autograd.gradcheck(loss, (hidden, weight))
