"""`gradient.json`: what training says of the gradient along depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from leadline.errors import LeadlineError, UsageError
from leadline.files import check_sum, forget_sums, write_json
from leadline.reading import read_json
from leadline.training.checkpoint import FOLDER, checkpoints
from leadline.training.checkpoint import GRADIENT as GRADIENT
from leadline.training.gradient_steps import StepNorms
from leadline.training.records import Detail, Shares

SHARES = ("share", "sublayer_share", "share_per_parameter", "sublayer_share_per_parameter")
"""Its lists of shares, one for each block or sublayer."""


class Missing(TypedDict):
    """In how many steps a unit had no gradient."""

    block: list[int]
    sublayer: NotRequired[list[int]]


class Equalised(TypedDict):
    """What is read of the shares after equalising."""

    share: Shares


class GradientFile(TypedDict):
    """What is read of `gradient.json`; a record of an earlier version, or another's, may have the shares alone."""

    share: Shares
    steps: NotRequired[int]
    sublayer_share: NotRequired[Shares]
    share_per_parameter: NotRequired[Shares]
    sublayer_share_per_parameter: NotRequired[Shares]
    definitions: NotRequired[dict[str, dict[str, Shares]]]
    clip: NotRequired[float | None]
    warmup_steps: NotRequired[int]
    steps_without_gradient: NotRequired[Missing]
    details: NotRequired[list[Detail]]
    equalised: NotRequired[Equalised]


LARGEST = 1e12
"""Shares add up to 1; those of another's record may not, but this is not a share."""


def write_gradient(folder: Path | str, report: dict[str, Any], norms: StepNorms | None = None) -> Path:
    """Writes `gradient.json`, and every step's norms beside it, into a folder, which is made if need be.

    Raises:
        LeadlineError: it can't be written.
    """
    path = Path(folder) / GRADIENT
    try:
        for left in path.parent.glob(f".{GRADIENT}.*.partial"):  # of a run that was killed while it wrote
            left.unlink(missing_ok=True)
        forget_sums(path.parent)
        if norms is not None:
            norms.save(path.parent)
        write_json(path, report)
    except OSError as error:
        raise LeadlineError(f"can't write {path}: {error.strerror or error}") from error
    return path


def gradient_path(folder: Path | str) -> Path:
    """Where `gradient.json` of a run, of a checkpoint or of a model is, or would be.

    A checkpoint that was written before checkpoints had one of their own has the run's, if it is the newest.

    Raises:
        UsageError: a checkpoint that has none, in a run that was resumed after it.
    """
    folder = Path(folder)
    own, place = folder / GRADIENT, folder.absolute()
    if own.is_file() or place.parent.name != FOLDER:
        return own
    run = place.parent.parent
    if place not in checkpoints(run)[-1:]:
        raise UsageError(
            f"{folder} has no {GRADIENT} of its own, and {run / GRADIENT} is of a later step, so it is not known which "
            "blocks the gradient reached up to this one; the run's newest checkpoint works"
        )
    return run / GRADIENT


def load_gradient(folder: Path | str) -> dict[str, Any]:
    """The gradient share that was recorded while a model was trained.

    Args:
        folder: a run's, one of its checkpoints', or a model's. A checkpoint has the record up to its own step.

    Returns:
        The content of `gradient.json`: `steps`, `window`, `units`, `share`, `sublayer_share` and the rest; see
        docs/gradient-fan-in.md. A share is None where there never was a gradient.

    Raises:
        UsageError: there is no record; it says how to make one.
        LeadlineError: the file is damaged.
    """
    folder = Path(folder)
    path = gradient_path(folder)
    if not path.is_file():
        raise UsageError(
            f"{folder} has no {GRADIENT}, so it is not known which blocks the gradient reached; `leadline train` "
            "always records it; in a loop of one's own, leadline.training.GradientShare(model) does: "
            "share.add(share.measure()) after the last backward of each step, share.save(folder) at the end"
        )
    content = cast(dict[str, Any], read_json(path, GradientFile, advice="remove it to continue without a record"))
    lists = {name: content.get(name, []) for name in SHARES}
    for kind, one in content.get("definitions", {}).items():
        lists |= {f"definitions {kind} {name}": shares for name, shares in one.items()}
    for name, shares in lists.items():
        for share in shares:
            if share is not None and not 0 <= share <= LARGEST:
                raise LeadlineError(f"{path} is damaged: {name} holds {share}; a share is a number from 0, or null")
    check_sum(path)
    return content
