"""`leadline prune`: what it prints, what it writes, and how it says no."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leadline.cli.main import main
from leadline.cli.prune import Arguments, command_line
from leadline.data import prepare
from leadline.errors import UsageError
from leadline.experiments.pruning.options import numbers
from leadline.pruning import sweep
from leadline.pruning.text import quality
from leadline.training import RunConfig, train

SHAPE = {"blocks": 4, "dim": 8, "heads": 2, "kv_heads": 1, "head_dim": 4, "hidden": 12}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for number in range(2):
        (folder / f"{number}.txt").write_text("By the deep, six! By the mark, seven! " * 40)
    prepare([folder], folder / "set", heldout_last=1)
    return folder / "set"


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = []
    for seed in range(2):
        out = tmp_path_factory.mktemp("runs") / f"seed{seed}"
        config = RunConfig.of(
            design="prenorm", data=str(data), **SHAPE, batch_size=4, context=16, tokens=256, seed=seed,
            lr=0.02,
        )  # fmt: skip
        train(config, out)
        folders.append(out)
    return folders


def words(runs: list[Path], data: Path, *more: str) -> list[str]:
    small = ["--data", str(data), "--evaluate-tokens", "128", "--calibration-tokens", "64"]
    return ["prune", *map(str, runs), *small, *more]


def test_a_cut(runs: list[Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    more = ("--criterion", "taylor", "--ratio", "0.5", "--out", str(out), "--json", str(tmp_path / "said.json"))
    assert main(words(runs[:1], data, *more)) == 0
    said = capsys.readouterr().out
    record = json.loads((out / "prune.json").read_text())
    assert json.loads((tmp_path / "said.json").read_text()) == record
    assert f"cut 2 of 4 blocks: {' '.join(record['cut'])}\n" in said
    assert f"from 0): {' '.join(record['kept'])}\n" in said
    assert "on 128 held-out tokens of " in said
    assert "context 16, stride 16" in said
    assert "scores from 64 tokens of the training split" in said
    assert f"{record['after']['perplexity']:.4f}" in said
    assert "the reloaded model matches the original with those blocks skipped" in said
    assert main(["generate", str(out), "--prompt", "By", "--tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("By")


def test_ranges_and_stride(runs: list[Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--blocks", "1..2", "--stride", "4", "--out", str(tmp_path / "out"))
    assert main(words(runs[:1], data, *more)) == 0
    said = capsys.readouterr().out
    assert "cut 2 of 4 blocks: 1 2\n" in said
    assert "context 16, stride 4" in said


def test_a_dry_run(runs: list[Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(runs[:1], data, "--criterion", "cfp", "--count", "1", "--dry-run")) == 0
    said = capsys.readouterr().out
    assert "nothing was written (--dry-run)" in said
    assert "scores by cfp, gradient share by the definition sum; low is cut first" in said
    more = ("--criterion", "cfp", "--gradient-definition", "clipped", "--count", "1", "--dry-run")
    assert main(words(runs[:1], data, *more)) == 0
    assert "gradient share by the definition clipped; low" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_healing_and_speed(runs: list[Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--heal-tokens", "256", "--speed", "--speed-batches", "1", "--out", str(tmp_path / "out"))
    assert main(words(runs[:1], data, "--criterion", "magnitude", "--count", "1", *more)) == 0
    said = capsys.readouterr().out
    assert "cut and healed" in said
    assert "prefill    batch 1 " in said
    assert "the reloaded model matches the healed model" in said


def test_a_sweep(runs: list[Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--sweep", "0.25,0.5", "--criteria", "cfp,magnitude,random", "--out", str(tmp_path / "out"))
    assert main(words(runs, data, *more)) == 0
    said = capsys.readouterr().out
    assert "C1: CFP beats similarity, Taylor and magnitude in perplexity and rank stability: " in said
    assert "report: " in said
    assert all(f"\ncfp, {name} " in said for name in ("sum", "clipped", "mean-of-shares", "after-warmup"))
    assert " By clipped, " in said
    files = [".lock", "report.html", "results.json", "sweep.json"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == files


def test_a_sweep_goes_on(
    runs: list[Path],
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, measured = tmp_path / "out", []

    def interrupted(*given: Any) -> Any:
        measured.append(1)
        if len(measured) == 4:
            raise KeyboardInterrupt
        return quality(*given)

    asked = words(runs, data, "--sweep", "0.25,0.5", "--criteria", "taylor,angular")
    monkeypatch.setattr(sweep, "quality", interrupted)
    assert main([*asked, "--out", str(out)]) == 130
    assert sorted(path.name for path in out.iterdir()) == [".lock", "sweep.json"]
    assert main([*asked, "--seed", "1", "--out", str(out)]) == 2
    assert "holds another sweep: seed is 0 there and 1 here. Name a new folder" in capsys.readouterr().err
    known = json.loads((out / "sweep.json").read_text())["known"]
    assert main([*asked, "--out", str(out)]) == 0
    monkeypatch.setattr(sweep, "quality", quality)
    again = json.loads((out / "sweep.json").read_text())["known"]
    assert len(known) < len(again)
    assert {name: again[name] for name in known} == known
    assert len(measured) == 1 + sum(" without " in name for name in again)
    assert main([*asked, "--out", str(tmp_path / "whole")]) == 0
    whole, found = (json.loads((folder / "results.json").read_text()) for folder in (tmp_path / "whole", out))
    assert {**whole, "command": ""} == {**found, "command": ""}


def test_a_sweep_does_not_mix_models(
    runs: list[Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, copies = tmp_path / "out", [tmp_path / run.name for run in runs]
    for run, copy in zip(runs, copies, strict=True):
        shutil.copytree(run, copy)
    asked = words(copies, data, "--sweep", "0.5", "--criteria", "magnitude", "--out", str(out))
    assert main(asked) == 0
    capsys.readouterr()
    assert main(words(copies[::-1], data, *asked[asked.index("--sweep") :])) == 2
    said = capsys.readouterr().err
    assert re.search("holds another sweep: models 1 weights is [0-9a-f]{12}… there and [0-9a-f]{12}… here", said)
    (out / "sweep.json").write_text("{}", encoding="utf-8")
    assert main(asked) == 1
    assert "is damaged" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    assert main([*asked[:-1], str(tmp_path / "other")]) == 2
    assert "holds something already" in capsys.readouterr().err
    # A study's folder has a sweep in it, and results of its own.
    (out / "study.json").write_text("{}", encoding="utf-8")
    results = (out / "results.json").read_bytes()
    assert main(asked) == 2
    assert "holds a study, whose results would be lost" in capsys.readouterr().err
    assert (out / "results.json").read_bytes() == results


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--criterion", "taylor", "--count", "1"), "--out is missing"),
        (("--criterion", "taylor", "--count", "1", "--dry-run", "--out", "x"), "give one of them"),
        (("--criterion", "tailor", "--count", "1", "--dry-run"), "Did you mean taylor"),
        (("--criterion", "taylor", "--dry-run"), "give one of --ratio 0.25, --count 6 and --blocks"),
        (("--criterion", "taylor", "--blocks", "1", "--dry-run"), "--criterion chooses it; give one of them"),
        (("--count", "1", "--dry-run"), "--criterion is missing: it says what chooses the blocks; cfp, similarity, "),
        (("--criterion", "cfp", "--ratio", "0.95", "--dry-run"), "leaves nothing; --ratio 0.75 is 3, the most"),
        (("--blocks", "1", "--seeds", "2", "--dry-run"), "--seeds goes with --sweep"),
        (("--blocks", "1", "--speed-batches", "2", "--dry-run"), "--speed-batches 2 does nothing without --speed"),
        (("--sweep", "0.95", "--dry-run"), "leaves nothing; --sweep 0.75 is 3, the most"),
        (("--sweep", "0.5", "--seed", "5", "--dry-run"), "--seed 5 does nothing in a sweep of one model"),
        (("--sweep", "0.5", "--normalised", "--criteria", "magnitude", "--dry-run"), "leave --normalised out"),
        (("--criterion", "cfp", "--ratio", "1.5", "--dry-run"), "--ratio 1.5 is out of range"),
        (("--criterion", "cfp", "--count", "4", "--dry-run"), "leaves nothing; 3 is the most"),
        (("--criterion", "cfp", "--count", "1", "--protect-first", "4", "--dry-run"), "protect all of 4 blocks"),
        (("--blocks", "4", "--dry-run"), "this model has blocks 0 to 3"),
        (("--blocks", "1", "--stride", "17", "--dry-run"), "--stride 17 is more than the context"),
        (("--blocks", "1", "--heal-lr", "0.1", "--dry-run"), "--heal-lr 0.1 does nothing without --heal-tokens"),
        (("--blocks", "1", "--criteria", "cfp", "--dry-run"), "--criteria goes with --sweep"),
        (("--blocks", "1", "--gradient-definition", "sum", "--dry-run"), "goes with --criterion cfp alone"),
        (
            ("--sweep", "0.5", "--criteria", "taylor", "--gradient-definition", "clipped", "--dry-run"),
            "--gradient-definition is of cfp, and --criteria taylor is without it",
        ),
        (("--sweep", "0.5", "--criterion", "cfp", "--dry-run"), "--criterion is for a single pruning"),
        (("--sweep", "half", "--dry-run"), "--sweep 'half' is not a list of numbers"),
        (("--sweep", "0.5", "--seeds", "none", "--dry-run"), "--seeds 'none'"),
        (("--blocks", "1", "--device", "abacus", "--dry-run"), "--device abacus"),
        (("--blocks", "1", "--calibration-tokens", "few", "--dry-run"), "--calibration-tokens 'few'"),
    ],
)
def test_bad_usage(
    more: tuple[str, ...], message: str, runs: list[Path], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(runs[:1], data, *more)) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.splitlines()[-1].startswith("leadline: error: ")


def test_models(runs: list[Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(runs, data, "--blocks", "1", "--dry-run")) == 2
    assert "2 models are given; pruning takes one" in capsys.readouterr().err
    assert main(words([runs[0], runs[0]], data, "--sweep", "0.5", "--dry-run")) == 2
    assert "named twice" in capsys.readouterr().err
    assert main(words(runs, data, "--sweep", "0.5", "--seeds", "2", "--dry-run")) == 2
    assert "--seeds 2 goes with one model; several models are the seeds" in capsys.readouterr().err
    assert main(words([], data, "--blocks", "1", "--dry-run")) == 2
    assert "MODEL is missing" in capsys.readouterr().err
    assert main(words([tmp_path / "none"], data, "--blocks", "1", "--dry-run")) == 2
    assert "is not a folder" in capsys.readouterr().err
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("")
    assert main(words(runs[:1], data, "--blocks", "1", "--out", str(tmp_path / "out"))) == 2
    assert "holds something already" in capsys.readouterr().err


def test_interrupted(
    runs: list[Path], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*anything: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("leadline.pruning.cutting.heal", stop)
    more = ("--blocks", "1", "--heal-tokens", "256", "--out", str(tmp_path / "out"))
    assert main(words(runs[:1], data, *more)) == 130
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_one_left_is_removed(runs: list[Path], data: Path, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    left = tmp_path / f".out.{dead.pid}.pruned"
    left.mkdir()
    (left / "model.safetensors").write_text("half")
    assert main(words(runs[:1], data, "--blocks", "1", "--out", str(tmp_path / "out"))) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_command_again() -> None:
    asked = Arguments(model=(Path("a b"), Path("c")), sweep="0.5", out=Path("o"), normalised=True, seeds="2")
    assert command_line(asked) == "leadline prune 'a b' c --normalised --sweep 0.5 --seeds 2 --out o"


def test_numbers() -> None:
    assert numbers("0.1, 0.5", "sweep", float) == (0.1, 0.5)
    with pytest.raises(UsageError, match="speed_batches='x' is not a list of numbers such as 1,4,16"):
        numbers("x", "speed_batches", int)
