"""The gradient share against the formula, written out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from leadline.designs import ShapeConfig, resolve
from leadline.errors import LeadlineError, UsageError
from leadline.models import Decoder
from leadline.models.config import RepeatConfig
from leadline.training import GradientShare, effective_ranks, load_gradient, train
from leadline.training.checkpoint import find_checkpoint
from leadline.training.gradient_file import write_gradient
from leadline.training.gradient_norms import measure_norms

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
    torch.testing.assert_close(GradientShare(model).measure().total(), expected)


def test_a_shared_parameter_counts_once() -> None:
    model = decoder()
    model.blocks[2].mlp = model.blocks[1].mlp
    fill(model, 0)
    share = GradientShare(model)
    share.add(share.measure())
    last = norm(model, "blocks.2.att", "blocks.2.mlp_")
    assert share.last[2] == pytest.approx(last, rel=1e-5)


def test_a_gradient_that_is_missing_is_told_apart_from_zero() -> None:
    model = decoder()
    share = GradientShare(model)
    measured = share.measure()
    assert not measured.present.any()
    share.add(measured)
    assert share.last == [None] * 3
    assert share.report()["share"] == [None] * 3
    with pytest.raises(LeadlineError, match="no block had a gradient in any step"):
        share.save("nowhere")
    fill(model, 0)
    for parameter in model.blocks[0].parameters():
        parameter.grad = None
    for parameter in model.blocks[1].parameters():
        parameter.grad.zero_()
    model.blocks[2].mlp.down.weight.grad = None
    share.add(share.measure())
    report = share.report()
    assert report["share"] == [None, 0.0, 1.0]
    assert report["sublayer_share"][:4] == [None, None, 0.0, 0.0]
    assert report["share_per_parameter"] == [None, 0.0, 1.0]
    assert share.last == [None, 0.0, pytest.approx(norm_of_rest(model), rel=1e-5)]
    assert report["steps_without_gradient"] == {"block": [2, 1, 1], "sublayer": [2, 2, 1, 1, 1, 1]}
    never = report["parameters_without_gradient"]
    assert "blocks.2.mlp.down.weight" in never
    assert {name for name in never if not name.startswith("blocks.0.")} == {"blocks.2.mlp.down.weight"}


def norm_of_rest(model: nn.Module) -> float:
    grads = [p.grad for n, p in model.named_parameters() if n.startswith("blocks.2.") and p.grad is not None]
    return float(torch.stack([grad.double().square().sum() for grad in grads]).sum().sqrt())


def test_a_step_that_is_not_finite_counts_nothing() -> None:
    model = decoder()
    share, clean = GradientShare(model), GradientShare(model)
    for seed in range(3):
        fill(model, seed)
        if seed == 1:
            model.embed.weight.grad[0, 0] = torch.inf
        else:
            clean.add(clean.measure())
        share.add(share.measure())
    report = share.report()
    assert (report["steps"], report["steps_not_finite"]) == (2, 1)
    assert report["share"] == clean.report()["share"]


def test_a_window_of_steps() -> None:
    model = decoder()
    share, inside = GradientShare(model, since=2, until=3), GradientShare(model)
    for seed in range(5):
        fill(model, seed)
        share.add(share.measure())
        if seed in (1, 2):
            inside.add(inside.measure())
    assert share.report()["share"] == inside.report()["share"]
    assert (share.steps, share.seen) == (2, 5)
    assert share.report()["window"] == {"from": 2, "until": 3}
    assert inside.report()["window"] == {"from": 1, "until": None}
    for since, until in ((0, None), (3, 2)):
        with pytest.raises(UsageError, match="leave no step"):
            GradientShare(model, since=since, until=until)
    late = GradientShare(model, since=9)
    late.add(late.measure())
    with pytest.raises(LeadlineError, match="no step was added of those that count"):
        late.save("nowhere")


def test_parameters_that_need_no_gradient_are_left_out() -> None:
    model = decoder()
    for parameter in model.blocks[1].parameters():
        parameter.requires_grad_(False)
    share = GradientShare(model)
    fill(model, 0)
    share.add(share.measure())
    report = share.report()
    assert report["share"][1] is None
    assert report["parameters"]["block"][1] == 0
    assert sum(report["share"][::2]) == pytest.approx(1.0)


def test_repeated_blocks_count_once() -> None:
    config = resolve("attnres").decoder(SHAPE, vocab_size=11)
    model = Decoder(dataclasses.replace(config, repeat=RepeatConfig(last=2, times=3)))
    share = GradientShare(model)
    fill(model, 0)
    share.add(share.measure())
    report = share.report()
    assert report["units"]["block"] == ["0", "1", "2"]
    assert len(report["sublayer_share"]) == 6
    assert share.last[0] == pytest.approx(norm(model, "blocks.0."), rel=1e-5)
    # The places that repeat it have no parameters but their own queries, which are the block's too.
    assert share.last[2] == pytest.approx(norm(model, "blocks.2.", "blocks.4.", "blocks.6."), rel=1e-5)
    assert sum(report["parameters"]["block"]) == sum(p.numel() for p in model.blocks.parameters())


@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 1.0), (torch.float16, 1000.0), (torch.float64, 1.0)])
def test_norms_of_other_dtypes(dtype: torch.dtype, size: float) -> None:
    parameter = nn.Parameter(torch.zeros(300, 300, dtype=dtype))
    parameter.grad = (size * torch.randn(300, 300, generator=torch.Generator().manual_seed(0))).to(dtype)
    # Every entry is finite; in float16 the norm would not be.
    assert float(measure_norms([parameter]).values) == pytest.approx(float(parameter.grad.double().norm()), rel=1e-5)


def test_a_wrapped_model() -> None:
    model = decoder()
    fill(model, 0)
    plain, compiled = GradientShare(model), GradientShare(torch.compile(model))
    assert torch.equal(plain.measure().values, compiled.measure().values)


def test_accumulation_and_a_scaler_give_the_same_share() -> None:
    """One pass; four passes; and four passes with a loss scale that is taken off before the norms are read."""
    tokens = torch.randint(11, (4, 16), generator=torch.Generator().manual_seed(0))

    def shares(parts: int, scale: float) -> dict[str, Any]:
        torch.manual_seed(0)
        model = decoder()
        share = GradientShare(model)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale != 1.0)
        for _ in range(2):
            for piece in tokens.chunk(parts):
                logits = model(piece[:, :-1]).flatten(0, 1)
                loss = nn.functional.cross_entropy(logits, piece[:, 1:].flatten()) / parts
                scaler.scale(loss).backward()
            scaler.unscale_(optimiser)
            share.add(share.measure())
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            scaler.step(optimiser)
            scaler.update()
            optimiser.zero_grad()
        return share.report()

    whole = shares(1, 1.0)
    for parts, scale in ((4, 1.0), (1, 1024.0), (4, 1024.0)):
        other = shares(parts, scale)
        for name in ("share", "sublayer_share", "share_per_parameter"):
            assert other[name] == pytest.approx(whole[name], rel=1e-4)


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
    two.load(json.loads(json.dumps(one.state())), one.norms())
    fill(model, 9)
    for share in (one, two):
        share.add(share.measure())
    assert one.report() == two.report()
    assert one.state() == two.state()


def test_the_state_of_an_earlier_version_loads() -> None:
    model = decoder()
    share = GradientShare(model)
    share.load({"steps": 2, "sublayers": [1.0, 2.0, 1.0, 2.0, 1.0, 1.0], "blocks": [3.0, 3.0, 2.0]})
    assert share.report()["share"] == [0.375, 0.375, 0.25]
    assert share.report()["parameters_without_gradient"] == []
    with pytest.raises(ValueError, match="that of 2 blocks; this model has 3"):
        share.load({"steps": 2, "sublayers": [1.0] * 4, "blocks": [1.0, 1.0]})


def test_it_is_saved_and_read(tmp_path: Path) -> None:
    model = decoder()
    share = GradientShare(model)
    fill(model, 0)
    share.add(share.measure())
    share.note({"step": 1, "effective_rank": effective_ranks(share)})
    assert share.save(tmp_path / "model") == tmp_path / "model" / "gradient.json"
    found = load_gradient(tmp_path / "model")
    assert found == json.loads(json.dumps(share.report()))
    assert found["units"]["sublayer"][:2] == ["0.attention", "0.mlp"]
    (rank,) = found["details"]
    assert all(1.0 < value <= 8.0 for value in rank["effective_rank"])


def test_what_a_killed_run_left_half_written_goes(tmp_path: Path) -> None:
    (tmp_path / ".gradient.json.123.partial").write_text("{")
    write_gradient(tmp_path, {"share": [1.0]})
    assert [path.name for path in tmp_path.iterdir()] == ["gradient.json"]


def test_there_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"has no gradient\.json.*`leadline train` always records it.*"
        r"after the last backward of each step, share\.save",
    ):
        load_gradient(tmp_path)
    of_no_names = '{"share": [1.0], "definitions": {"block": [1.0]}}'
    no_share = '{"share": [1.0], "definitions": {"block": {"clipped": [-1.0]}}}'
    for content in ("{", "[]", '{"share": 3}', of_no_names, no_share):
        (tmp_path / "gradient.json").write_text(content)
        with pytest.raises(LeadlineError, match=r"gradient\.json"):
            load_gradient(tmp_path)


def test_a_run_writes_it(config: Any, tmp_path: Path) -> None:
    train(config(record_every=2, clip=1e-3), tmp_path / "run")
    found = load_gradient(tmp_path / "run")
    assert load_gradient(find_checkpoint(tmp_path / "run")) == found
    assert found["steps"] == 6
    assert sum(found["share"]) == pytest.approx(1.0)
    records = [json.loads(line) for line in (tmp_path / "run" / "depth.jsonl").read_text().splitlines()]
    steps = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [2, 4, 6]
    for record in records:
        # Before clipping: far above the largest norm that may pass.
        assert min(record["gradient_norm"]) > 0.01
        assert sum(square**2 for square in record["gradient_norm"]) < steps[record["step"] - 1]["grad_norm"] ** 2


def test_a_checkpoint_has_the_record_up_to_its_own_step(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(config(checkpoint_every=3, keep=2, equalise=True), tmp_path / "run")
    older, newest = (find_checkpoint(tmp_path / "run", step) for step in (3, 6))
    whole = load_gradient(tmp_path / "run")
    assert (load_gradient(older)["steps"], load_gradient(newest)) == (3, whole)
    assert load_gradient(older)["equalised"]["steps"] == 3
    assert load_gradient(older)["share"] != whole["share"]
    # Those of earlier versions had none: the run's is that of the newest alone.
    for checkpoint in (older, newest):
        (checkpoint / "gradient.json").unlink()
    assert load_gradient(newest) == whole
    with pytest.raises(UsageError, match=r"step-00000003 has no gradient.json of its own.*of a later step.*newest"):
        load_gradient(older)
    for checkpoint, known in ((newest, True), (older, False)):
        monkeypatch.chdir(checkpoint)
        if known:
            assert load_gradient(".") == whole
        else:
            with pytest.raises(UsageError, match="of its own"):
                load_gradient(".")
