"""A run's folder: what it holds, whether a run may resume in it, and the model that came out."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from leadline.config import from_dict
from leadline.data import Tokenizer, load_tokenizer
from leadline.errors import LeadlineError, UsageError
from leadline.files import check_folder, write_json
from leadline.lock import LOCK_FILE, claimed
from leadline.models import Decoder
from leadline.reading import read_json
from leadline.sections import nested, option
from leadline.training.checkpoint import find_checkpoint
from leadline.training.config import FREE, RunConfig, options_of, options_of_run
from leadline.training.extending import set_aside
from leadline.training.resolve import Run

RUN_FILE = "run.json"
OURS = {"job.json", "worker.log", "failed.json", LOCK_FILE}
"""What may be in a run's folder before the run begins."""


@contextlib.contextmanager
def run_in(out: Path, run: Run, *, new: bool = False, extend: bool = False) -> Iterator[None]:
    """Makes the folder this run's, or makes sure that it is, and holds it: no other process trains in it meanwhile.

    Args:
        new: a run that is there is an error, even the same one.
        extend: the run may be the one that is there, made longer; what had ended is set aside then.

    Raises:
        UsageError: another run, or something else, is there; what differs is named.
        LeadlineError: the folder can't be written, or another process trains in it.
    """

    longer = False

    def check() -> None:
        nonlocal longer
        check_free(out)
        if (out / RUN_FILE).exists():
            if new:
                raise UsageError(
                    f"--resume never: --out {out} holds a run already; continue it, or name another folder"
                )
            longer = _same(out, run, extend)

    with claimed(out, "train", check):
        if longer:
            set_aside(out, run)
        try:
            write_json(out / RUN_FILE, run.describe())
            run.data.tokenizer.save(out)
        except OSError as error:
            raise LeadlineError(f"can't write to --out {out}: {error.strerror or error}") from error
        yield


def check_free(out: Path) -> None:
    """Raises UsageError where the folder is a file, or holds something that is not a Leadline run."""
    check_folder(out, "--out")
    if (out / RUN_FILE).exists() or not out.exists():
        return
    # What a run left that was killed while it began is ours too.
    if any(path.name not in OURS and not re.fullmatch(r"\.[\w.-]+\.\d+\.partial", path.name) for path in out.iterdir()):
        raise UsageError(f"--out {out} holds something that is not a Leadline run; name a new or empty folder")


def check_there(out: Path) -> None:
    """Raises LeadlineError where the folder of a run under way is no longer its."""
    if not (out / RUN_FILE).is_file():
        raise LeadlineError(f"{out / RUN_FILE} was removed while the run went on; nothing more is written there")


def config_of(out: Path) -> RunConfig:
    """The configuration of the run in a folder.

    What a run of an earlier version doesn't name was not there yet, so it ran with the default.

    Raises:
        UsageError: there is no run.
        LeadlineError: its file is damaged.
    """
    try:
        named = nested(RunConfig, read_run_file(out)["config"])
    except UsageError as error:
        if not (out / RUN_FILE).is_file():
            raise
        raise LeadlineError(f"{out / RUN_FILE} is damaged or of a later version: {error}") from error
    return from_dict(RunConfig, named, str(out / RUN_FILE))


def _same(out: Path, run: Run, may_extend: bool) -> bool:
    """Whether the run is the one that is there, made longer; raises where it is another one."""
    old, config = read_run_file(out), config_of(out)
    kept, wanted = options_of(config), options_of(run.config)
    steps = (config.data.tokens or 0) // run.batch_tokens
    longer = may_extend and wanted["extended"] == [*kept["extended"], steps]
    for name in wanted:
        if name not in (*FREE, *(("tokens", "extended") if longer else ())) and kept[name] != wanted[name]:
            raise UsageError(
                f"--out {out} holds a run with {option(name)} {_said(kept[name])}, not {_said(wanted[name])}; "
                "continue it with its own options, or name another folder"
            )
    if old.get("data", {}).get("hash") != run.data.hash:
        raise UsageError(f"--out {out} holds a run on other data; --data {run.config.data.data} has changed since")
    return longer


def _said(value: Any) -> str:
    return "unset" if value is None else str(value)


class LayerSkipFile(TypedDict):
    """What LayerSkip training says of itself."""

    exit_weights: list[float]


class RunFile(TypedDict):
    """The content of `run.json`; the configuration as options by name, whatever their sections."""

    config: dict[str, Any]
    data: NotRequired[dict[str, Any]]
    layerskip: NotRequired[LayerSkipFile | None]


def read_run_file(out: Path) -> RunFile:
    """The content of `run.json`.

    Raises:
        UsageError: there is no such folder or file.
        LeadlineError: the file is damaged.
    """
    try:
        content = read_json(out / RUN_FILE, RunFile, advice="name another folder")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"{out} is not a run's folder: {RUN_FILE} is missing") from error
    return {**content, "config": options_of_run(content["config"])}


def load_model(path: Path | str, checkpoint: int | None = None) -> tuple[Decoder, Tokenizer]:
    """The model of a run's folder, ready to use, and its tokenizer.

    BHyT's constants are recomputed from the weights, for the context that the model was trained with.

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
