"""One run of a ResNet on images: what it records, that it goes on to the bit, what it measures."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from leadline.config import to_dict
from leadline.data import resolve
from leadline.data.images import ImageBatch, evaluation_images
from leadline.errors import LeadlineError, UsageError
from leadline.experiments.gradient_fan_in.config import GfaConfig
from leadline.experiments.gradient_fan_in.experiment import GradientFanIn
from leadline.experiments.gradient_fan_in.measure import train_and_measure_images
from leadline.experiments.images import ImageRunConfig, measure_images, run_images, train_images
from leadline.experiments.images.measuring import correlations
from leadline.experiments.images.training import ImageTrainer, evaluate_images, make_sgd
from leadline.experiments.runs import measured as gathered
from leadline.experiments.runs import read_run
from leadline.models.resnet import ResNet
from leadline.training import load_gradient
from leadline.training.checkpoint import find_checkpoint

pytest.importorskip("sklearn")

TINY = ImageRunConfig(size=8, width=4, steps=20, batch_size=16, learning_rate=0.02, gradient_every=10, evaluate_every=8)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def one_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    torch.set_num_threads(1)
    return folder, run_images(TINY, folder, limit=100)


@pytest.mark.parametrize("batch_size", [7, 10, 13])
def test_pieces_of_a_batch_have_two_images_or_more(batch_size: int, tmp_path: Path) -> None:
    # All four stages leave one pixel of eight, of which one image alone has no variance.
    config = dataclasses.replace(TINY, width=2, steps=1, batch_size=batch_size, gradient_every=1)
    train_images(config, tmp_path / "run")
    assert load_gradient(tmp_path / "run")["details"][0]["cosine"][0] is not None


def test_a_run_leaves_what_a_run_on_text_leaves(one_run):
    folder, results = one_run
    steps, evaluations = lines(folder / "steps.jsonl"), lines(folder / "evals.jsonl")
    assert [row["step"] for row in steps] == list(range(1, 21))
    assert [row["tokens"] for row in steps] == [16 * step for step in range(1, 21)]
    assert [row["step"] for row in evaluations] == [8, 16, 20]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == results["summary"]
    assert summary["loss"] == evaluations[-1]["loss"]
    assert summary["bits_per_byte"] == pytest.approx(summary["loss"] / math.log(2))
    found = gathered([read_run(folder)])
    assert found["status"] == "ok"
    assert found["loss"]["mean"] == summary["loss"]
    assert json.loads((folder / "results.json").read_text()) == json.loads(json.dumps(results))


def test_a_network_learns_to_read_digits(tmp_path):
    config = ImageRunConfig(size=8, width=8, layers=(1, 1), steps=60, batch_size=32, learning_rate=0.1)
    summary = train_images(config, tmp_path)
    assert summary["accuracy"] > 0.7  # a tenth is chance
    assert summary["loss"] < 1.2


def test_the_share_is_that_of_all_steps(one_run):
    folder, results = one_run
    gradient = results["gradient"]
    norms = [row["gradient_norm"] for row in lines(folder / "steps.jsonl")]
    sums = [sum(row[block] for row in norms) for block in range(16)]
    assert gradient["steps"] == 20
    assert gradient["share"] == pytest.approx([value / sum(sums) for value in sums])
    assert [detail["step"] for detail in gradient["details"]] == [10, 20]
    detail = gradient["details"][0]
    assert all(rank > 1 for rank in detail["effective_rank"])
    assert detail["parts"] == 4
    assert all(-1 < cosine < 1 for cosine in detail["cosine"])


def test_looking_at_gradients_changes_nothing(tmp_path):
    config = dataclasses.replace(TINY, layers=(1, 1), steps=5, gradient_every=2)
    train_images(config, tmp_path / "looked")
    train_images(dataclasses.replace(config, gradient_every=0), tmp_path / "plain")
    looked, plain = (ResNet.load(find_checkpoint(tmp_path / name)).state_dict() for name in ("looked", "plain"))
    assert all(torch.equal(looked[name], plain[name]) for name in plain)


@torch.no_grad()
def test_pieces_of_one_image_over_and_over_agree(tmp_path):
    trainer = ImageTrainer(dataclasses.replace(TINY, layers=(1, 1)), TINY.open_images(), tmp_path)
    batch = trainer.loader.next()
    four = ImageBatch(batch.images[:4].repeat(4, 1, 1, 1), batch.labels[:4].repeat(4))
    with torch.enable_grad():
        assert trainer._diversity(four).cosines() == pytest.approx([1.0, 1.0], abs=1e-5)
        assert max(trainer._diversity(batch).cosines()) < 0.99


def test_the_rate_rises_and_falls(one_run):
    rates = [row["lr"] for row in lines(one_run[0] / "steps.jsonl")]
    assert max(rates) == rates[0] == 0.02  # 5 % of 20 steps is one
    assert rates[10] == pytest.approx(0.01 * (1 + math.cos(math.pi * 10 / 19)))
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    assert dataclasses.replace(TINY, warmup=0.2).rate_at(1) == pytest.approx(0.005)


def test_what_blocks_are_worth_is_the_loss_without_them(one_run):
    folder, results = one_run
    measured = results["measured"]
    model = ResNet.load(find_checkpoint(folder)).eval()
    batches = list(evaluation_images(TINY.open_images(), 100, 100))
    assert measured["tokens"] == 100
    assert measured["loss"] == pytest.approx(evaluate_images(model, batches).loss, rel=1e-6)
    assert measured["accuracy"] == evaluate_images(model, batches).accuracy
    forward = model.forward
    for block in (0, 4, 15):
        model.forward = lambda images, block=block: forward(images, skip={block})
        rise = evaluate_images(model, batches).loss - measured["loss"]
        assert measured["delta"]["nats"][block] == pytest.approx(rise, abs=1e-6)
        assert measured["delta"]["low"][block] < measured["delta"]["nats"][block] < measured["delta"]["high"][block]
    assert measured["fan_in"] == [float(16 - block) for block in range(16)]
    assert measured["projections"] == [0, 3, 7, 13]
    assert measured["names"][3] == "layer2.0"
    assert measured["order"] == list(range(16))
    assert measured["place_delta"] is measured["exit_weights"] is None


def test_correlations_are_over_all_blocks_and_over_those_with_an_identity():
    share = [0.5, 0.2, 0.15, 0.1, 0.05]
    gradient = {"share": share, "share_per_parameter": share[::-1]}
    delta = {"nats": [-9.0, 2.0, 1.5, 1.0, 0.5]}
    measured = {"blocks": 5, "projections": [0], "delta": delta, "fan_in": [5.0, 4.0, 3.0, 2.0, 1.0]}
    found = correlations(gradient, measured)
    assert found["identity"]["share_delta"]["pearson"]["value"] == pytest.approx(1.0)
    assert found["all"]["share_delta"]["pearson"]["value"] < 0
    assert found["all"]["share_fan_in"]["spearman"]["value"] == pytest.approx(1.0)
    assert found["identity"]["share_per_parameter_fan_in"]["kendall"]["value"] == pytest.approx(-1.0)


def test_a_run_that_was_stopped_goes_on_to_the_bit(tmp_path):
    config = dataclasses.replace(TINY, steps=10, layers=(1, 1), gradient_every=4, evaluate_every=3)

    def stop(record):
        if record["step"] == 7:
            raise KeyboardInterrupt

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_images(config, whole)
    with pytest.raises(KeyboardInterrupt):
        train_images(dataclasses.replace(config, checkpoint_every=4), parts, on_step=stop)
    assert find_checkpoint(parts).name == "step-00000004"
    train_images(config, parts)
    one, two = (ResNet.load(find_checkpoint(folder)).state_dict() for folder in (whole, parts))
    assert all(torch.equal(one[name], two[name]) for name in one)
    for name in ("gradient.json", "gradient_norms.safetensors"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()
    for name in ("steps.jsonl", "evals.jsonl"):
        first, second = lines(whole / name), lines(parts / name)
        for row in (*first, *second):
            row.pop("tokens_per_second", None)
        assert first == second


def test_a_finished_run_is_read_and_another_one_refused(one_run, tmp_path):
    folder, results = one_run
    began = (folder / "steps.jsonl").stat().st_mtime_ns
    assert train_images(TINY, folder) == results["summary"]
    assert (folder / "steps.jsonl").stat().st_mtime_ns == began
    with pytest.raises(UsageError, match="holds a run with seed=0, not 1; name another folder"):
        train_images(dataclasses.replace(TINY, seed=1), folder)
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="holds something that is not a Leadline run"):
        train_images(TINY, tmp_path)
    (tmp_path / "letter.txt").unlink()
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(LeadlineError, match=r"run\.json is damaged"):
        train_images(TINY, tmp_path)


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    config = dataclasses.replace(TINY, learning_rate=1e30, warmup=0.0, layers=(1,))
    with pytest.raises(LeadlineError, match=r"of step \d+ is not finite; a lower learning_rate"):
        train_images(config, tmp_path)


def test_weights_decay_and_norms_and_biases_do_not():
    model = ResNet(TINY.model(TINY.open_images()))
    decayed, plain = make_sgd(model, dataclasses.replace(TINY, weight_decay=0.1)).param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert {p.dim() for p in decayed["params"]} == {2, 4}
    assert {p.dim() for p in plain["params"]} == {1}
    assert len(decayed["params"]) + len(plain["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps=0 is too small; 1 or more work"),
        ({"batch_size": 1}, "batch_size=1 is too small; 2 or more work"),
        ({"evaluate_every": 0}, "evaluate_every=0"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be above 0"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0 must be 0 or more"),
        ({"warmup": 1.0}, "warmup=1.0 must be at least 0 and below 1"),
        ({"gradient_from": 21}, "gradient_from=21 is after the last of 20 steps"),
        ({"gradient_from": 0}, "gradient_from=0 is too small; 1 or more work"),
        ({"gradient_from": 3, "gradient_until": 2}, "gradient_from=3 is after gradient_until=2; no step counts"),
        ({"seed": -1}, "seed=-1 is too small; 0 or more work"),
    ],
)
def test_options_that_do_not_work_are_named(changes, message):
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(TINY, **changes)


def test_a_device_that_is_not_here_leaves_no_folder(tmp_path):
    with pytest.raises(UsageError, match="--device nowhere can't be used here"):
        train_images(dataclasses.replace(TINY, device="nowhere"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_too_small_for_the_stem_say_what_works():
    config = dataclasses.replace(TINY, stem="imagenet")
    with pytest.raises(UsageError, match=r"images of 8 pixels are too small .* 32 or more; stem=small takes less"):
        config.model(config.open_images())
    assert TINY.model(TINY.open_images()).stem == "small"


def arm_of(**options):
    (arm,) = GradientFanIn(GfaConfig(arms="resnet50").replaced(**options), resolve("sotu")).arms
    return arm


def test_the_arm_plans_trains_and_measures(tmp_path):
    arm = arm_of(steps=20, evaluations=2, details=2)
    assert (arm.name, arm.blocks, arm.tokens, arm.learning_rate) == ("resnet50", 16, 640, 0.02)
    assert (arm.config.steps, arm.config.evaluate_every, arm.config.gradient_every) == (20, 10, 10)
    assert arm.parameters == sum(p.numel() for p in ResNet(arm.config.model(arm.config.open_images())).parameters())
    folder = tmp_path / "resnet50-seed0"
    folder.mkdir()
    (folder / "job.json").write_text("{}")
    small = dataclasses.replace(TINY, layers=(1, 1), steps=4, gradient_every=0)
    train_and_measure_images(folder, {"config": to_dict(small), "ablation_tokens": 50})
    found = json.loads((folder / "gfa.json").read_text())
    assert found["blocks"] == 2
    assert found["tokens"] == 50
    assert set(found) >= {"order", "loss", "delta", "place_delta", "fan_in", "exit_weights"}


def test_the_arm_takes_as_many_steps_as_the_others():
    assert arm_of(tokens=1000, batch_size=4, context=50).config.steps == 5
    assert arm_of(steps=7).learning_rate == ImageRunConfig().learning_rate
    assert arm_of(steps=7, lr=0.5).learning_rate == ImageRunConfig().learning_rate, "a decoder's rate is none of its"
    assert arm_of(steps=7, rates="resnet50=0.5").learning_rate == 0.5
    assert arm_of(steps=7).config.width == 16


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no checkpoint"):
        measure_images(tmp_path, TINY)
