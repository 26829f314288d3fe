"""One rank of a list of training runs: `python rank_worker.py FOLDER RANK SIZE`, with `FOLDER/cases.json`.

A case is {"name", "options", "float64", "interrupt"}: options of `RunConfig`, and the step at which it is interrupted.
What came of it goes to `FOLDER/NAME.RANK.json`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from leadline.distributed.world import STORE
from leadline.errors import LeadlineError, UsageError
from leadline.training import RunConfig, train

PATIENCE_S = 240


def one(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """The case's end: the summary's loss, or what was raised."""
    torch.set_default_dtype(torch.float64 if case.get("float64") else torch.float32)

    def interrupt(told: dict[str, Any]) -> None:
        if told["step"] == case.get("interrupt"):
            os.kill(os.getpid(), signal.SIGINT)

    options = dict(case["options"])
    try:
        design, out = options.pop("design"), folder / case.get("out", case["name"])
        summary = train(RunConfig.of(design, **options), out, on_step=interrupt)
    except KeyboardInterrupt:
        return {"interrupted": True}
    except (LeadlineError, UsageError) as error:
        return {"error": str(error)}
    finally:
        torch.set_default_dtype(torch.float32)
    return {"loss": summary.loss}


def main() -> None:
    """All cases, one after the other."""
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    warnings.simplefilter("ignore")
    folder, rank, size = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size}
    for number, case in enumerate(json.loads((folder / "cases.json").read_text())):
        os.environ[STORE] = str(folder / f"ranks{number}")
        found = one(folder, case)
        (folder / f"{case['name']}.{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
