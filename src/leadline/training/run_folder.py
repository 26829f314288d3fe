"""A run's folder: what it holds, whether a run may go on in it, and the model that came out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from leadline.config import to_dict
from leadline.data import Tokenizer, load_tokenizer
from leadline.errors import LeadlineError, UsageError
from leadline.files import check_folder, write_json
from leadline.models import Decoder
from leadline.training.checkpoint import find_checkpoint
from leadline.training.config import FREE, RunConfig, option
from leadline.training.resolve import Run

RUN_FILE = "run.json"
OURS = {"job.json", "worker.log", "failed.json"}
"""What a comparison puts into a run's folder before the run begins."""


def claim(out: Path, run: Run) -> None:
    """Makes the folder this run's, or makes sure that it is.

    Raises:
        UsageError: another run, or something else, is there; what differs is named.
        LeadlineError: the folder can't be written.
    """
    check_folder(out, "--out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        if (out / RUN_FILE).exists():
            _same(out, run)
        elif any(path.name not in OURS for path in out.iterdir()):
            raise UsageError(f"--out {out} holds something that is no run; name a new or empty folder")
        write_json(out / RUN_FILE, run.describe())
        run.data.tokenizer.save(out)
    except OSError as error:
        raise LeadlineError(f"can't write to --out {out}: {error.strerror or error}") from error


def _same(out: Path, run: Run) -> None:
    old = read_run_file(out)
    kept, wanted = old.get("config", {}), to_dict(run.config)
    if not isinstance(kept, dict) or not isinstance(kept.get("shape", {}), dict):
        raise LeadlineError(f"{out / RUN_FILE} is damaged: config should be an object; name another folder")
    # What a run of an earlier version doesn't name was not there yet, so it ran with the default.
    kept, wanted = _flat({**_defaults(), **kept}), _flat(wanted)
    for name in {**wanted, **kept}:
        if name not in FREE and kept.get(name) != wanted.get(name):
            raise UsageError(
                f"--out {out} holds a run with {option(name)} {_said(kept.get(name))}, not {_said(wanted.get(name))}; "
                "continue it with its own options, or name another folder"
            )
    data = old.get("data")
    if not isinstance(data, dict) or data.get("hash") != run.data.hash:
        raise UsageError(f"--out {out} holds a run on other data; --data {run.config.data} has changed since")


def _defaults() -> dict[str, Any]:
    return {f.name: f.default for f in dataclasses.fields(RunConfig) if f.default is not dataclasses.MISSING}


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """The shape's entries beside the others, as the command line has them."""
    shape = config.get("shape") or {}
    return {**{name: value for name, value in config.items() if name != "shape"}, **shape}


def _said(value: Any) -> str:
    return "unset" if value is None else str(value)


def read_run_file(out: Path) -> dict[str, Any]:
    """The content of `run.json`.

    Raises:
        UsageError: there is no such folder or file.
        LeadlineError: the file is damaged.
    """
    path = out / RUN_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"{out} is no run's folder: {RUN_FILE} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise LeadlineError(f"can't read {path}: {error}") from error
    if not isinstance(content, dict):
        raise LeadlineError(f"{path} is damaged: it should hold an object")
    return content


def load_model(path: Path | str, checkpoint: int | None = None) -> tuple[Decoder, Tokenizer]:
    """The model of a run's folder, ready to use, and its tokenizer.

    BHyT's constants are worked out anew from the weights, for the context that the model was trained with.

    Args:
        path: what `leadline train --out` named.
        checkpoint: the step; the newest unless given.

    Raises:
        UsageError: the folder holds no run or no such checkpoint.
        LeadlineError: a file is damaged; it is named.
    """
    out = Path(path)
    read_run_file(out)
    model = Decoder.load(find_checkpoint(out, checkpoint))
    model.refresh_statistics()
    return model.eval(), load_tokenizer(out)
