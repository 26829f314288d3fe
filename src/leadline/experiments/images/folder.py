"""The folder of a run on images: that it is this run's, and reading what is in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leadline.config import to_dict
from leadline.data.images import ImageSet
from leadline.errors import LeadlineError, UsageError
from leadline.experiments.images.config import ImageRunConfig
from leadline.files import write_json
from leadline.lock import claimed
from leadline.reading import read_json
from leadline.training.run_folder import RUN_FILE, check_free

FREE = ("device", "checkpoint_every", "keep")
"""What may change when a run resumes."""


@contextlib.contextmanager
def run_in(out: Path, config: ImageRunConfig, images: ImageSet) -> Iterator[None]:
    """Makes the folder this run's, or makes sure that it is, and holds it: no other process trains in it meanwhile.

    Raises:
        UsageError: another run, or something else, is there; what differs is named.
        LeadlineError: the folder can't be written, is damaged, or another process trains in it.
    """
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
    with claimed(out, "train", lambda: _check(out, content)):
        try:
            write_json(out / RUN_FILE, content)
        except OSError as error:
            raise LeadlineError(f"can't write to --out {out}: {error.strerror or error}") from error
        yield


def _check(out: Path, content: dict[str, Any]) -> None:
    check_free(out)
    if not (out / RUN_FILE).exists():
        return
    before, now = _fixed(read_json(out / RUN_FILE, dict[str, Any], advice="start in another folder")), _fixed(content)
    different = [name for name in now if before.get(name) != now[name]]
    if different:
        name = different[0]
        raise UsageError(
            f"--out {out} holds a run with {name}={before.get(name)}, not {now[name]}; name another folder"
        )


def _fixed(content: dict[str, Any]) -> dict[str, Any]:
    """What has to stay the same in a run that resumes."""
    try:
        config = {name: value for name, value in content["config"].items() if name not in FREE}
        return {**config, "image data": content["images"]["hash"]}
    except (KeyError, TypeError, AttributeError):
        return {}
