"""The gradient share against the formula, written out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from leadline.designs import ShapeConfig, resolve
from leadline.models import Decoder
from leadline.training import GradientShare

SHAPE = ShapeConfig(dim=8, blocks=3, heads=2, kv_heads=2, head_dim=4, hidden=12, context=16)


def decoder() -> Decoder:
    return Decoder(resolve("mgr(gate_init=prenorm)").decoder(SHAPE, vocab_size=11))


def fill(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def norm(model: nn.Module, *starts: str) -> float:
    squares = [p.grad.double().square().sum() for n, p in model.named_parameters() if n.startswith(starts)]
    return float(torch.stack(squares).sum().sqrt())


def test_shares_are_sums_of_norms_over_steps() -> None:
    model = decoder()
    share = GradientShare(model)
    blocks, sublayers = torch.zeros(3), torch.zeros(6)
    for seed in range(4):
        fill(model, seed)
        share.add(share.measure())
        for i in range(3):
            blocks[i] += norm(model, f"blocks.{i}.")
            sublayers[2 * i] += norm(model, f"blocks.{i}.attention", f"blocks.{i}.attn_site")
            sublayers[2 * i + 1] += norm(model, f"blocks.{i}.mlp")
    report = share.report()
    assert report["steps"] == 4
    assert report["share"] == pytest.approx((blocks / blocks.sum()).tolist(), rel=1e-5)
    assert report["sublayer_share"] == pytest.approx((sublayers / sublayers.sum()).tolist(), rel=1e-5)
    sizes = torch.tensor([sum(p.numel() for p in block.parameters()) for block in model.blocks])
    each = blocks / sizes.sqrt()
    assert report["share_per_parameter"] == pytest.approx((each / each.sum()).tolist(), rel=1e-5)
    assert sum(report["sublayer_share_per_parameter"]) == pytest.approx(1.0)
    assert share.last == pytest.approx([norm(model, f"blocks.{i}.") for i in range(3)], rel=1e-5)


def test_all_norms_together_are_the_whole_gradients() -> None:
    model = decoder()
    fill(model, 0)
    expected = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    torch.testing.assert_close(GradientShare(model).measure().norm(), expected)


def test_a_shared_parameter_counts_once() -> None:
    model = decoder()
    model.blocks[2].mlp = model.blocks[1].mlp
    fill(model, 0)
    share = GradientShare(model)
    share.add(share.measure())
    last = norm(model, "blocks.2.att", "blocks.2.mlp_")
    assert share.last[2] == pytest.approx(last, rel=1e-5)


def test_parameters_without_a_gradient_count_nothing() -> None:
    model = decoder()
    share = GradientShare(model)
    assert share.measure().tolist() == [0.0] * len(share.parameters)
    share.add(share.measure())
    assert share.report()["share"] == [0.0] * 3
    fill(model, 0)
    for parameter in model.blocks[0].parameters():
        parameter.grad = None
    share.add(share.measure())
    assert share.last[0] == 0.0
    assert share.last[1] == pytest.approx(norm(model, "blocks.1."), rel=1e-5)


def test_large_gradients_do_not_overflow() -> None:
    model = decoder()
    fill(model, 0)
    for parameter in model.parameters():
        parameter.grad.mul_(1e18)
    share = GradientShare(model)
    share.add(share.measure())
    assert sum(share.report()["share"]) == pytest.approx(1.0)


def test_its_state_survives_json() -> None:
    model = decoder()
    one, two = GradientShare(model), GradientShare(model)
    for seed in range(3):
        fill(model, seed)
        one.add(one.measure())
    two.load(json.loads(json.dumps(one.state())))
    fill(model, 9)
    for share in (one, two):
        share.add(share.measure())
    assert one.report() == two.report()
    assert one.state() == two.state()


def test_a_run_writes_it(config: Any, tmp_path: Path) -> None:
    from leadline.training import train

    train(config(record_every=2, clip=1e-3), tmp_path / "run")
    found = json.loads((tmp_path / "run" / "gradient.json").read_text())
    assert found["steps"] == 6
    assert sum(found["share"]) == pytest.approx(1.0)
    records = [json.loads(line) for line in (tmp_path / "run" / "depth.jsonl").read_text().splitlines()]
    steps = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [2, 4, 6]
    for record in records:
        # Before clipping: far above the largest norm that may pass.
        assert min(record["gradient_norm"]) > 0.01
        assert sum(square**2 for square in record["gradient_norm"]) < steps[record["step"] - 1]["grad_norm"] ** 2
