"""Training on two and four processes is training in one: bit for bit where sums have one order, else by rounding."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from leadline.cli.main import main
from leadline.distributed.world import World, layout
from leadline.errors import UsageError
from leadline.training import RunConfig, gradient_share, train
from leadline.training.checkpoint import checkpoints, find_checkpoint
from leadline.training.gradient_norms import Norms
from leadline.training.resolve import check_parallel, decide

Lines = Callable[[Path], list[dict[str, Any]]]
WORKER = Path(__file__).parents[1] / "support" / "rank_worker.py"
STEPS = 6
PATIENCE_S = 250
DESIGNS = (
    "prenorm",
    "post-ln",
    "layerscale",
    "attnres",
    "attnres-block(blocks=2)",
    "mgr-competitive",
    "mgr-independent",
    "hc",
    "mhc",
    "bhyt",
    "dyt",
    "peri-ln",
    "prenorm + taper(heads=1/2)",
)
OPTIONS: dict[str, dict[str, Any]] = {
    "replicate": {"design": "mgr", "replicate": 2},
    "bfloat16": {"design": "attnres", "precision": "bfloat16", "activation_checkpointing": True},
    # Its vectors of 24 numbers are sharded within a vector of the processor, and AdamW rounds the last ones otherwise.
    "mhc-lite": {"design": "mhc-lite", "optimizer": "sgd"},
    "exits": {"design": "mgr", "exit_loss": 0.5, "exit_curriculum": "all"},
    "dropout": {"layer_dropout": 0.95, "seed": 1, "exit_loss": 0.5},
    "repeat": {"design": "attnres", "repeat": "1x3"},
    "sgd": {"optimizer": "sgd", "momentum": 0.5},
    "chunks": {"design": "mgr", "loss_chunk": 5},
    "wsd": {"design": "bhyt", "schedule": "wsd", "checkpoint_every": 2},
}
"""Without clipping: then no number of a step depends on the order in which norms are summed."""


@pytest.fixture(scope="module")
def made(data: Path) -> Callable[..., dict[str, Any]]:
    """The options of a small run, as JSON holds them."""

    def make(**more: Any) -> dict[str, Any]:
        shape = {"blocks": 2, "dim": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "hidden": 64, "context": 16}
        batch_size = more.get("batch_size", 2)
        base = {"design": "prenorm", "data": str(data), "lr": 0.01, "batch_size": batch_size, "clip": None}
        return base | shape | {"tokens": STEPS * batch_size * 16, "record_every": 2, "evaluate_every": 3} | more

    return make


def start(folder: Path, cases: list[dict[str, Any]], size: int) -> dict[str, list[dict[str, Any]]]:
    """Runs the cases on so many ranks; what came of each, by rank."""
    folder.mkdir(exist_ok=True)
    (folder / "cases.json").write_text(json.dumps(cases))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    commands = [[sys.executable, str(WORKER), str(folder), str(rank), str(size)] for rank in range(size)]
    ranks = [subprocess.Popen(each, env=environment, stderr=subprocess.PIPE, text=True) for each in commands]
    said = [rank.communicate(timeout=PATIENCE_S)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(said)[-3000:]
    return {
        case["name"]: [json.loads((folder / f"{case['name']}.{rank}.json").read_text()) for rank in range(size)]
        for case in cases
    }


def alone(options: dict[str, Any], out: Path, size: int) -> Path:
    """The same run in one process, which accumulates what the ranks would each do."""
    options = {name: value for name, value in options.items() if name not in ("replicate", "shard")}
    options["grad_accumulation"] = size * options.get("grad_accumulation", 1)
    design = options.pop("design")
    train(RunConfig.of(design, **options), out)
    return out


def assert_same(one: Path, two: Path, lines: Lines) -> None:
    """All that is learned, to the bit; norms of gradients to rounding, as their sums are in parts."""
    pairs = list(zip(lines(one / "steps.jsonl"), lines(two / "steps.jsonl"), strict=True))
    for a, b in pairs:
        assert a.pop("grad_norm") == pytest.approx(b.pop("grad_norm"), rel=1e-5)
        assert a == b
    assert lines(one / "evals.jsonl") == lines(two / "evals.jsonl")
    assert (one / "heldout.npy").read_bytes() == (two / "heldout.npy").read_bytes()
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (find_checkpoint(one) / name).read_bytes() == (find_checkpoint(two) / name).read_bytes(), name


def widest(one: Path, two: Path) -> float:
    """The largest difference between two models' weights."""
    a, b = (load_file(find_checkpoint(out) / "model.safetensors") for out in (one, two))
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory, made: Callable[..., dict[str, Any]]) -> Any:
    """Every design sharded over two ranks, and every option; by name the folder, the options and what was returned."""
    folder = tmp_path_factory.mktemp("two")
    cases = [{"name": design, "options": made(design=design)} for design in DESIGNS]
    cases += [{"name": name, "options": made(**options)} for name, options in OPTIONS.items()]
    cases += [
        {"name": "clipped", "options": made(design="mgr", clip=0.5, optimizer="sgd")},
        {"name": "equalised", "options": made(design="mgr", equalise=True, optimizer="sgd")},
        {"name": "accumulated", "options": made(design="hc", grad_accumulation=2, batch_size=4)},
        {"name": "stopped", "options": made(design="mgr"), "interrupt": 3},
        {"name": "resumed", "options": made(design="mgr"), "out": "stopped"},
        {"name": "left", "options": made(design="mgr", shard=2), "interrupt": 4},
        {"name": "diverging", "options": made(lr=1e30, optimizer="sgd", weight_decay=0.0)},
        {"name": "too many", "options": made(batch_size=3)},
    ]
    found = start(folder, cases, 2)
    return {case["name"]: (folder / case["name"], case["options"], found[case["name"]]) for case in cases}


@pytest.mark.parametrize("name", [*DESIGNS, *OPTIONS])
def test_two_ranks_are_one_process(name: str, pairs: Any, tmp_path: Path, lines: Lines) -> None:
    out, options, found = pairs[name]
    assert found[0] == found[1]
    assert_same(alone(options, tmp_path / "alone", 2), out, lines)


def reference_order(parameters: Any) -> Norms:
    """Squares summed in float64, as sharded gradients are: then the parts' order is lost in rounding to float32."""
    values = [torch.zeros((), dtype=torch.float64) if p.grad is None else p.grad.double().norm() for p in parameters]
    return Norms(torch.stack(values), torch.tensor([p.grad is not None for p in parameters]))


def test_micro_batches_of_ranks_are_summed_in_another_order(pairs: Any, tmp_path: Path) -> None:
    out, options, _ = pairs["accumulated"]
    assert 0 < widest(alone(options, tmp_path / "alone", 2), out) < 1e-4


@pytest.mark.parametrize("name", ["clipped", "equalised"])
def test_what_follows_a_norm_differs_by_its_order_alone(
    name: str, pairs: Any, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, options, _ = pairs[name]
    near = alone(options, tmp_path / "near", 2)
    assert 0 <= widest(near, out) < 1e-6
    monkeypatch.setattr(gradient_share, "measure_norms", reference_order)
    same = alone(options, tmp_path / "same", 2)
    assert widest(same, out) < 1e-7 if name == "equalised" else widest(same, out) == 0


def test_a_hundred_steps_with_clipping(
    made: Callable[..., dict[str, Any]], tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = made(design="attnres-block(blocks=2)", clip=0.5, tokens=100 * 32, evaluate_every=50)
    start(tmp_path, [{"name": "ranks", "options": options}], 2)
    monkeypatch.setattr(gradient_share, "measure_norms", reference_order)
    assert_same(alone(options, tmp_path / "alone", 2), tmp_path / "ranks", lines)


def test_resumed_on_other_layouts(pairs: Any, tmp_path: Path, lines: Lines) -> None:
    """Two ranks stopped and resumed; two ranks stopped, and one process that takes over."""
    whole = alone(pairs["resumed"][1], tmp_path / "whole", 2)
    assert pairs["stopped"][2] == [{"interrupted": True}] * 2
    assert_same(whole, pairs["stopped"][0], lines)
    out, options, found = pairs["left"]
    assert found == [{"interrupted": True}] * 2
    options = {name: value for name, value in options.items() if name not in ("shard", "design")}
    train(RunConfig.of("mgr", **options), out)
    assert widest(whole, out) < 1e-6, "its last two steps sum a batch's losses at once"


def test_a_loss_that_is_not_finite_ends_all_and_saves(pairs: Any) -> None:
    out, _, found = pairs["diverging"]
    assert found[0] == found[1]
    assert "is not finite" in found[0]["error"]
    weights = load_file(checkpoints(out)[-1] / "model.safetensors")
    assert all(bool(value.isfinite().all()) for value in weights.values())


def test_a_batch_that_can_t_be_shared_out(pairs: Any) -> None:
    for found in pairs["too many"][2]:
        assert found["error"].startswith("batch_size=3 can't be shared out among 2 processes")


def test_four_ranks(made: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """Four summands have several orders: in float32 weights differ by rounding, and in float64 hardly at all."""
    cases = [
        {"name": f"{name}-{wide}", "options": made(design=design, batch_size=4, **layout), "float64": wide}
        for name, design, layout in (
            ("sharded", "attnres", {}),
            ("both", "mgr", {"replicate": 2, "shard": 2}),
            ("copies", "hc", {"replicate": 4}),
        )
        for wide in (False, True)
    ]
    start(tmp_path, cases, 4)
    for case in cases:
        try:
            torch.set_default_dtype(torch.float64 if case["float64"] else torch.float32)
            one = alone(case["options"], tmp_path / f"{case['name']}-alone", 4)
        finally:
            torch.set_default_dtype(torch.float32)
        difference = widest(one, tmp_path / str(case["name"]))
        assert difference < (1e-11 if case["float64"] else 1e-3), case["name"]


def test_layouts() -> None:
    assert layout(None, None, 4) == (1, 4)
    assert layout(2, None, 4) == (2, 2)
    assert layout(None, 1, 4) == (4, 1)
    for asked, size, works in (
        ((3, None), 4, "1 × 4"),
        ((2, 3), 4, "4 × 1"),
        ((None, 8), 4, "2 × 2"),
        ((2, 1), 1, "1 × 1"),
    ):
        with pytest.raises(UsageError, match=rf"--replicate .* × --shard .*; .*{works}.* work"):
            layout(*asked, size)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"design": "attnres", "two_phase": True}, "--two-phase works in one process alone, and there are 2"),
        ({"compile_blocks": True}, "--compile-blocks works in one process alone"),
        ({"gradient_every": 2}, "--gradient-every works in one process alone"),
        ({"equalise_updates": True}, "--equalise-updates works in one process alone"),
        ({"design": "mgr(memory=invert)"}, 'memory="invert" works in one process alone'),
        ({"grad_accumulation": 2}, "a multiple of 4 can"),
    ],
)
def test_what_works_in_one_process_alone(
    options: dict[str, Any], said: str, made: Callable[..., dict[str, Any]]
) -> None:
    chosen = made(**options)
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        check_parallel(decide(RunConfig.of(chosen.pop("design"), **chosen)), World(size=2))


def words(made: Callable[..., dict[str, Any]], out: Path, **more: Any) -> list[str]:
    options = {name: value for name, value in made(**more).items() if value is not None}
    design = options.pop("design")
    pairs = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return ["train", design, *pairs, "--out", str(out)]


def test_the_command(
    made: Callable[..., dict[str, Any]], tmp_path: Path, lines: Lines, capfd: pytest.CaptureFixture[str]
) -> None:
    command = words(made, tmp_path / "out", design="mgr")
    assert main([*command, "--clip", "None", "--nproc", "2", "--parallel.replicate", "2"]) == 0
    said = capfd.readouterr()
    assert said.out.count("bits per byte held out") == 1
    assert said.err.count("2 processes: replicate 2 × shard 1, 1 of 2 sequences each") == 1
    assert_same(alone(made(design="mgr"), tmp_path / "alone", 2), tmp_path / "out", lines)
    assert main([*command, "--nproc", "2", "--shard", "4"]) == 2
    assert "--replicate 1 × --shard 4 is 4 processes, and there are 2; 2 × 1, 1 × 2 work" in capfd.readouterr().err
    assert main([*command, "--shard", "2"]) == 2
    assert "and there is 1; 1 × 1 works" in capfd.readouterr().err


def test_what_the_first_process_refuses_ends_all_at_once(
    made: Callable[..., dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    begin = time.monotonic()
    assert main([*words(made, tmp_path), "--nproc", "2"]) == 2
    said = capfd.readouterr().err
    assert "holds something that is not a Leadline run" in said
    assert time.monotonic() - begin < 60
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert main(["compare", "prenorm", "--shard", "2", "--out", str(tmp_path / "compared")]) == 2
    assert "--replicate 1 × --shard 2 is 2 processes, and there is 1" in capfd.readouterr().err


def test_torchrun(made: Callable[..., dict[str, Any]], tmp_path: Path, lines: Lines) -> None:
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr",
        "127.0.0.1",
        "--nproc-per-node",
        "2",
        "-m",
        "leadline",
    ]
    command = [*torchrun, *words(made, tmp_path / "out", design="mgr"), "--clip", "None"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("bits per byte held out") == 1
    assert_same(alone(made(design="mgr"), tmp_path / "alone", 2), tmp_path / "out", lines)


@pytest.mark.skipif(shutil.which("ps") is None, reason="there is no ps")
def test_a_rank_that_dies_ends_the_job_and_what_was_saved_resumes(
    made: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    out, tokens = tmp_path / "out", 4000 * 32
    command = words(made, out, tokens=tokens, evaluate_every=4000, checkpoint_every=10)
    with subprocess.Popen([sys.executable, "-m", "leadline", *command, "--nproc", "2"]) as process:
        until = time.monotonic() + 120
        while not checkpoints(out) and time.monotonic() < until:
            time.sleep(0.1)
        listed = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True).stdout.split("\n")[1:]
        ranks = [int(line.split()[0]) for line in listed if line.split()[1:] == [str(process.pid)]]
        os.kill(max(ranks), signal.SIGKILL)
        begin = time.monotonic()
        assert process.wait(timeout=60) == 1
        assert time.monotonic() - begin < 30
    step = int(checkpoints(out)[-1].name.removeprefix("step-"))
    assert step < 4000
    options = made(tokens=tokens, evaluate_every=4000, checkpoint_every=10, clip=1.0)

    def stop(told: dict[str, Any]) -> None:
        assert told["step"] > step
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(RunConfig.of(options.pop("design"), **options), out, on_step=stop)


def test_ctrl_c_reaches_all(made: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = words(made, out, tokens=4000 * 32, evaluate_every=4000, checkpoint_every=10)
    with subprocess.Popen(
        [sys.executable, "-m", "leadline", *command, "--nproc", "2"], stderr=subprocess.PIPE, text=True
    ) as process:
        until = time.monotonic() + 120
        while not checkpoints(out) and time.monotonic() < until:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=90)[1]
        assert process.returncode == 130
    assert "rerun the same command to resume" in said
    assert math.isfinite(json.loads((checkpoints(out)[-1] / "state.json").read_text())["train_loss"])
