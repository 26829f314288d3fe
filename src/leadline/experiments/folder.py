"""An experiment's folder: its options lie in `experiment.json`, and one process at a time works in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

from leadline.config import differing, to_dict
from leadline.errors import UsageError
from leadline.experiments.options import BESIDE, ExperimentConfig
from leadline.files import check_folder, write_json
from leadline.interrupt import termination_interrupts
from leadline.lock import LOCK_FILE, claimed
from leadline.reading import read_json
from leadline.sections import flat

CONFIG_FILE = "experiment.json"
EARLIER = ("compare.json", "study.json")
"""What versions before 0.2 wrote in its place."""


class ConfigFile(TypedDict):
    """The content of `experiment.json`; sections are compared option by option."""

    experiment: str
    hashes: dict[str, str]
    config: dict[str, Any]


@contextlib.contextmanager
def at_work(out: Path, kind: str, config: ExperimentConfig, hashes: Mapping[str, str]) -> Iterator[None]:
    """Makes the folder this experiment's, or checks that it is, and holds it; SIGTERM becomes Ctrl-C meanwhile.

    Raises:
        UsageError: the folder is a file, or holds something else or another experiment; says what differs.
        LeadlineError: it can't be written, or another process is at work in it.
    """
    check_folder(out, "--out")
    options = {name: value for name, value in to_dict(config).items() if name not in BESIDE}
    content = {"experiment": kind, "hashes": dict(hashes), "config": options}
    with claimed(out, kind, lambda: check_same(out, content, type(config))), termination_interrupts():
        if not (out / CONFIG_FILE).exists():
            write_json(out / CONFIG_FILE, content)
        yield


def check_same(out: Path, content: Mapping[str, Any], config: type = ExperimentConfig) -> None:
    """Makes sure that an experiment of this content may use the folder, and writes nothing.

    Raises:
        UsageError: it holds something else, or another experiment; says what differs.
        LeadlineError: what it holds is damaged.
    """
    path = out / CONFIG_FILE
    if not path.exists():
        if any((out / name).exists() for name in EARLIER):
            raise UsageError(
                f"--out {out} holds an experiment of an earlier version, which can't be resumed; its report and "
                "results stay readable. Name a new folder."
            )
        if out.exists() and any(entry.name != LOCK_FILE for entry in out.iterdir()):
            raise UsageError(f"--out {out} holds something that is not an experiment; name a new or empty folder")
        return
    old: Mapping[str, Any] = {**read_json(path, ConfigFile, advice="give another --out")}
    # What an experiment of an earlier version doesn't name was not there yet, so it ran with the default.
    default = {name: value for name, value in flat(config, to_dict(config())).items() if name not in BESIDE}
    there, here = ({**side, "config": {}, **default, **flat(config, side["config"])} for side in (old, content))
    different = differing(there, here)
    if different:
        shown = "; ".join(different[:4]) + ("; …" if len(different) > 4 else "")
        raise UsageError(f"--out {out} holds another experiment: {shown}. Give another --out, or the same options.")
