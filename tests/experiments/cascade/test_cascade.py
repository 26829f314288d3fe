"""`leadline study cascade` from end to end on a minute model, and its parts."""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from leadline.cli.main import main
from leadline.data import DataSet, prepare
from leadline.errors import UsageError
from leadline.experiments.cascade import speed as cascade_speed
from leadline.experiments.cascade.config import CascadeConfig
from leadline.experiments.cascade.experiment import Cascade, equally_wide
from leadline.experiments.cascade.plan import TaperArm
from leadline.experiments.cascade.speed import SpeedOptions, measure_speed, speed_of
from leadline.repeating import repeating

TEXT = "the depth of a line is what the lead finds when the rope runs out and no more can be let down"
SMALL = "--blocks 3 --dim 24 --heads 6 --context 16 --batch-size 1 --evaluations 2 --evaluate-tokens 64"
FEW = "--speed-rounds 6 --speed-batch 2 --speed-group 2 --jobs 2 --threads 1"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    folder = tmp_path_factory.mktemp("data")
    generator = random.Random(0)
    text = folder / "text.txt"
    text.write_text("\n".join(" ".join(generator.choices(TEXT.split(), k=12)) for _ in range(600)), encoding="utf-8")
    prepare(text, folder / "set", heldout=0.2)
    return DataSet.open(folder / "set")


def command(dataset: DataSet, out: Path, *more: str) -> list[str]:
    return ["study", "cascade", "--data", str(dataset.folder), "--out", str(out), *SMALL.split(), *FEW.split(), *more]


@pytest.fixture(scope="module")
def studied(dataset: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "out"
    assert main(command(dataset, out, "--designs", "cascade-a2", "--seeds", "1", "--tokens", "960")) == 0
    return out


def read(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return content


def results_of_speed(out: Path, name: str) -> list[float]:
    content: list[float] = json.loads((out / "speed.json").read_text(encoding="utf-8"))["latency"][name]
    return content


def test_both_are_trained_to_equal_flops_and_timed(studied: Path) -> None:
    results = read(studied)
    base, taper, control = results["arms"]
    assert [arm["name"] for arm in results["arms"]] == ["prenorm", "cascade-a2", "taper(heads=2/3)"]
    assert [arm["status"] for arm in results["arms"]] == ["ok"] * 3
    costs = [arm["flops_per_token"] * arm["tokens"] for arm in results["arms"]]
    assert costs[1] == pytest.approx(costs[0], rel=0.01)
    for name in ("flops_per_token", "tokens", "parameters", "learning_rate"):
        assert taper[name] == control[name]
    assert taper["tokens"] > base["tokens"] == 960
    for arm in results["arms"]:
        summary = json.loads((studied / "runs" / f"{arm['slug']}-seed0" / "summary.json").read_text())
        assert summary["tokens"] == arm["tokens"]
        assert summary["flops_per_token"] == arm["flops_per_token"]
        assert summary["parameters"] == arm["parameters"]
        assert arm["loss"]["mean"] == pytest.approx(summary["loss"])
    assert [layer[0] for layer in taper["widths"]] == [6, 4, 2]
    assert [layer[0] for layer in control["widths"]] == [4, 4, 4]
    own = taper["against_control"]
    assert own["mean"] == pytest.approx(taper["bits_per_byte"]["mean"] - control["bits_per_byte"]["mean"])
    assert (base["against_control"], control["against_control"]) == (None, None)
    assert taper["difference"]["mean"] == pytest.approx(taper["bits_per_byte"]["mean"] - base["bits_per_byte"]["mean"])
    speed = taper["generation"]
    assert speed["latency_ratio"]["low"] <= speed["latency_ratio"]["median"] <= speed["latency_ratio"]["high"]
    assert speed["tokens_per_second"]["median"] > 0
    assert len(speed["latency_rounds"]) == 6
    assert base["generation"]["latency_ratio"]["median"] == 1
    assert len(speed["control"]["latency_rounds"]) == 6
    ours, theirs = (results_of_speed(studied, name) for name in ("cascade-a2", "taper(heads=2/3)"))
    assert speed["control"]["latency_rounds"] == pytest.approx([a / b for a, b in zip(ours, theirs, strict=True)])
    assert results["judgements"][0]["outcome"] == "open"


def test_the_report_says_what_was_found(studied: Path) -> None:
    page, results = (studied / "report.html").read_text(encoding="utf-8"), read(studied)
    assert results["headline"] in page
    assert "cascade-a2" in page
    assert "One seed" in page
    assert page.count('class="picture"') == 3
    assert "leadline study cascade" in page


def test_the_same_command_repeats_nothing_and_another_is_an_error(
    studied: Path, dataset: DataSet, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {path: path.stat().st_mtime_ns for path in studied.rglob("*.json*") if path.name != "results.json"}
    before = read(studied)
    same = command(dataset, studied, "--designs", "cascade-a2", "--seeds", "1", "--tokens", "960")
    assert main(same) == 0
    assert before["headline"] in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert read(studied)["arms"] == before["arms"]
    assert main([*same[:-1], "1920"]) == 2
    assert "holds another experiment: tokens is 960 there and 1920 here" in capsys.readouterr().err


def test_interrupted_it_saves_and_exits_with_130(dataset: DataSet, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = command(dataset, out, "--designs", "cascade-a2", "--seeds", "1", "--tokens", "400k")
    process = subprocess.Popen(
        [sys.executable, "-m", "leadline.cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while len(list(out.glob("runs/*/run.json"))) < 2 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 130, said
    assert not (out / "results.json").exists()
    assert not list(out.glob("runs/*/failed.json"))
    assert b"the same command continues" in said


def asked(dataset: DataSet, designs: str | None = "cascade-a2", **options: Any) -> Cascade:
    small = {"blocks": 3, "dim": 24, "heads": 6, "context": 16, "batch_size": 1, "tokens": 9600, "seeds": "2"}
    return Cascade(CascadeConfig(designs=designs).replaced(**{**small, **options}), dataset)


def plans(dataset: DataSet, **options: Any) -> tuple[TaperArm, ...]:
    """Of the default size."""
    return Cascade(CascadeConfig().replaced(**options), dataset).arms


def test_the_plan_solves_for_what_is_asked(dataset: DataSet) -> None:
    by_depth = asked(dataset, "cascade-af,cascade-f2", by="depth+tokens")
    assert [arm.name for arm in by_depth.arms if arm.name.startswith("cascade")] == ["cascade-af", "cascade-f2"]
    assert by_depth.arms[1].config.model.blocks == len(by_depth.arms[1].widths) > 3
    assert all(abs(arm.residual) < 0.01 for arm in by_depth.arms)
    assert by_depth.seeds == (0, 1)
    other = asked(dataset, "mgr + cascade-a2,mgr", baseline="mgr", lr=3e-3)
    named = ["mgr-competitive", "mgr-competitive + cascade-a2", "mgr-competitive + taper(heads=2/3)"]
    assert [arm.name for arm in other.arms] == named
    assert {arm.learning_rate for arm in other.arms} == {3e-3}
    assert equally_wide(other.arms) == []
    shapes = [asked(dataset, dim=dim, heads=None, blocks=15).budget.shape for dim in (96, None, 192)]
    assert shapes[0] == shapes[1]
    assert shapes[2].heads == 6
    assert asked(dataset, preset="S", dim=384, heads=None).budget.shape.heads == 6


def test_the_default_study_has_a_control_of_equal_cost_for_every_taper(dataset: DataSet) -> None:
    study = Cascade(CascadeConfig(), dataset)
    arms = {arm.name: arm for arm in study.arms}
    assert study.arms[0].shape == {"dim": 96, "blocks": 15, "heads": 6, "kv_heads": 6, "head_dim": 16, "hidden": 256}
    assert (study.arms[0].tokens, study.seeds) == (307_200, (0, 1, 2))
    assert {name: arm.control for name, arm in arms.items() if arm.control} == {
        "cascade-a2": "taper(heads=2/3)",
        "cascade-f1": "taper(mlp=3/4)",
        "cascade-f2": "taper(mlp=5/8)",
        "cascade-af": "taper(heads=2/3, mlp=3/4)",
        "cascade-reverse": "taper(heads=2/3)",
        "cascade-middle": "taper(heads=2/3)",
        "cascade-a2, deeper": "taper(heads=2/3), deeper",
    }
    assert len(arms) == len({arm.slug for arm in study.arms}) == 13
    for arm in study.arms:
        if arm.control is not None:
            control = arms[arm.control]
            assert len(set(control.widths)) == 1
            assert (arm.flops_per_token, arm.tokens, arm.parameters, len(arm.widths)) == (
                control.flops_per_token, control.tokens, control.parameters, len(control.widths)
            )  # fmt: skip
            assert arm.control_note == "the same FLOPs a token"
    assert len(arms["cascade-a2, deeper"].widths) == 18
    assert equally_wide(study.arms) == ["cascade-a2", "cascade-reverse", "cascade-middle"]


def test_the_default_study_of_few_blocks_is_without_a_deeper_arm(dataset: DataSet) -> None:
    names = [arm.name for arm in asked(dataset, None).arms]
    assert "cascade-a2" in names
    assert not any("deeper" in name for name in names)
    names = [arm.name for arm in plans(dataset, deeper="none")]
    assert not any("deeper" in name for name in names)
    names = [arm.name for arm in plans(dataset, designs="cascade-af", deeper="cascade-af")]
    assert names[-2:] == ["cascade-af, deeper", "taper(heads=2/3, mlp=3/4), deeper"]


def test_a_uniform_stack_that_costs_otherwise_is_no_control(dataset: DataSet) -> None:
    # At 15 layers, eight have six heads and seven three: 4.6 in the mean, and five cost more.
    arms = plans(dataset, designs="cascade-a1")
    assert [(arm.name, arm.control) for arm in arms] == [("prenorm", None), ("cascade-a1", None)]
    said = "no uniform stack costs the same: the nearest, taper(heads=5/6), has +3.3 % FLOPs a token"
    assert arms[1].control_note == said


def test_a_control_trains_at_its_tapers_rate_unless_it_is_given_one(dataset: DataSet) -> None:
    for given, expected in (("cascade-a2=3e-3", 3e-3), ("cascade-a2=3e-3,taper(heads=2/3)=2e-3", 2e-3)):
        arms = asked(dataset, rates=given).arms
        assert [arm.learning_rate for arm in arms] == [4e-3, 3e-3, expected]
    # Named itself, it takes part once.
    arms = asked(dataset, "taper(heads=2/3),cascade-a2").arms
    assert [(arm.name, arm.control) for arm in arms[1:]] == [
        ("taper(heads=2/3)", None),
        ("cascade-a2", "taper(heads=2/3)"),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"designs": "cascade-a1", "heads": 3}, "layer 3 of 3: 3 heads × 1/2"),
        ({"designs": "cascade-a2,taper(heads=1:2/3:1/3)"}, "cascade-a2 is named twice"),
        ({"designs": "prenorm"}, "nothing to compare prenorm with"),
        ({"by": "depth"}, "--by depth\\+tokens"),
        ({"tokens": 160}, r"--tokens \d+ or more works"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"deeper": "cascade-a2"}, "--deeper cascade-a2: what it saves at 3 blocks pays for no further one"),
        ({"deeper": "cascade-af"}, "--deeper cascade-af is not among the designs; cascade-a2 work"),
        ({"deeper": "cascade-a2", "by": "depth+tokens"}, "--by depth\\+tokens makes all deeper"),
        ({"heads": 5}, "heads=5 do not share dim=24"),
        ({"seeds": "0"}, "--seeds 0"),
        ({"backend": "triton"}, "--backend triton"),
        ({"speed_rounds": 0}, "speed_rounds=0"),
    ],
)
def test_what_cannot_work_is_named(dataset: DataSet, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        asked(dataset, **options)


def test_speed_is_measured_in_interleaved_rounds_and_kept(
    studied: Path, dataset: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SpeedOptions(rounds=2, warm=1, group=3, batch=2, context=16, threads=1)
    folders = {name: studied / "runs" / f"{name}-seed0" for name in ("prenorm", "cascade-a2")}
    prompts: list[torch.Size] = []
    read_prompt = cascade_speed.Stream.restart

    def restart(stream: cascade_speed.Stream) -> None:
        prompts.append(stream.prompt.shape)
        read_prompt(stream)

    monkeypatch.setattr(cascade_speed.Stream, "restart", restart)
    found = measure_speed(folders, dataset, options, tmp_path / "speed.json")
    # Two models, at two batch sizes: read once before the first turn, and again after each of three turns.
    assert prompts == [torch.Size((1, 8))] * 8 + [torch.Size((2, 8))] * 8
    assert {name: len(seconds) for name, seconds in found["latency"].items()} == dict.fromkeys(folders, 2)
    prompts.clear()
    assert measure_speed(folders, dataset, options, tmp_path / "speed.json") == found
    assert not prompts
    more = dataclasses.replace(options, rounds=3)
    assert len(measure_speed(folders, dataset, more, tmp_path / "speed.json")["latency"]["prenorm"]) == 3
    assert measure_speed({}, dataset, options, tmp_path / "none.json")["latency"] == {}


def test_ratios_of_speed_point_the_right_way() -> None:
    speeds = {
        "options": {"batch": 4},
        "latency": {"base": [0.002] * 6, "taper": [0.001] * 6},
        "throughput": {"base": [0.004] * 6, "taper": [0.002] * 6},
    }
    assert speed_of(speeds, "taper", "base", "unmeasured")["control"] == {
        "latency_ratio": None, "throughput_ratio": None, "latency_rounds": []
    }  # fmt: skip
    found = speed_of(speeds, "taper", "base", "taper")
    assert found is not None
    assert found["control"]["latency_ratio"]["median"] == 1
    assert found["milliseconds_per_token"]["median"] == pytest.approx(1)
    assert found["tokens_per_second"]["median"] == pytest.approx(2000)
    assert found["latency_ratio"]["median"] == pytest.approx(0.5)
    assert found["throughput_ratio"]["median"] == pytest.approx(2)
    assert speed_of(speeds, "other", "base") is None


def test_prompt_and_text_fit_the_context() -> None:
    for context in (2, 16, 128):
        options = SpeedOptions(context=context)
        assert options.prompt + options.tokens <= context


def test_the_command_line_repeats_what_was_asked() -> None:
    given = CascadeConfig(out=Path("a b"), designs="taper(heads=1:1/2),cascade-a2")
    assert repeating(["study", "cascade"], given.replaced(tokens=10**6, batch_size=4)) == (
        "leadline study cascade --tokens 1M --batch-size 4 --designs 'taper(heads=1:1/2),cascade-a2' --out 'a b'"
    )
