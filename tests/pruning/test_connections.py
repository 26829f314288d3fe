"""Cutting is passing by, for every connection: blocks and sublayers, saved and loaded again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from leadline.models import Decoder
from leadline.pruning import Amount, Reading, Wish, open_subject, prune, quality
from leadline.stacks import Unit, stack_of

READING = Reading(context=16, stride=16, tokens=128)
DESIGNS = ("prenorm", "mgr(streams=2)", "attnres-block", "attnres", "mhc-lite(streams=2)", "hc(streams=2)", "bhyt")


def wish(blocks: str, unit: str = "block") -> Wish:
    return Wish(amount=Amount(blocks=blocks), reading=READING, unit=unit)


@pytest.mark.parametrize("design", DESIGNS)
def test_every_connection(design: str, trained: Any, saved: Any, tmp_path: Path) -> None:
    subject = open_subject(saved(design))
    data = subject.data(str(trained.data))
    record = prune(subject, data, wish("1,2"), tmp_path / "out")
    assert (record["cut"], record["kept"]) == (["1", "2"], ["0", "3"])
    assert record["checked"]["surgery"] == record["checked"]["reload"] == 0.0
    model = Decoder.load(tmp_path / "out")
    assert len(model.blocks) == 2
    tokens = torch.arange(12).view(1, 12)
    with torch.no_grad(), subject.stack.skipping([Unit(1), Unit(2)]):
        assert torch.equal(subject.stack.logits(tokens), model.eval()(tokens))
    after = quality(stack_of(model), subject.heldout(data, READING))
    assert after.loss == pytest.approx(record["after"]["loss"], abs=1e-6)
    assert after.loss != pytest.approx(record["before"]["loss"], abs=1e-6)


@pytest.mark.parametrize("design", DESIGNS)
def test_sublayers_of_every_connection(design: str, trained: Any, saved: Any, tmp_path: Path) -> None:
    subject = open_subject(saved(design))
    data = subject.data(str(trained.data))
    record = prune(subject, data, wish("0.mlp,2.attention,3", "sublayer"), tmp_path / "out")
    assert record["kept"] == ["0.attention", "1.attention", "1.mlp", "2.mlp"]
    model = Decoder.load(tmp_path / "out")
    assert stack_of(model).sublayers == (("attention",), ("attention", "mlp"), ("mlp",))
