"""Perplexity on text whose loss is known, and what the stride does to it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from toy_stack import ToyStack

from leadline.data import Batch, ByteTokenizer, DataSet, prepare
from leadline.errors import LeadlineError, UsageError
from leadline.hub.open import OpenedModel
from leadline.hub.text import Text, heldout_batches
from leadline.probes.watch import IGNORED
from leadline.pruning.text import EvaluationSettings, quality
from leadline.stacks import Unit


def text(tokens: list[int], targets: list[int], context: int = 3, stride: int = 3) -> Text:
    batch = Batch(torch.tensor([tokens]), torch.tensor([targets]))
    return Text(batches=[batch], bytes_per_token=2.0, context=context, stride=stride, tokens=len(targets), begins=None)


def toy(scale: float) -> ToyStack:
    return ToyStack(scale * torch.eye(4), [torch.zeros(4, 4)])


def test_loss_perplexity_bits_and_accuracy() -> None:
    # The model says the token that it reads, with logit 2 of four.
    found = quality(toy(2.0), text([0, 1, 2], [0, 1, 3]))
    right, wrong = math.log(math.exp(2) + 3) - 2, math.log(math.exp(2) + 3)
    assert found.loss == pytest.approx((2 * right + wrong) / 3, rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    assert found.bits_per_byte == pytest.approx(found.loss / math.log(2) / 2)
    assert found.accuracy == pytest.approx(2 / 3)
    assert (found.tokens, found.context, found.stride) == (3, 3, 3)


def test_what_does_not_count() -> None:
    found = quality(toy(2.0), text([0, 1, 2], [IGNORED, IGNORED, 2], stride=1))
    assert found.loss == pytest.approx(math.log(math.exp(2) + 3) - 2, rel=1e-6)
    assert (found.accuracy, found.tokens, found.stride) == (1.0, 1, 1)


def test_the_pass_is_as_the_stack_is() -> None:
    stack = ToyStack(torch.eye(4), [torch.eye(4)])
    whole = quality(stack, text([0, 1], [0, 1]))
    with stack.skipping([Unit(0)]):
        assert quality(stack, text([0, 1], [0, 1])).loss > whole.loss
    assert quality(stack, text([0, 1], [0, 1])) == whole


@pytest.mark.parametrize("scale", [math.nan, 1e6])
def test_a_loss_that_is_no_use(scale: float) -> None:
    with pytest.raises(LeadlineError, match="the held-out loss is"):
        quality(toy(scale), text([0, 1], [1, 0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0, "stride": 1}, "context=0 is too small"),
        ({"context": 4, "stride": 0}, "stride=0 is too small"),
        ({"context": 4, "stride": 5}, "stride=5 is more than the context; 1 to 4 work"),
        ({"context": 4, "stride": 4, "batch_size": 0}, "batch_size=0 is too small"),
    ],
)
def test_readings_that_do_not_work(options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EvaluationSettings(**options)


def test_the_stride_is_told_and_matters(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("0123456789" * 40)
    prepare([tmp_path / "text.txt"], tmp_path / "set", heldout=0.5)
    data = DataSet.open(tmp_path / "set")
    stack = ToyStack(torch.eye(256), [torch.zeros(256, 256)])
    opened = OpenedModel(stack, ByteTokenizer(), "leadline", tmp_path)
    for stride in (8, 2):
        found = heldout_batches(opened, data, context=8, stride=stride)
        seen = quality(stack, found)
        assert (seen.context, seen.stride) == (8, stride)
        assert seen.tokens == found.tokens == sum(int((b.targets != IGNORED).sum()) for b in found.batches)
