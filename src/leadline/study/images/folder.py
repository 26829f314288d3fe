"""The folder of a run on images: that it is this run's, and reading what is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from leadline.config import to_dict
from leadline.data.images import ImageSet
from leadline.errors import LeadlineError, UsageError
from leadline.files import check_folder, write_json
from leadline.study.images.config import ImageRunConfig
from leadline.training.run_folder import OURS, RUN_FILE

FREE = ("device", "checkpoint_every", "keep")
"""What may change when a run goes on."""


def claim(out: Path, config: ImageRunConfig, images: ImageSet) -> None:
    """Makes the folder this run's, or makes sure that it is.

    Raises:
        UsageError: another run, or something else, is there; what differs is named.
        LeadlineError: the folder can't be written, or is damaged.
    """
    check_folder(out, "--out")
    content = {
        "config": to_dict(config),
        "model": to_dict(config.model(images)),
        "images": {
            "name": images.name,
            "hash": images.hash,
            "shape": list(images.shape),
            "classes": list(images.classes),
            "train": len(images.train.labels),
            "heldout": len(images.heldout.labels),
        },
    }
    path = out / RUN_FILE
    if path.is_file():
        old = read_object(path)
        before, now = _fixed(old), _fixed(content)
        different = [name for name in now if before.get(name) != now[name]]
        if different:
            name = different[0]
            raise UsageError(
                f"--out {out} holds a run with {name}={before.get(name)}, not {now[name]}; name another folder"
            )
    try:
        if not path.is_file() and out.is_dir() and any(entry.name not in OURS for entry in out.iterdir()):
            raise UsageError(f"--out {out} holds something that is no run; name a new or empty folder")
        write_json(path, content)
    except OSError as error:
        raise LeadlineError(f"can't write to --out {out}: {error.strerror or error}") from error


def _fixed(content: dict[str, Any]) -> dict[str, Any]:
    """What has to stay the same in a run that goes on."""
    try:
        config = {name: value for name, value in content["config"].items() if name not in FREE}
        return {**config, "image data": content["images"]["hash"]}
    except (KeyError, TypeError, AttributeError):
        return {}


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object in a file. Raises LeadlineError where it is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LeadlineError(f"{path} is damaged ({error}); start in another folder") from error
    if not isinstance(content, dict):
        raise LeadlineError(f"{path} is damaged: it should hold an object; start in another folder")
    return content
