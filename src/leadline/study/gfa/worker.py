"""One run of the study in its own process: `python -m leadline.study.gfa.worker FOLDER`.

Reads `FOLDER/job.json`: `arm`, its name; `config`, of the run; `ablation_tokens`. Trains in FOLDER, going on with what
is there, then writes `FOLDER/gfa.json`. Otherwise it behaves as `leadline.compare.worker`, and says the same.
"""

from __future__ import annotations

import _thread
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from leadline.compare.jobs import INTERRUPTED
from leadline.compare.worker import say
from leadline.errors import LeadlineError
from leadline.files import write_json
from leadline.study.gfa.measure import MEASURE_FILE
from leadline.study.gfa.registry import arm_named


def main(arguments: Sequence[str]) -> int:
    """Trains and measures; 0 done, 1 failed, 130 interrupted."""
    folder = Path(arguments[0])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_stop_when_input_closes, daemon=True).start()
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    try:
        arm = arm_named(job["arm"])
        if not (folder / "summary.json").is_file():
            arm.train(folder, job["config"])
        if not (folder / MEASURE_FILE).is_file():
            say("measuring")
            write_json(folder / MEASURE_FILE, arm.measure(folder, job["config"], job["ablation_tokens"]))
    except KeyboardInterrupt:
        return INTERRUPTED
    except LeadlineError as error:
        say("error", message=str(error))
        return 1
    except Exception as error:
        # One failed run must not stop the study; the traceback goes to the log.
        say("error", message=f"{type(error).__name__}: {error}")
        raise
    return 0


def _stop_when_input_closes() -> None:
    # Not through sys.stdin: a thread that waits in its buffer would crash the interpreter's shutdown.
    while os.read(0, 4096):
        pass
    _thread.interrupt_main(signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
