"""`leadline compare` from end to end on a minute model: two blocks, a few steps."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leadline.cli.compare import run
from leadline.errors import LeadlineError, UsageError
from leadline.experiments.compare.config import CompareConfig

SMALL = ["--blocks", "2", "--dim", "24", "--context", "32", "--batch-size", "4", "--jobs", "1", "--threads", "1"]
SMALL += ["--evaluations", "2", "--evaluate-tokens", "256", "--measure-tokens", "256"]


def arguments(data: Path, out: Path, *designs: str, **options: Any) -> CompareConfig:
    small = {"blocks": 2, "dim": 24, "context": 32, "batch_size": 4, "jobs": 1, "threads": 1, "steps": 4}
    small |= {"evaluations": 2, "evaluate_tokens": 256, "measure_tokens": 256}
    return CompareConfig(designs=designs, out=out).replaced(data=str(data), **{**small, **options})


def read(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "results.json").read_text())
    return content


@pytest.fixture(scope="module")
def compared(dataset: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """prenorm and MGR on two seeds, and one design that cannot train."""
    out = tmp_path_factory.mktemp("compare") / "out"
    rates = "lns=1e30"
    code = run(arguments(dataset.folder, out, "prenorm", "mgr(streams=3)", "lns", seeds="2", rates=rates))
    return out, code


@pytest.fixture(scope="module")
def one_seed(dataset: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    """prenorm and attnres on one seed, whole."""
    out = tmp_path_factory.mktemp("compare") / "whole"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = run(arguments(dataset.folder, out, "prenorm", "attnres", seeds="1", steps=60))
    return out, code, said.getvalue()


def test_a_failed_design_is_marked_and_the_rest_goes_on(compared: tuple[Path, int]) -> None:
    out, code = compared
    assert code == 1
    results = read(out)
    status = {design["name"]: design["status"] for design in results["arms"]}
    assert status == {"prenorm": "ok", "mgr-competitive(streams=3)": "ok", "lns": "failed"}
    lns = results["arms"][2]
    assert "finite" in lns["error"]
    assert lns["loss"] is lns["bits_per_byte"] is lns["curve"] is lns["depth"] is lns["difference"] is None
    assert lns["parameters"] > 0
    assert any("lns failed" in sentence for sentence in results["verdict"]["sentences"])


def test_results_hold_everything(compared: tuple[Path, int]) -> None:
    out, _ = compared
    results = read(out)
    assert results["baseline"] == "prenorm"
    assert results["seeds"] == [0, 1]
    assert results["budget"]["tokens"] == 4 * 4 * 32
    assert results["budget"]["steps"] == 4
    assert results["preset"]["blocks"] == 2
    assert results["machine"]["cores"] >= 1
    base, mgr, _ = results["arms"]
    assert base["difference"] is None
    assert len(mgr["difference"]["pairs"]) == 2
    assert mgr["difference"]["text"]["sequences"] == 8
    losses = np.load(out / "runs" / "prenorm-seed0" / "heldout.npy")
    assert losses.mean() == pytest.approx(base["loss"]["values"][0], rel=1e-5)
    assert mgr["difference"]["low"] < mgr["difference"]["mean"] < mgr["difference"]["high"]
    for design in (base, mgr):
        assert len(design["bits_per_byte"]["values"]) == 2
        assert 1 < design["bits_per_byte"]["mean"] < 9
        assert design["tokens_per_second"] > 0
        assert len(design["speed"]["seconds"]) == 6
        assert design["peak_memory_bytes"] > 0
        assert design["parameters"] > 0
        assert design["flops_per_token"] > 0
        assert design["curve"]["tokens"][-1] == 512
        assert len(design["curve"]["train_loss"]["loss"]) == 4
        depth = design["depth"]
        assert len(depth["block_output_rms"]) == len(depth["removal"]) == len(depth["gradient_share"]) == 2
        assert sum(depth["gradient_share"]) == pytest.approx(1)
        assert len(depth["read_rms"]) == 5
        assert len(depth["output_rms"]) == 4
        assert [len(row) for row in depth["angular_distance"]] == [3, 3, 3]
    assert base["depth"]["gates"] is None
    assert [len(row) for row in mgr["depth"]["gates"]] == [0, 0, 3, 3]
    assert len(mgr["depth"]["stream_diversity"]) == 4


def test_the_files_beside_it(compared: tuple[Path, int]) -> None:
    out, _ = compared
    page = (out / "report.html").read_text()
    assert "mgr-competitive(streams=3)" in page
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert [(row["design"], row["seed"], row["status"]) for row in rows][:3] == [
        ("prenorm", "0", "ok"),
        ("prenorm", "1", "ok"),
        ("mgr-competitive(streams=3)", "0", "ok"),
    ]
    assert float(rows[0]["bits_per_byte"]) > 0
    assert "finite" in rows[-1]["error"]
    assert (out / "experiment.json").is_file()


def test_the_same_command_repeats_no_finished_run(compared: tuple[Path, int], dataset: Any) -> None:
    out, _ = compared
    before = {p: p.stat().st_mtime_ns for p in out.glob("runs/[pm]*/*.json*")}
    results = read(out)
    rates = "lns=1e30"
    assert run(arguments(dataset.folder, out, "prenorm", "mgr(streams=3)", "lns", seeds="2", rates=rates)) == 1
    assert {p: p.stat().st_mtime_ns for p in out.glob("runs/[pm]*/*.json*")} == before
    assert read(out)["arms"][0]["loss"] == results["arms"][0]["loss"]


def test_another_comparison_in_the_same_folder_is_an_error(compared: tuple[Path, int], dataset: Any) -> None:
    out, _ = compared
    with pytest.raises(UsageError, match=r"holds another experiment: seeds is 0,1 there and 0 here; .*designs"):
        run(arguments(dataset.folder, out, "prenorm", seeds="1"))


def test_two_at_once_in_one_folder_are_an_error(compared: tuple[Path, int], dataset: Any) -> None:
    import fcntl

    out, _ = compared
    with open(out / ".lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(LeadlineError, match="another leadline compare is at work"):
            run(arguments(dataset.folder, out, "prenorm", "mgr(streams=3)", "lns", seeds="2", rates="lns=1e30"))


def test_an_interruption_and_the_same_command_again(
    one_seed: tuple[Path, int, str], dataset: Any, tmp_path: Path
) -> None:
    """Interrupted in the middle of a run, it exits 130; again, it ends as a run that nobody interrupted."""
    whole, out = one_seed[0], tmp_path / "cut"
    script = "import sys; from leadline.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "compare", "prenorm", "--data", str(dataset.folder), "--seeds", "1"]
    command += ["--steps", "60", *SMALL, "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    steps = out / "runs" / "prenorm-seed0" / "steps.jsonl"
    until(lambda: steps.exists() and steps.read_text().count("\n") >= 5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 130, said
    assert not (out / "results.json").exists()
    assert not (out / "runs" / "prenorm-seed0" / "summary.json").exists()
    assert run(arguments(dataset.folder, out, "prenorm", seeds="1", steps=60)) == 0
    one, other = read(whole)["arms"][0], read(out)["arms"][0]
    assert other["loss"] == one["loss"]
    assert other["curve"] == one["curve"]


def test_a_sweep_chooses_the_rate_on_another_seed(dataset: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = {"seeds": "1", "sweep_lr": ("1e-6,1e-2",), "steps": 6}
    assert run(arguments(dataset.folder, out, "prenorm", **options)) == 0
    results = read(out)
    assert [curve["chosen"] for curve in results["learning_rates"]] == [0.01]
    assert [len(curve["points"]) for curve in results["learning_rates"]] == [2]
    assert results["arms"][0]["settings"]["learning_rate"] == 0.01
    assert any("largest learning rate tried" in sentence for sentence in results["verdict"]["sentences"])
    assert (out / "runs" / "prenorm-seed1-lr0.01" / "summary.json").is_file()
    assert not (out / "runs" / "prenorm-seed1-lr0.01" / "probes.json").exists()


def test_one_seed_shows_no_interval(one_seed: tuple[Path, int, str]) -> None:
    out, code, said = one_seed
    assert code == 0
    results = read(out)
    assert results["arms"][1]["difference"]["low"] is None
    assert results["arms"][1]["difference"]["beyond_noise"] is None
    weights = results["arms"][1]["depth"]["depth_weights"]
    assert [len(row) for row in weights] == [1, 2, 3, 4, 5]
    assert "One seed" in " ".join(results["verdict"]["sentences"])
    assert results["verdict"]["headline"] in said
    assert "one seed" in said
    assert str(out / "report.html") in said


def test_an_out_that_is_a_file(dataset: Any, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(LeadlineError, match=r"--out .* is a file; name a folder"):
        run(arguments(dataset.folder, tmp_path / "out", "prenorm"))


def test_a_run_saves_when_the_comparison_is_killed(dataset: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = "import sys; from leadline.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "compare", "prenorm", "--data", str(dataset.folder), "--seeds", "1"]
    command += ["--steps", "100000", *SMALL, "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    folder = out / "runs" / "prenorm-seed0"
    until(lambda: (folder / "steps.jsonl").exists() and (folder / "steps.jsonl").stat().st_size > 0)
    process.kill()
    process.wait()
    until(lambda: any(folder.glob("checkpoints/step-*/state.json")))
    size = (folder / "worker.log").stat().st_size
    assert size == 0, (folder / "worker.log").read_text()


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)
