"""A job is one run of an experiment, in a worker process of its own; this file starts, watches and stops workers.

A worker reads `FOLDER/job.json`, says how far it is in JSON lines on its standard output, and writes everything
else to `FOLDER/worker.log`. It stops, saving, when its standard input closes: so it does too when we die.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypedDict

from leadline.errors import LeadlineError
from leadline.files import write_json
from leadline.lock import alone
from leadline.reading import read_json

INTERRUPTED = 130
FAILED = "failed.json"
PATIENCE = 120.0
"""Seconds that a worker has to save after an interruption."""
WORKER = (sys.executable, "-m", "leadline.experiments.worker")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run.

    Attributes:
        label: for people, such as "prenorm, seed 0".
        folder: the run's folder; its `job.json` is written when the job starts.
        content: of `job.json`; see `worker.py`.
        tokens: that it trains on, or whatever `unit` names.
        cost: the expected time in any unit that is the same for all jobs.
        files: that are there, beside `summary.json`, when it is done.
        unit: what it trains on, for people.
        turn: jobs of an earlier turn start before those of a later one.
    """

    label: str
    folder: Path
    content: dict[str, Any]
    tokens: int
    cost: float
    files: tuple[str, ...] = ()
    unit: str = "tokens"
    turn: int = 0

    @property
    def done(self) -> bool:
        """Whether it was trained, and measured, already."""
        return all((self.folder / name).is_file() for name in ("summary.json", *self.files))


class Display:
    """Shows how far the jobs are; by itself nothing."""

    def started(self, job: Job) -> None:
        """A job has begun."""

    def event(self, job: Job, event: dict[str, Any]) -> None:
        """A worker has said something."""

    def ended(self, job: Job, error: str | None) -> None:
        """A job is over; `error` says why it failed."""

    def tick(self) -> None:
        """Time has passed."""

    def stopping(self) -> None:
        """The jobs were interrupted."""

    def close(self) -> None:
        """Nothing more comes."""


def run_jobs(
    jobs: Sequence[Job],
    *,
    slots: int,
    threads: int,
    display: Display,
    devices: Sequence[str] = (),
    worker: Sequence[str] = WORKER,
) -> dict[str, str]:
    """Runs the jobs that are not done, `slots` at a time: turn by turn, and within a turn the longest first.

    One that fails does not stop the others; its message goes to `failed.json` in its folder.

    Args:
        threads: of each worker.
        devices: numbers of GPUs; a worker sees one of them alone, that with the fewest others.
        worker: the command that is given a job's folder.

    Returns:
        The error messages of those that failed, by the name of their folder.

    Raises:
        KeyboardInterrupt: interrupted; all workers have saved and ended.
    """
    waiting = sorted((job for job in jobs if not job.done), key=lambda job: (job.turn, -job.cost))
    runner = _Runner(tuple(worker), threads, display, tuple(devices))
    for job in waiting:
        job.folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        while waiting or runner.running:
            while waiting and len(runner.running) < slots:
                runner.start(waiting.pop(0))
            runner.listen()
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # where the terminal has gone
            display.stopping()
        runner.stop()
        raise
    finally:
        runner.kill()
    return runner.errors


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[str]
    log: IO[str]
    device: str | None
    error: str | None = None


@dataclass
class _Runner:
    worker: tuple[str, ...]
    threads: int
    display: Display
    devices: tuple[str, ...] = ()
    running: dict[str, _Running] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    events: queue.Queue[tuple[str, dict[str, Any] | None]] = field(default_factory=queue.Queue)

    def start(self, job: Job) -> None:
        self._check_there(job)
        job.folder.mkdir(exist_ok=True)
        (job.folder / FAILED).unlink(missing_ok=True)
        write_json(job.folder / "job.json", job.content)
        count = str(self.threads)
        environment = {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "PYTHONUNBUFFERED": "1"}
        busy = [worker.device for worker in self.running.values()]
        device = min(self.devices, key=busy.count, default=None)
        if device is not None:
            # What CUDA calls the GPU of that number among those that this process sees.
            seen = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
            environment["CUDA_VISIBLE_DEVICES"] = seen[int(device)] if int(device) < len(seen) else device
        log = open(job.folder / "worker.log", "a", encoding="utf-8")  # noqa: SIM115 (closed when the worker ends)
        # A session of its own: the terminal's Ctrl-C reaches us only, and we pass it on once.
        process = subprocess.Popen(
            [*self.worker, str(job.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
            env=environment,
            start_new_session=True,
        )
        name = job.folder.name
        self.running[name] = _Running(job, process, log, device)
        threading.Thread(target=self._follow, args=(name, process), daemon=True).start()
        self.display.started(job)

    def _check_there(self, job: Job) -> None:
        """Raises LeadlineError where the folder of the runs was removed, and its plan with it."""
        if not (runs := job.folder.parent).is_dir():
            raise LeadlineError(f"{runs} was removed while its runs went on; nothing more is written there")

    def listen(self, seconds: float = 0.25) -> None:
        """Passes on what the workers say, for a while; the caller may then start the next."""
        try:
            name, event = self.events.get(timeout=seconds)
        except queue.Empty:
            self.display.tick()
            return
        worker = self.running[name]
        if event is None:
            self._end(name)
        elif event.get("event") == "error":
            worker.error = str(event.get("message"))
        else:
            self.display.event(worker.job, event)

    def stop(self) -> None:
        """Tells every worker to save and end, and waits."""
        for worker in self.running.values():
            if worker.process.stdin is not None:
                worker.process.stdin.close()
        deadline = time.monotonic() + PATIENCE
        for worker in self.running.values():
            try:
                worker.process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()

    def kill(self) -> None:
        """Ends what still runs: after `stop` nothing, after a second Ctrl-C whatever is slow to save."""
        for worker in self.running.values():
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
            worker.log.close()
        self.running = {}

    def _follow(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(event, dict):
                self.events.put((name, event))
        process.wait()
        self.events.put((name, None))

    def _end(self, name: str) -> None:
        worker = self.running.pop(name)
        worker.log.close()
        if worker.process.stdin is not None:
            worker.process.stdin.close()
        code = worker.process.returncode
        error = None
        # What is whole on the disk counts, whatever happened to the process afterwards.
        if not worker.job.done:
            error = worker.error or _last_words(worker.job.folder / "worker.log", code)
            self.errors[name] = error
            self._check_there(worker.job)
            write_json(worker.job.folder / FAILED, Failure(error=error, exit_code=code))
        self.display.ended(worker.job, error)


def _last_words(log: Path, code: int) -> str:
    try:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    how = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"the worker {how}" + (f": {lines[-1].strip()}" if lines else "")


class Failure(TypedDict):
    """The content of `failed.json`."""

    error: str
    exit_code: int


def read_failure(folder: Path) -> str | None:
    """The message of a run that failed, or None. Raises LeadlineError where its file is damaged."""
    try:
        return read_json(folder / FAILED, Failure)["error"]
    except (FileNotFoundError, NotADirectoryError):
        return None


def start_anew(jobs: Sequence[Job], status: Callable[[Path], str]) -> None:
    """Removes the folders of runs that failed or are damaged, so that they are trained from the start.

    Args:
        status: of a run in a folder.
    """
    for job in jobs:
        if job.folder.is_dir() and status(job.folder) in ("failed", "damaged"):
            with alone(job.folder, "train"):
                shutil.rmtree(job.folder)
