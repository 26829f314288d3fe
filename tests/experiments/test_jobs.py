from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from leadline.errors import LeadlineError, UsageError
from leadline.experiments.jobs import Job, read_failure, run_jobs, start_anew
from leadline.experiments.options import chosen_devices

# A worker that does what its job says; like the real one it stops when its input closes.
WORKER = """
import json, os, sys, threading, time
from pathlib import Path

folder = Path(sys.argv[1])
job = json.loads((folder / "job.json").read_text())
order = folder.parent / "order.txt"
with open(order, "a") as handle:
    handle.write(folder.name + "\\n")

def stop():
    while os.read(0, 4096):
        pass
    (folder / "saved").write_text("")
    os._exit(130)

threading.Thread(target=stop, daemon=True).start()
print("noise that is no event")
print(json.dumps({"event": "step", "tokens": 5, "loss": 2.0, "threads": os.environ["OMP_NUM_THREADS"]}), flush=True)
if job.get("sleep"):
    time.sleep(job["sleep"])
if job.get("error"):
    print(json.dumps({"event": "error", "message": job["error"]}), flush=True)
    sys.exit(1)
if job.get("crash"):
    sys.stderr.write("Traceback\\nout of luck\\n")
    sys.exit(3)
if job.get("remove"):
    import shutil

    shutil.rmtree(folder.parent)
    sys.exit(1)
if job.get("kill"):
    os.kill(os.getpid(), 9)
if job.get("late"):
    import atexit

    atexit.register(os._exit, 1)
for name in ("summary.json", "probes.json"):
    (folder / name).write_text("{}")
"""


class Listener:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.errors: dict[str, str | None] = {}
        self.stopped = False

    def started(self, job: Job) -> None:
        pass

    def event(self, job: Job, event: dict[str, Any]) -> None:
        self.events.append(event)

    def ended(self, job: Job, error: str | None) -> None:
        self.errors[job.folder.name] = error

    def tick(self) -> None:
        pass

    def stopping(self) -> None:
        self.stopped = True


def jobs(tmp_path: Path, **contents: dict[str, Any]) -> list[Job]:
    return [
        Job(
            label=name,
            folder=tmp_path / name,
            content=content,
            tokens=10,
            cost=content.get("cost", 1.0),
            files=("probes.json",),
        )
        for name, content in contents.items()
    ]


def run(listed: list[Job], slots: int = 2) -> tuple[dict[str, str], Listener]:
    listener = Listener()
    errors = run_jobs(listed, slots=slots, threads=1, display=listener, worker=(sys.executable, "-c", WORKER))
    return errors, listener


def test_the_longest_first_and_failures_do_not_stop_the_rest(tmp_path: Path) -> None:
    listed = jobs(
        tmp_path,
        short={"cost": 1},
        wrong={"cost": 5, "error": "loss is not finite at step 7"},
        crashed={"cost": 4, "crash": True},
        killed={"cost": 3, "kill": True},
        late={"cost": 2, "late": True},
        long={"cost": 9},
    )
    errors, listener = run(listed, slots=1)
    assert (tmp_path / "order.txt").read_text().split() == ["long", "wrong", "crashed", "killed", "late", "short"]
    assert errors == {
        "wrong": "loss is not finite at step 7",
        "crashed": "the worker ended with exit code 3: out of luck",
        "killed": "the worker ended by signal 9",
    }
    assert listener.errors == {"long": None, "late": None, "short": None, **errors}
    assert read_failure(tmp_path / "wrong") == "loss is not finite at step 7"
    assert read_failure(tmp_path / "long") is None
    assert {e["threads"] for e in listener.events} == {"1"}


def test_done_jobs_are_not_repeated_and_failed_ones_are(tmp_path: Path) -> None:
    run(jobs(tmp_path, a={}, b={"error": "no"}))
    (tmp_path / "order.txt").unlink()
    errors, _ = run(jobs(tmp_path, a={}, b={}))
    assert errors == {}
    assert (tmp_path / "order.txt").read_text().split() == ["b"]
    assert read_failure(tmp_path / "b") is None


def test_the_folder_of_the_runs_is_removed(tmp_path: Path) -> None:
    """Nothing of it is made anew: without the plan it would be a folder of something else."""
    listed = jobs(tmp_path / "out" / "runs", a={"remove": True, "cost": 2}, b={})
    with pytest.raises(LeadlineError, match="runs was removed while its runs went on"):
        run(listed, slots=1)
    assert not (tmp_path / "out" / "runs").exists()


def test_only_what_failed_or_is_damaged_starts_anew(tmp_path: Path) -> None:
    listed = jobs(tmp_path, ok={}, failed={}, damaged={}, unfinished={}, never={})
    for job in listed[:4]:
        job.folder.mkdir()
    start_anew(listed, lambda folder: folder.name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ok", "unfinished"]


def test_an_interruption_lets_the_workers_save(tmp_path: Path) -> None:
    listed = jobs(tmp_path, a={"sleep": 60}, b={"sleep": 60}, c={})
    listener = Listener()

    def interrupt() -> None:
        while len(listener.events) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_jobs(listed, slots=2, threads=1, display=listener, worker=(sys.executable, "-c", WORKER))
    assert time.monotonic() - began < 20
    assert listener.stopped
    assert (tmp_path / "a" / "saved").exists()
    assert (tmp_path / "b" / "saved").exists()
    assert not (tmp_path / "c").exists()
    assert read_failure(tmp_path / "a") is None


def test_turns_come_before_length(tmp_path: Path) -> None:
    """A seed's runs start before the next seed's, whatever they cost."""
    second, first = jobs(tmp_path, second={"cost": 9}, first={"cost": 1})
    run([dataclasses.replace(second, turn=1), first], slots=1)
    assert (tmp_path / "order.txt").read_text().split() == ["first", "second"]


def test_each_gpu_gets_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker sees one GPU alone; the numbers are those of the GPUs that this process sees."""
    worker = WORKER.replace(
        'handle.write(folder.name + "\\n")', 'handle.write(os.environ.get("CUDA_VISIBLE_DEVICES", "none") + "\\n")'
    )
    runs = tmp_path / "runs"
    jobs = [
        Job(label=str(i), folder=runs / str(i), content={"sleep": 0.3}, tokens=1, cost=1.0, files=("probes.json",))
        for i in range(4)
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    said = run_jobs(
        jobs, slots=2, threads=1, display=Listener(), devices=("0", "1"), worker=(sys.executable, "-c", worker)
    )
    assert said == {}
    assert sorted((runs / "order.txt").read_text().split()) == ["4", "4", "7", "7"]


def test_gpus_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert chosen_devices(None) == ()
    assert chosen_devices("all") == ("0", "1", "2", "3")
    assert chosen_devices("3, 1", "cuda") == ("3", "1")
    for text in ("4", "0,0", "", "first"):
        with pytest.raises(
            UsageError, match=f"devices={text} is not a list of GPUs here; there are 4: 0, 1, 2, 3, or all"
        ):
            chosen_devices(text)
    with pytest.raises(UsageError, match="devices=0 names GPUs, and --device cpu is another"):
        chosen_devices("0", "cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UsageError, match="there is none that PyTorch can use"):
        chosen_devices("all")
