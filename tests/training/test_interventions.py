"""Equalised gradients, repeated blocks and SGD: what each does to a step, written out."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from leadline.data import DataSet, Loader
from leadline.designs import ShapeConfig, resolve
from leadline.errors import UsageError
from leadline.models import Decoder
from leadline.models.config import RepeatConfig
from leadline.training import GradientShare, load_gradient, load_model, train
from leadline.training.interventions import equalise, equalised_updates
from leadline.training.resolve import decide
from leadline.training.run_folder import read_run_file

Lines = Callable[[Path], list[dict[str, Any]]]
SHAPE = ShapeConfig(dim=8, blocks=3, heads=2, kv_heads=2, head_dim=4, hidden=12, context=16)


def filled(repeat: RepeatConfig | None = None) -> tuple[Decoder, GradientShare]:
    """A model with gradients whose size differs from block to block."""
    config = resolve("attnres").decoder(SHAPE, vocab_size=11)
    model = Decoder(dataclasses.replace(config, repeat=repeat))
    generator = torch.Generator().manual_seed(0)
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = (1 + number % 7) * torch.randn(parameter.shape, generator=generator)
    share = GradientShare(model)
    share.add(share.measure())
    return model, share


def norms(share: GradientShare) -> list[float]:
    grads = [[p.grad for p in parameters if p.grad is not None] for parameters in share.by_block()]
    return [float(torch.cat([grad.flatten() for grad in block]).double().norm()) if block else 0.0 for block in grads]


def test_blocks_get_the_mean_norm_and_keep_their_direction() -> None:
    model, share = filled()
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    raw = norms(share)
    assert max(raw) > 1.1 * min(raw)
    equalise(share)
    assert norms(share) == pytest.approx([sum(raw) / 3] * 3, rel=1e-5)
    for name, parameter in model.named_parameters():
        factor = sum(raw) / 3 / raw[int(name.split(".")[1])] if name.startswith("blocks.") else 1.0
        torch.testing.assert_close(parameter.grad, before[name] * factor)
    # What was told of the step is the raw gradient's.
    assert share.last == pytest.approx(raw, rel=1e-5)


def test_a_block_of_zeros_and_a_dropped_one_stay() -> None:
    model, share = filled()
    for parameter in model.blocks[0].parameters():
        parameter.grad.zero_()
    for parameter in model.blocks[1].parameters():
        parameter.grad = None
    share.add(share.measure())
    raw = norms(share)
    equalise(share)
    assert norms(share) == pytest.approx(raw, rel=1e-5)
    assert all(p.grad is None for p in model.blocks[1].parameters())
    model.zero_grad()
    share.add(share.measure())
    equalise(share)


def test_repeated_parameters_are_scaled_once() -> None:
    _, share = filled(RepeatConfig(last=2, times=3))
    raw = norms(share)
    equalise(share)
    assert norms(share) == pytest.approx([sum(raw) / 3] * 3, rel=1e-5)


def test_a_step_with_equalised_gradients(config: Any, data: Path, tmp_path: Path, lines: Lines) -> None:
    """Equal norms before clipping, then clipped all together; records of the raw and of the equalised norms."""
    options = {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.1, "lr": 2.0}
    chosen = config(steps=2, equalise=True, clip=0.1, record_every=1, **options)
    train(chosen, tmp_path)
    model = Decoder(decide(chosen).model, seed=0)
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and n != "embed.weight"]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or n == "embed.weight"]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.SGD(groups, lr=0.0, momentum=0.5)
    loader = Loader(DataSet.open(data).train, 2, 16, 0)
    depth = lines(tmp_path / "depth.jsonl")
    for record, share in zip(depth, (1.0, 0.1), strict=True):
        batch = loader.next()
        F.cross_entropy(model(batch.tokens).flatten(0, 1), batch.targets.flatten()).backward()
        raw = [float(torch.cat([p.grad.flatten() for p in block.parameters()]).norm()) for block in model.blocks]
        for block, norm in zip(model.blocks, raw, strict=True):
            for parameter in block.parameters():
                parameter.grad *= sum(raw) / len(raw) / norm
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for group in optimiser.param_groups:
            group["lr"] = 2.0 * share
        optimiser.step()
        optimiser.zero_grad()
        assert record["gradient_norm"] == pytest.approx(raw, rel=1e-4)
        assert record["equalised_norm"] == pytest.approx([sum(raw) / 2] * 2, rel=1e-4)
    trained, _ = load_model(tmp_path)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained.state_dict()[name], value, rtol=1e-4, atol=1e-6)
    found = load_gradient(tmp_path)
    assert found["equalised"]["share"] == pytest.approx([0.5, 0.5], rel=1e-5)
    assert abs(found["share"][0] - 0.5) > 0.01


def test_adamw_is_told_to_undo_it(config: Any, tmp_path: Path) -> None:
    notes = train(config(steps=1, equalise=True), tmp_path / "adamw").notes
    assert any("AdamW nearly undoes" in note and "--optimizer sgd" in note for note in notes)
    notes = train(config(steps=1, equalise=True, optimizer="sgd"), tmp_path / "sgd").notes
    assert not any("AdamW" in note for note in notes)


def test_sgds_rate(config: Any) -> None:
    adamw, sgd = (decide(config(lr=None, optimizer=name)) for name in ("adamw", "sgd"))
    assert sgd.learning_rate == 200 * adamw.learning_rate
    assert "200 times AdamW's rate [ours, not swept]" in sgd.rate_source
    assert decide(config(optimizer="sgd")).rate_source == "given"


def test_repeated_blocks(config: Any, tmp_path: Path) -> None:
    shape = {"blocks": 3, "dim": 8, "heads": 2, "kv_heads": 1, "head_dim": 4, "hidden": 12}
    summary = train(config(shape=shape, repeat="2*3", equalise=True, record_every=2), tmp_path)
    plain = decide(config(shape=shape))
    model, _ = load_model(tmp_path)
    assert model.config == dataclasses.replace(plain.model, repeat=RepeatConfig(last=2, times=3))
    assert read_run_file(tmp_path)["config"]["repeat"] == "2x3"
    # One forward pass through the unrolled stack: 7 blocks' FLOPs, 3 blocks' parameters.
    assert summary.parameters == sum(p.numel() for p in Decoder(plain.model).parameters())
    assert summary.flops_per_token > 1.5 * json.loads(json.dumps(plain.describe()))["flops_per_token"]
    assert len(load_gradient(tmp_path)["share"]) == 3
    record = json.loads((tmp_path / "depth.jsonl").read_text().splitlines()[0])
    assert len(record["read_rms"]) == 2 * 7 + 1
    assert len(record["gradient_norm"]) == 3
    assert any("run 3 times with the same parameters: 7 blocks run" in note for note in summary.notes)


def test_more_blocks_than_there_are(config: Any) -> None:
    with pytest.raises(UsageError, match="--repeat 3x2 repeats 3 blocks; this model has 2"):
        decide(config(repeat="3x2"))


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_effective_rank_and_diversity_beside_the_share(
    config: Any, data: Path, tmp_path: Path, lines: Lines, accumulation: int
) -> None:
    chosen = config(
        batch_size=4, grad_accumulation=accumulation, gradient_every=2, record_every=3, equalise=True, clip=0.1
    )
    train(chosen, tmp_path / "with")
    train(chosen.replaced(gradient_every=0), tmp_path / "without")
    # Looking changes nothing, bit for bit.
    assert lines(tmp_path / "with" / "steps.jsonl") == lines(tmp_path / "without" / "steps.jsonl")
    details = load_gradient(tmp_path / "with")["details"]
    assert [detail["step"] for detail in details] == [2, 4, 6]
    assert {detail["parts"] for detail in details} == {4 if accumulation == 1 else accumulation}
    records = {record["step"]: record for record in lines(tmp_path / "with" / "depth.jsonl")}
    assert sorted(records) == [2, 3, 4, 6]
    assert ("read_rms" in records[4], "gradient_cosine" in records[3]) == (False, False)
    assert records[6]["gradient_effective_rank"] == details[2]["effective_rank"]
    assert records[6]["gradient_cosine"] == details[2]["cosine"]
    for detail in details:
        assert all(1.0 < rank <= 8.0 for rank in detail["effective_rank"])
        assert all(-1.0 < cosine < 1.0 for cosine in detail["cosine"])


def test_diversity_by_hand(config: Any, data: Path, tmp_path: Path) -> None:
    train(config(steps=1, batch_size=4, gradient_every=1), tmp_path)
    (detail,) = load_gradient(tmp_path)["details"]
    model = Decoder(decide(config(steps=1)).model, seed=0)
    batch = Loader(DataSet.open(data).train, 4, 16, 0).next()
    rows = []
    for row in range(4):
        model.zero_grad()
        logits = model(batch.tokens[row : row + 1]).flatten(0, 1)
        F.cross_entropy(logits, batch.targets[row]).backward()
        grads = [torch.cat([p.grad.flatten() for p in block.parameters()]) for block in model.blocks]
        rows.append([grad / grad.norm() for grad in grads])
    for block, cosine in enumerate(detail["cosine"]):
        pairs = [float(rows[i][block] @ rows[j][block]) for i in range(4) for j in range(i)]
        assert cosine == pytest.approx(sum(pairs) / 6, abs=1e-5)


def test_one_sequence_has_no_diversity(config: Any, tmp_path: Path) -> None:
    train(config(steps=1, batch_size=1, gradient_every=1), tmp_path)
    (detail,) = load_gradient(tmp_path)["details"]
    assert detail["cosine"] == [None, None]
    assert detail["parts"] == 0


def test_a_window_of_the_run(config: Any, tmp_path: Path, lines: Lines) -> None:
    train(config(gradient_from=3, gradient_until=4, record_every=1), tmp_path)
    found = load_gradient(tmp_path)
    assert found["steps"] == 2
    assert found["window"] == {"from": 3, "until": 4}
    rows = [record["gradient_norm"] for record in lines(tmp_path / "depth.jsonl")][2:4]
    sums = [sum(column) for column in zip(*rows, strict=True)]
    assert found["share"] == pytest.approx([each / sum(sums) for each in sums])
    with pytest.raises(UsageError, match="gradient_from=7 is after the run's last step, 6"):
        decide(config(gradient_from=7))


def test_equalised_updates_are_alike_and_keep_their_direction() -> None:
    """AdamW with decay: what a step adds to each block, the decay apart, has one norm, the mean of what they were."""
    model, share = filled()
    plain = copy.deepcopy(model)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        one.grad = other.grad.clone()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    def optimiser(of: Decoder) -> torch.optim.AdamW:
        matrices = [p for p in of.parameters() if p.dim() > 1]
        others = [p for p in of.parameters() if p.dim() <= 1]
        return torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}], lr=0.1
        )

    optimiser(plain).step()
    own = optimiser(model)
    with equalised_updates(share, own):
        own.step()

    def updates(of: Decoder) -> dict[str, torch.Tensor]:
        return {n: p.detach() - before[n] * (1 - 0.1 * 0.3 * (p.dim() > 1)) for n, p in of.named_parameters()}

    def block_norms(found: dict[str, torch.Tensor]) -> list[float]:
        rows = [[u.flatten() for n, u in found.items() if n.startswith(f"blocks.{block}.")] for block in range(3)]
        return [float(torch.cat(row).double().norm()) for row in rows]

    raw, equal = updates(plain), updates(model)
    norms_raw = block_norms(raw)
    assert max(norms_raw) > 1.001 * min(norms_raw)
    assert block_norms(equal) == pytest.approx([sum(norms_raw) / 3] * 3, rel=1e-4)
    for name, update in equal.items():
        factor = sum(norms_raw) / 3 / norms_raw[int(name.split(".")[1])] if name.startswith("blocks.") else 1.0
        torch.testing.assert_close(update, raw[name] * factor, rtol=1e-3, atol=1e-6)


def test_a_block_that_is_not_moved_takes_no_part() -> None:
    model, share = filled()
    for parameter in model.blocks[1].parameters():
        parameter.grad = None
    before = [p.detach().clone() for p in model.blocks[1].parameters()]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with equalised_updates(share, optimiser):
        optimiser.step()
    for parameter, start in zip(model.blocks[1].parameters(), before, strict=True):
        assert torch.equal(parameter, start)
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_equalised_updates_train_and_go_on(config: Any, tmp_path: Path) -> None:
    options = {"steps": 4, "equalise_updates": True, "checkpoint_every": 2, "keep": 3}
    summary = train(config(**options), tmp_path / "whole")
    assert any("updates of all blocks" in note for note in summary.notes)
    train(config(**options), tmp_path / "parts")
    (tmp_path / "parts" / "summary.json").unlink()
    train(config(**options), tmp_path / "parts", resume="previous")
    train(config(steps=4, checkpoint_every=2, keep=3), tmp_path / "plain")
    whole, parts, plain = (load_model(tmp_path / name)[0].state_dict() for name in ("whole", "parts", "plain"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert any(not torch.equal(whole[name], plain[name]) for name in whole)


@pytest.mark.parametrize("repeat", ["1x2", "2x3"])
def test_a_repeated_stack_starts_as_the_plain_one(config: Any, repeat: str) -> None:
    plain, again = (Decoder(decide(config(steps=1, repeat=r)).model, seed=3) for r in (None, repeat))
    kept = again.state_dict()
    assert all(torch.equal(value, kept[name]) for name, value in plain.state_dict().items() if name in kept)
