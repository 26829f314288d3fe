"""One run of the study in its own process: `python -m leadline.experiments.gradient_fan_in.worker FOLDER`.

Reads `FOLDER/job.json`: `arm`, its name; `config`, of the run; `ablation_tokens`. Trains in FOLDER, going on with what
is there, then writes `FOLDER/gfa.json`. Otherwise it behaves as `leadline.experiments.worker`, and says the same.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leadline.experiments.gradient_fan_in.measure import MEASURE_FILE
from leadline.experiments.gradient_fan_in.registry import arm_named
from leadline.experiments.worker import say, work
from leadline.files import write_json_with_sum


def main(arguments: Sequence[str]) -> int:
    """Trains and measures; 0 done, 1 failed, 130 interrupted."""
    return work(Path(arguments[0]), _train_and_measure)


def _train_and_measure(folder: Path, job: dict[str, Any]) -> None:
    arm = arm_named(job["arm"])
    if not (folder / "summary.json").is_file():
        arm.train(folder, job["config"])
    if not (folder / MEASURE_FILE).is_file():
        say("measuring")
        write_json_with_sum(folder / MEASURE_FILE, arm.measure(folder, job["config"], job["ablation_tokens"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
