"""Checkpoints: a folder each, whole or not there; safetensors and JSON alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from leadline.errors import LeadlineError, UsageError
from leadline.files import sync_folder, write_json
from leadline.models import Decoder
from leadline.models.resnet import ResNet
from leadline.models.saving import read_weights, write_model, write_tensors
from leadline.training.gradient_steps import NORMS, StepNorms
from leadline.training.optimiser import load_optimiser, optimiser_tensors

FOLDER = "checkpoints"
GRADIENT = "gradient.json"
OPTIMISER = "optimizer.safetensors"
STATE = "state.json"
LIVE = "live"
NEEDED = ("step", "seconds", "train_loss", "loader", "gradient")

Resume = Literal["newest", "previous", "never"]
"""Which checkpoint a run that is there goes on from."""


def save_checkpoint(
    out: Path,
    model: Decoder | ResNet,
    optimiser: torch.optim.Optimizer,
    state: dict[str, Any],
    *,
    keep: int,
    gradient: dict[str, Any] | None = None,
    norms: StepNorms | None = None,
) -> Path:
    """Writes `checkpoints/step-…`, then removes all but the newest `keep`.

    BHyT's constants are worked out anew for what is written, and a run that goes on keeps those it had: when and how
    often it was saved changes nothing of what it computes.

    Args:
        state: what the run goes on with, as JSON can hold it.
        gradient: the gradient share up to this step, which `leadline.training.load_gradient` reads.
        norms: every step's gradient norms up to this one, which a run that goes on adds to.

    Raises:
        LeadlineError: it can't be written; the checkpoints that were there stay.
    """
    folder = out / FOLDER / f"step-{state['step']:08d}"
    partial = folder.with_name(f".{folder.name}.partial")
    live = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        for left in folder.parent.glob(".*.partial"):
            shutil.rmtree(left, ignore_errors=True)
        partial.mkdir(parents=True)
        if isinstance(model, Decoder):
            model.refresh_statistics()
        write_model(partial, model.config, model)
        kept = {f"{name}:{LIVE}": value for name, value in live.items()}
        write_tensors(partial / OPTIMISER, {**optimiser_tensors(model, optimiser), **kept})
        write_json(partial / STATE, state)
        if gradient is not None:
            write_json(partial / GRADIENT, gradient)
        if norms is not None:
            norms.save(partial)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
        sync_folder(folder.parent)
    except LeadlineError as error:
        raise LeadlineError(f"can't write the checkpoint {folder}: {error.__cause__ or error}") from error
    except (OSError, SafetensorError) as error:
        raise LeadlineError(f"can't write the checkpoint {folder}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        _set_buffers(model, live)
    for old in checkpoints(out)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def checkpoints(out: Path) -> list[Path]:
    """The run's checkpoints, the oldest first."""
    return sorted(
        path for path in (out / FOLDER).glob("step-*") if path.name.removeprefix("step-").isdecimal() and path.is_dir()
    )


def load_checkpoint(
    folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, device: torch.device
) -> dict[str, Any]:
    """Puts the weights, the buffers and the optimiser's state in place and returns the rest.

    Raises:
        LeadlineError: a file is missing or damaged; it is named.
    """
    path = folder / OPTIMISER
    try:
        read_weights(folder, model, device=device, keep_dtype=False)
        tensors = load_file(path)
        load_optimiser(model, optimiser, tensors)
        _set_buffers(model, {name: tensors[f"{name}:{LIVE}"] for name, _ in model.named_buffers()})
        path = folder / STATE
        state = json.loads(path.read_text(encoding="utf-8"))
        missing = [name for name in NEEDED if name not in state]
    except FileNotFoundError as error:
        raise LeadlineError(f"{path} is missing") from error
    except KeyError as error:
        raise LeadlineError(f"{path} is damaged: it lacks {error.args[0]}") from error
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError) as error:
        raise LeadlineError(f"{path} is damaged or incomplete: {error}") from error
    if missing:
        raise LeadlineError(f"{path} is damaged: it lacks {', '.join(missing)}")
    wrong = [name for name in NEEDED[:3] if isinstance(state[name], str | list | dict | bool | None)]
    if wrong:
        raise LeadlineError(f"{path} is damaged: {', '.join(wrong)} should be a number")
    return cast(dict[str, Any], state)


@torch.no_grad()
def _set_buffers(model: nn.Module, values: dict[str, Tensor]) -> None:
    for name, buffer in model.named_buffers():
        buffer.copy_(values[name])


def choose_checkpoint(out: Path, which: Resume) -> Path | None:
    """The checkpoint to go on from, or None where a run begins.

    Raises:
        UsageError: the one before the newest was asked for, and there is none.
    """
    found = checkpoints(out)
    if which != "previous":
        return found[-1] if found else None
    if len(found) < 2:
        raise UsageError(f"--resume previous: {out} has {len(found)} of the 2 checkpoints that this needs")
    return found[-2]


def drop_later(out: Path, chosen: Path) -> None:
    """Removes what was written after a checkpoint: later ones, and the end of the run."""
    for path in checkpoints(out):
        if path.name > chosen.name:
            shutil.rmtree(path)
    for name in ("summary.json", GRADIENT, NORMS):
        (out / name).unlink(missing_ok=True)


def find_checkpoint(out: Path, step: int | None = None) -> Path:
    """The newest checkpoint of a run, or that of a step.

    Raises:
        UsageError: there is none; those that are there are named.
    """
    found = checkpoints(out)
    if not found:
        raise UsageError(f"{out} holds no checkpoint yet")
    if step is None:
        return found[-1]
    wanted = out / FOLDER / f"step-{step:08d}"
    if wanted not in found:
        there = ", ".join(str(int(path.name.removeprefix("step-"))) for path in found)
        raise UsageError(f"{out} has no checkpoint of step {step}; it has {there}")
    return wanted
