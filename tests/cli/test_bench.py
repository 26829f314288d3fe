"""`leadline bench`: options, files, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from leadline.bench import operators
from leadline.bench.cases import CASES
from leadline.cli.main import main
from leadline.progress import StatusLine

TINY = ["--blocks", "2", "--dim", "16", "--rounds", "2", "--backend", "lean"]
OPS = ["bench", "ops", "--tokens", "4", "--dim", "8", "--backend", "lean", "--rounds", "1"]


def test_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--json", str(tmp_path / "m.json"), "--picture", str(tmp_path / "m.svg")]
    threads = torch.get_num_threads()
    words = ["bench", "models", "mgr", *TINY, "--context", "8", "--batch", "1", "--threads", "1", *files]
    assert main(words) == 0
    said = capsys.readouterr()
    assert said.out.startswith("forward and backward of a decoder: 2 blocks, D=16")
    assert "mgr-competitive  lean" in said.out
    assert "round 2/2" in said.err
    found = json.loads((tmp_path / "m.json").read_text())
    assert found["options"]["threads"] == 1
    assert found["options"]["backends"] == ["lean"]
    assert found["options"]["clock"] == "wall"
    assert found["machine"]["cores"] >= 1
    assert [len(row["seconds"]) for row in found["rows"]] == [2, 2]
    assert (tmp_path / "m.svg").read_text().startswith("<svg ")
    assert torch.get_num_threads() == threads


def test_several_backends(tmp_path: Path) -> None:
    words = [
        "bench",
        "models",
        "hc",
        *TINY,
        "--backend",
        "reference",
        "--context",
        "8",
        "--batch",
        "1",
        "--clock",
        "process",
    ]
    assert main([*words, "--json", str(tmp_path / "m.json")]) == 0
    found = json.loads((tmp_path / "m.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["prenorm", "hc lean", "hc reference"]
    assert "processor time" in found["method"]


def test_operators(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*OPS, "--operators", "bounded tanh", "hc step", "--no-peers"]) == 0
    out = capsys.readouterr().out
    assert "bounded tanh  lean" in out
    assert "depth attention" not in out
    assert "RMSNorm" not in out


def test_decode(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "bench",
        "decode",
        "bhyt",
        "--blocks",
        "1",
        "--dim",
        "16",
        "--prompt",
        "4",
        "--group",
        "2",
        "--rounds",
        "2",
    ]
    assert main(words) == 0
    assert "bhyt     auto" in capsys.readouterr().out


def test_only_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*OPS, "--check-only"]) == 0
    ways = len(CASES) + sum(case.two_phase is not None for case in CASES.values())
    assert f"checks only: {2 * ways + 2} passed, 0 failed" in capsys.readouterr().out


def test_a_failed_check_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = operators.check
    monkeypatch.setattr(
        operators, "check", lambda subject, wish: "wrong" if subject.label == "lean" else right(subject, wish)
    )
    assert main([*OPS, "--operators", "hc step", "--json", str(tmp_path / "o.json")]) == 1
    (line,) = [text for text in capsys.readouterr().out.splitlines() if text.startswith("hc step   lean")]
    assert line.split() == ["hc", "step", "lean", "check", "failed", "wrong"]
    lean = json.loads((tmp_path / "o.json").read_text())["rows"][1]
    assert (lean["failed"], lean["time"], lean["ratio"], lean["seconds"]) == ("wrong", None, None, [])


def test_interrupted(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured is printed and written, and the code is 130."""

    def stops(text: str) -> None:
        if text.startswith("round 2/"):
            raise KeyboardInterrupt

    monkeypatch.setattr(StatusLine, "show", lambda line, text: stops(text))
    files = ["--json", str(tmp_path / "m.json"), "--picture", str(tmp_path / "m.svg")]
    words = ["bench", "models", "hc", "--blocks", "1", "--dim", "16", "--context", "8", "--batch", "1"]
    assert main([*words, "--backend", "lean", "--rounds", "50", *files]) == 130
    said = capsys.readouterr()
    assert said.err == "leadline: interrupted\n"
    assert "interrupted: what had been measured is above" in said.out
    found = json.loads((tmp_path / "m.json").read_text())
    assert found["interrupted"]
    assert found["rounds"] == 2
    assert [len(row["ratios"]) for row in found["rows"]] == [2, 2]
    assert (tmp_path / "m.svg").exists()


def test_ctrl_c(tmp_path: Path) -> None:
    """A real signal to a real process."""
    words = [sys.executable, "-m", "leadline.cli.main", "bench", "models", "bhyt", *TINY[:4], "--context", "8"]
    words += ["--backend", "lean", "--rounds", "1000000", "--json", str(tmp_path / "m.json")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    end = time.monotonic() + 60
    for line in process.stderr:
        if line.startswith("round 3/") or time.monotonic() > end:
            break
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=240)
    assert process.returncode == 130, said
    assert "interrupted" in out
    assert json.loads((tmp_path / "m.json").read_text())["rounds"] >= 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["models", "mgrr"], "design 'mgrr' is not known"),
        (["models", "--rounds", "0"], "--rounds 0 is too small; 1 or more work"),
        (["models", "--threads", "0"], "--threads 0 is too small; 1 or more work"),
        (["models", "--heads", "3"], "--heads 3 does not make even heads of --dim 512; 1, 2, 4"),
        (["models", "--blocks", "0"], "--blocks 0 is too small"),
        (["models", "--backend", "triton"], "--backend triton can't run here"),
        (["models", "--device", "abacus"], "--device abacus can't be used here; auto, cpu"),
        (["models", "--picture", "x.png"], "--picture x.png is drawn as SVG; name a file that ends in .svg"),
        (["models", "--json", "/dev/null/x"], "lies below /dev/null"),
        (["ops", "--operators", "sinkhorn"], "operator 'sinkhorn' is not known; depth attention, block of reads"),
        (["ops", "--count", "0"], "--count 0 is too small"),
        (["ops", "--count", "6", "--operators", "mhc-lite step", "--dim", "8"], "at most streams=5"),
        (["decode", "--prompt", "0"], "--prompt 0 is too small"),
        (["decode", "--group", "0"], "--group 0 is too small"),
    ],
)
def test_bad_options(words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert main(["bench", *words]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err
    assert "Traceback" not in told.err


@pytest.mark.parametrize("words", [["models", "--backend", "fast"], ["models", "--shape", "c"], []])
def test_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("action", ["models", "ops", "decode"])
def test_help(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", action, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Example: leadline bench {action}" in out
    assert "(default: )" not in out
