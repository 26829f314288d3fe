"""Signals that end a command: as Ctrl-C does, wherever it is, unless they are ignored."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leadline.interrupt import catch_interrupt, termination_interrupts

ENDING = (signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", ENDING)
def test_outside_of_a_loop_they_interrupt(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with termination_interrupts(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, *ENDING])
def test_in_a_loop_the_first_asks_and_the_second_interrupts(number: signal.Signals) -> None:
    with termination_interrupts(), catch_interrupt() as interrupt:
        os.kill(os.getpid(), number)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


def test_under_nohup_a_closed_terminal_ends_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with termination_interrupts(), catch_interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupt.asked
    finally:
        signal.signal(signal.SIGHUP, before)


PREPARE = """
import signal, sys, os
from leadline.cli.main import main
from leadline.data.packing import Packer
before = Packer.pack
def hang_up(*args, **fields):
    before(*args, **fields)
    os.kill(os.getpid(), signal.SIGHUP)
Packer.pack = hang_up
sys.exit(main(["data", "prepare", sys.argv[1], "--out", sys.argv[2]]))
"""


def test_a_command_without_a_loop_ends_with_130_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("By the mark, seven! " * 9)
    words = [sys.executable, "-c", PREPARE, str(tmp_path / "text.txt"), str(tmp_path / "set")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 130, done.stderr
    assert done.stderr == "leadline: interrupted\n"
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_run_whose_terminal_is_closed_saves(tmp_path: Path) -> None:
    """What it prints after that goes nowhere, and keeps it from nothing."""
    from leadline.data import prepare

    for number in range(2):
        (tmp_path / f"{number}.txt").write_text("By the deep, six! By the mark, seven! " * 8)
    prepare([tmp_path], tmp_path / "set", heldout_last=1)
    out = tmp_path / "run"
    words = [sys.executable, "-m", "leadline.cli.main", "train", "prenorm", "--data", str(tmp_path / "set")]
    words += ["--out", str(out), "--blocks", "1", "--context", "16", "--steps", "100k", "--evaluate-every", "100000"]
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, words)
    deadline = time.monotonic() + 120
    steps = out / "steps.jsonl"
    while not (steps.exists() and steps.stat().st_size > 0):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    (saved,) = (out / "checkpoints").iterdir()
    assert len(steps.read_text().splitlines()) == int(saved.name.removeprefix("step-"))
