"""One run of an experiment in its own process: `python -m leadline.experiments.worker FOLDER`.

Reads `FOLDER/job.json`: `task`, the function of this package that does the job, as `module:function`; the rest is
what that needs. `train_and_measure` needs `config`, a run's configuration as data, and `measure`, the held-out
tokens for the measurements along depth, or null: it trains in FOLDER, resuming what is there, then writes
`FOLDER/probes.json`. Says how far it is in JSON lines on standard output. Stops, saving, when standard input closes.
"""

from __future__ import annotations

import _thread
import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from leadline.errors import LeadlineError
from leadline.experiments.jobs import INTERRUPTED, PATIENCE
from leadline.files import write_json_with_sum
from leadline.interrupt import termination_interrupts
from leadline.lock import alone
from leadline.reading import read_json

PROBES = "probes.json"
PACKAGE = "leadline.experiments."
TRAIN = "worker:train_and_measure"
SAY_EVERY = 0.5
MEASURE_BATCH_TOKENS = 2048


def main(arguments: Sequence[str]) -> int:
    """Does the job in a folder; 0 done, 1 failed, 130 interrupted.

    What fails is told to the process that watches this one, so that one failed run does not stop the others.
    """
    folder = Path(arguments[0])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_stop_when_input_closes, daemon=True).start()
    try:
        with termination_interrupts():
            with alone(folder, "train", patience=PATIENCE):
                pass  # of a comparison that was killed: its run may still save
            job = read_json(folder / "job.json", dict[str, Any])
            module, _, name = job["task"].partition(":")
            getattr(importlib.import_module(PACKAGE + module), name)(folder, job)
    except KeyboardInterrupt:
        return INTERRUPTED
    except LeadlineError as error:
        say("error", message=str(error))
        return 1
    except Exception as error:
        # The traceback goes to the log.
        say("error", message=f"{type(error).__name__}: {error}")
        raise
    return 0


def train_and_measure(folder: Path, job: dict[str, Any]) -> None:
    """Trains a run, and measures it along depth where that is asked for."""
    if not (folder / "summary.json").is_file():
        train_run(folder, job["config"])
    if job["measure"] is not None:
        say("measuring")
        write_json_with_sum(folder / PROBES, measure_run(folder, job["config"], job["measure"]))


def train_run(folder: Path, config: dict[str, Any]) -> None:
    """Trains in `folder`, or resumes there."""
    from leadline.config import from_dict
    from leadline.training import RunConfig, train

    train(from_dict(RunConfig, config, "job.json"), folder, on_step=on_step())


def on_step() -> Callable[[dict[str, Any]], None]:
    """What says a step's record now and then."""
    said = 0.0

    def told(record: dict[str, Any]) -> None:
        nonlocal said
        if time.monotonic() - said >= SAY_EVERY:
            said = time.monotonic()
            say("step", **{name: record[name] for name in ("step", "tokens", "loss", "tokens_per_second")})

    return told


def measure_run(folder: Path, config: dict[str, Any], wanted: dict[str, int]) -> dict[str, Any]:
    """The measurements along depth of a finished run, on held-out text."""
    from leadline.data import evaluation_batches, resolve
    from leadline.probes import measure
    from leadline.training import load_model
    from leadline.training.resolve import usable_device

    model, _ = load_model(folder)
    split = resolve(config["data"]["data"]).heldout
    context = config["model"]["context"]
    size = max(1, MEASURE_BATCH_TOKENS // context)
    batches = list(evaluation_batches(split, size, context, wanted["tokens"]))
    removal_batches = max(1, wanted["removal_tokens"] // (size * context))
    model = model.to(usable_device(config["runtime"]["device"]))
    return measure(model, batches, bytes_per_token=split.bytes_per_token, removal_batches=removal_batches)


def say(event: str, **content: Any) -> None:
    """One line for the process that watches this one; nothing where that has died, so that the run can save."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, (json.dumps({"event": event, **content}) + "\n").encode())


def _stop_when_input_closes() -> None:
    # Not through sys.stdin: a thread that waits in its buffer would crash the interpreter's shutdown.
    while os.read(0, 4096):
        pass
    _thread.interrupt_main(signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
