"""A run that was stopped and continued is the run that was not, bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from leadline.errors import UsageError
from leadline.models import Decoder
from leadline.training import RunConfig, load_gradient, load_model, train
from leadline.training.checkpoint import checkpoints, find_checkpoint
from leadline.training.config import SHAPE
from leadline.training.evaluation import Evaluation
from leadline.training.run_folder import read_run_file

Lines = Callable[[Path], list[dict[str, Any]]]
DESIGNS = ("prenorm", "attnres-block", "mgr", "mhc-lite", "bhyt", "layerscale")


def interrupt_at(*steps: int) -> Callable[[dict[str, Any]], None]:
    """Ctrl-C while these steps are under way."""
    return lambda told: os.kill(os.getpid(), signal.SIGINT) if told["step"] in steps else None


def stopped(config: Any, out: Path, *steps: int) -> None:
    for step in steps:
        with pytest.raises(KeyboardInterrupt):
            train(config, out, on_step=interrupt_at(step))
        assert checkpoints(out)[-1].name == f"step-{step:08d}"


def assert_same_run(one: Path, two: Path, lines: Lines) -> None:
    for name in ("steps.jsonl", "evals.jsonl", "depth.jsonl"):
        assert lines(one / name) == lines(two / name), name
    for name in ("gradient.json", "gradient_norms.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (find_checkpoint(one) / name).read_bytes() == (find_checkpoint(two) / name).read_bytes(), name


@pytest.mark.parametrize("design", DESIGNS)
def test_resumed_runs_are_equal(config: Any, tmp_path: Path, lines: Lines, design: str) -> None:
    """6 = 3 + 3 = 2 + 2 + 2 steps of two sequences; an epoch has seven, so step 4 reaches into the next."""
    chosen = config(design, record_every=2, evaluate_every=3)
    train(chosen, tmp_path / "whole")
    stopped(chosen, tmp_path / "twice", 3)
    train(chosen, tmp_path / "twice")
    stopped(chosen, tmp_path / "thrice", 2, 4)
    train(chosen, tmp_path / "thrice")
    assert_same_run(tmp_path / "whole", tmp_path / "twice", lines)
    assert_same_run(tmp_path / "whole", tmp_path / "thrice", lines)


def test_accumulated_and_narrow_runs_too(config: Any, tmp_path: Path, lines: Lines) -> None:
    chosen = config("mgr", grad_accumulation=2, precision="bfloat16", activation_checkpointing=True)
    train(chosen, tmp_path / "whole")
    stopped(chosen, tmp_path / "parts", 1, 5)
    train(chosen, tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts", lines)


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": "sgd", "equalise": True},
        {"design": "attnres-block(blocks=2)", "two_phase": True, "exit_loss": 0.5},
        {"optimizer": "sgd", "momentum": 0.0, "repeat": "1x3"},
        {"design": "mgr", "repeat": "2x2", "equalise": True, "gradient_every": 2},
        # Some block is dropped in each of the first steps, so the optimiser has nothing to keep of it yet.
        {"layer_dropout": 0.95, "seed": 1, "gradient_from": 2, "gradient_until": 5},
        {"layer_dropout": 0.95, "seed": 1, "optimizer": "sgd", "exit_loss": 0.5, "grad_accumulation": 2},
        {
            "design": "attnres",
            "exit_loss": 0.5,
            "exit_curriculum": "gradual",
            "gradient_every": 3,
            "activation_checkpointing": True,
        },
    ],
    ids=lambda fields: "-".join(fields),
)
def test_runs_with_interventions(config: Any, tmp_path: Path, lines: Lines, fields: dict[str, Any]) -> None:
    chosen = config(record_every=2, evaluate_every=3, **fields)
    train(chosen, tmp_path / "whole")
    stopped(chosen, tmp_path / "parts", 1, 3, 4)
    train(chosen, tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts", lines)


def test_a_run_of_an_earlier_version_goes_on(config: Any, tmp_path: Path, lines: Lines) -> None:
    """Its files know nothing of the options that came later."""
    train(config(), tmp_path / "whole")
    stopped(config(), tmp_path / "old", 3)
    path = tmp_path / "old" / "run.json"
    content = json.loads(path.read_text())
    options = read_run_file(tmp_path / "old")["config"]
    earlier = {"momentum": 0.9, "decay": 0.2, "exit_curriculum": "rotational", "exit_weights": "even"}
    options |= {"shape": {name: options.pop(name) for name in SHAPE}, **earlier}
    options = {RENAMED.get(name, name): value for name, value in options.items() if name != "steps"}
    content["config"] = {name: value for name, value in options.items() if name not in LATER}
    del content["layerskip"], content["model"]["repeat"], content["model"]["cut"]
    path.write_text(json.dumps(content))
    path = checkpoints(tmp_path / "old")[-1] / "state.json"
    content = json.loads(path.read_text())
    content["gradient"] = {name: content["gradient"][name] for name in ("steps", "sublayers", "blocks")}
    path.write_text(json.dumps(content))
    (path.parent / "checksums.json").unlink()
    with pytest.raises(UsageError, match="holds a run with --equalise False, not True"):
        train(config(equalise=True), tmp_path / "old")
    train(config(), tmp_path / "old")
    assert_same_run(tmp_path / "whole", tmp_path / "old", lines)


RENAMED = {"lr": "learning_rate", "grad_accumulation": "accumulation", "activation_checkpointing": "recompute"}
LATER = (
    "optimizer",
    "momentum",
    "equalise",
    "repeat",
    "layer_dropout",
    "exit_loss",
    "exit_curriculum",
    "exit_every",
    "exit_weights",
    "gradient_from",
    "gradient_until",
    "gradient_every",
)


def test_an_interrupted_run_has_its_share(config: Any, tmp_path: Path) -> None:
    stopped(config(), tmp_path, 3)
    assert load_gradient(tmp_path)["steps"] == 3


def test_bhyts_constants_do_not_depend_on_when_it_was_saved(config: Any, tmp_path: Path, lines: Lines) -> None:
    """120 steps refresh every second one: a save in between writes fresh constants and goes on with the old."""
    chosen = config("bhyt", steps=120)
    stopped(chosen, tmp_path / "often", 1, 3, 4)
    stopped(chosen, tmp_path / "often", 7)
    stopped(chosen, tmp_path / "once", 7)
    assert lines(tmp_path / "often" / "steps.jsonl") == lines(tmp_path / "once" / "steps.jsonl")
    saved = Decoder.load(find_checkpoint(tmp_path / "once"))
    fresh = Decoder.load(find_checkpoint(tmp_path / "once"))
    fresh.refresh_statistics()
    assert saved.blocks[0].mlp_norm.c > 0
    for one, two in zip(saved.buffers(), fresh.buffers(), strict=True):
        assert torch.equal(one, two)


def test_saving_changes_nothing(config: Any, tmp_path: Path, lines: Lines) -> None:
    train(config("bhyt", steps=120), tmp_path / "once")
    train(config("bhyt", steps=120, checkpoint_every=3), tmp_path / "often")
    assert_same_run(tmp_path / "once", tmp_path / "often", lines)


def test_a_killed_run_repeats_no_lines(config: Any, tmp_path: Path, lines: Lines) -> None:
    """Killed after step 5, it has a checkpoint of step 4 and records beyond it, the last one cut short."""

    class KilledError(Exception):
        pass

    def kill(told: dict[str, Any]) -> None:
        if told["step"] == 5:
            raise KilledError

    chosen = config("attnres", record_every=1, evaluate_every=1, checkpoint_every=2)
    train(chosen, tmp_path / "whole")
    with pytest.raises(KilledError):
        train(chosen, tmp_path / "killed", on_step=kill)
    with open(tmp_path / "killed" / "steps.jsonl", "a") as file:
        file.write('{"step": 6, "lo')
    assert checkpoints(tmp_path / "killed")[-1].name == "step-00000004"
    train(chosen, tmp_path / "killed")
    assert_same_run(tmp_path / "whole", tmp_path / "killed", lines)


def test_stopped_before_the_summary(config: Any, tmp_path: Path, lines: Lines) -> None:
    train(config(), tmp_path / "whole")
    train(config(), tmp_path / "late")
    (tmp_path / "late" / "summary.json").unlink()
    (tmp_path / "late" / "gradient.json").unlink()
    train(config(), tmp_path / "late")
    assert_same_run(tmp_path / "whole", tmp_path / "late", lines)


def test_stopped_in_the_last_evaluation(
    config: Any, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last steps are saved before it begins."""

    def impatient(*args: Any, **fields: Any) -> Evaluation:
        raise KeyboardInterrupt

    chosen = config("bhyt", evaluate_every=6)
    train(chosen, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("leadline.training.loop.evaluate", impatient)
        with pytest.raises(KeyboardInterrupt):
            train(chosen, tmp_path / "late")
    train(chosen, tmp_path / "late", on_step=lambda told: pytest.fail("it trained again"))
    assert_same_run(tmp_path / "whole", tmp_path / "late", lines)


def test_a_finished_run_stays(config: Any, tmp_path: Path) -> None:
    summary = train(config(), tmp_path)
    assert train(config(), tmp_path, on_step=lambda told: pytest.fail("it trained again")) == summary


def test_the_previous_checkpoint(config: Any, tmp_path: Path, lines: Lines) -> None:
    chosen = config("mgr", checkpoint_every=2)
    train(chosen, tmp_path / "whole")
    train(chosen, tmp_path / "back")
    assert [path.name[-1] for path in checkpoints(tmp_path / "back")] == ["4", "6"]
    told: list[int] = []

    def on_step(record: dict[str, Any]) -> None:
        # What came after is gone, so that a run that stops here goes on from here.
        assert [path.name[-1] for path in checkpoints(tmp_path / "back")] == ["4"]
        assert not (tmp_path / "back" / "summary.json").exists()
        told.append(record["step"])

    train(chosen, tmp_path / "back", resume="previous", on_step=on_step)
    assert told == [5, 6]
    assert_same_run(tmp_path / "whole", tmp_path / "back", lines)


def test_checkpoints_by_the_clock(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leadline.training.loop.SAVE_SECONDS", 0.0)
    train(config(keep=9), tmp_path)
    assert len(checkpoints(tmp_path)) == 6


def test_ctrl_c_twice_stops_at_once(config: Any, tmp_path: Path, lines: Lines) -> None:
    def impatient(told: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(config(), tmp_path, on_step=impatient)
    assert not checkpoints(tmp_path)
    assert signal.getsignal(signal.SIGINT) is before


def begin(data: Path, out: Path, *more: str) -> tuple[subprocess.Popen[str], str]:
    """`leadline train` for 100,000 steps, and the line that it prints after the first."""
    command = [sys.executable, "-m", "leadline.cli.main", "train", "prenorm", "--data", str(data), "--out", str(out)]
    command += ["--blocks", "2", "--context", "16", "--steps", "100k", "--evaluate-every", "100000", *more]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    return process, next((line for line in process.stderr if line.startswith("step ")), "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_exits_130(data: Path, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    process, first = begin(data, out)
    process.send_signal(number)
    _, rest = process.communicate(timeout=240)
    assert process.returncode == 130, first + rest
    assert first.startswith("step 1/100000")
    assert "rerun the same command to resume" in rest
    assert "Traceback" not in rest
    (saved,) = checkpoints(out)
    assert not list(out.glob("**/*.partial"))
    steps = (out / "steps.jsonl").read_text().splitlines()
    assert len(steps) == int(saved.name.removeprefix("step-"))


def test_killed_at_any_moment_it_goes_on(data: Path, tmp_path: Path, lines: Lines) -> None:
    """`kill -9`, mostly while a checkpoint is being written: each step writes one."""
    out = tmp_path / "run"
    process, first = begin(data, out, "--checkpoint-every", "1")
    time.sleep(random.random())
    process.kill()
    process.communicate(timeout=240)
    assert first.startswith("step 1/100000")
    last = int(checkpoints(out)[-1].name.removeprefix("step-")) if checkpoints(out) else 0
    chosen = RunConfig.of(
        design="prenorm",
        data=str(data),
        blocks=2,
        context=16,
        tokens=100_000 * 8 * 16,
        evaluate_every=100_000,
        checkpoint_every=1,
    )
    stopped(chosen, out, last + 1)
    assert not list(out.glob("**/*.partial"))
    assert [record["step"] for record in lines(out / "steps.jsonl")] == list(range(1, last + 2))
    load_model(out)
