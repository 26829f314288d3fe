"""Cross-entropy in pieces: the plain formula's values and gradients, without the logits of the whole batch."""

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


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = F.linear(hidden, weight)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets)


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


def test_no_tokens_in_a_piece_is_an_error() -> None:
    with pytest.raises(UsageError, match="chunk=0 is too small"):
        chunked_cross_entropy(*inputs(torch.float32), 0)
