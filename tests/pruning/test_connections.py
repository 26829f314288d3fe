"""Cutting is passing by, for every connection: blocks and sublayers, saved and loaded again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from leadline.hub import heldout_batches
from leadline.models import Decoder
from leadline.pruning import Amount, EvaluationSettings, PruneConfig, dataset_for, open_model, prune, quality
from leadline.stacks import Unit, stack_of

READING = EvaluationSettings(context=16, stride=16, tokens=128)
DESIGNS = ("prenorm", "mgr(streams=2)", "attnres-block", "attnres", "mhc-lite(streams=2)", "hc(streams=2)", "bhyt")


def wish(blocks: str, unit: str = "block") -> PruneConfig:
    return PruneConfig(amount=Amount(blocks=blocks), evaluation=READING, unit=unit)


@pytest.mark.parametrize("design", DESIGNS)
def test_every_connection(design: str, trained: Any, saved: Any, tmp_path: Path) -> None:
    opened = open_model(saved(design))
    data = dataset_for(opened, str(trained.data))
    record = prune(opened, data, wish("1,2"), tmp_path / "out")
    assert (record["cut"], record["kept"]) == (["1", "2"], ["0", "3"])
    assert record["checked"]["surgery"] == record["checked"]["reload"] == 0.0
    model = Decoder.load(tmp_path / "out")
    assert len(model.blocks) == 2
    tokens = torch.arange(12).view(1, 12)
    with torch.no_grad(), opened.stack.skipping([Unit(1), Unit(2)]):
        assert torch.equal(opened.stack.logits(tokens), model.eval()(tokens))
    after = quality(stack_of(model), heldout_batches(opened, data, **dataclasses.asdict(READING)))
    assert after.loss == pytest.approx(record["after"]["loss"], abs=1e-6)
    assert after.loss != pytest.approx(record["before"]["loss"], abs=1e-6)


@pytest.mark.parametrize("design", DESIGNS)
def test_sublayers_of_every_connection(design: str, trained: Any, saved: Any, tmp_path: Path) -> None:
    opened = open_model(saved(design))
    data = dataset_for(opened, str(trained.data))
    record = prune(opened, data, wish("0.mlp,2.attention,3", "sublayer"), tmp_path / "out")
    assert record["kept"] == ["0.attention", "1.attention", "1.mlp", "2.mlp"]
    model = Decoder.load(tmp_path / "out")
    assert stack_of(model).sublayers == (("attention",), ("attention", "mlp"), ("mlp",))
