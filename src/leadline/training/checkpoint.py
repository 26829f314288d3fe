"""Checkpoints: a folder each, whole or not there; safetensors and JSON alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from leadline.errors import LeadlineError, UsageError
from leadline.files import sync_folder, write_json
from leadline.models import Decoder
from leadline.models.saving import read_weights, write_model, write_tensors
from leadline.training.optimiser import load_optimiser, optimiser_tensors

FOLDER = "checkpoints"


def save_checkpoint(
    out: Path, model: Decoder, optimiser: torch.optim.AdamW, state: dict[str, Any], *, keep: int
) -> Path:
    """Writes `checkpoints/step-…`, then removes all but the newest `keep`.

    Buffers are written as they are, so that saving never changes what a run computes.

    Raises:
        LeadlineError: it can't be written; the checkpoints that were there stay.
    """
    folder = out / FOLDER / f"step-{state['step']:08d}"
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write_model(partial, model.config, model)
        write_tensors(partial / "optimizer.safetensors", optimiser_tensors(model, optimiser))
        write_json(partial / "state.json", state)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
        sync_folder(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise LeadlineError(f"can't write the checkpoint {folder}: {error}") from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    for old in checkpoints(out)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def checkpoints(out: Path) -> list[Path]:
    """The run's checkpoints, the oldest first."""
    return sorted(path for path in (out / FOLDER).glob("step-*") if path.is_dir())


def load_checkpoint(
    folder: Path, model: nn.Module, optimiser: torch.optim.AdamW, device: torch.device
) -> dict[str, Any]:
    """Puts the weights and the optimiser's state in place and returns the rest.

    Raises:
        LeadlineError: a file is missing or damaged; it is named, and what to do.
    """
    advice = f"remove {folder} to continue from the checkpoint before it, or start again in another folder"
    try:
        read_weights(folder, model, device=device, keep_dtype=False)
        tensors = load_file(folder / "optimizer.safetensors")
        load_optimiser(model, optimiser, tensors)
        state: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except LeadlineError as error:
        raise LeadlineError(f"{error}; {advice}") from error
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise LeadlineError(f"the checkpoint {folder} is damaged ({error}); {advice}") from error
    return state


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
