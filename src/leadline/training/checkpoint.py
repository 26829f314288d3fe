"""Checkpoints: a folder each, whole or not there; safetensors and JSON alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from leadline.config import from_dict
from leadline.distributed.world import ALONE, World
from leadline.errors import LeadlineError, UsageError
from leadline.files import check_sum, sync_folder, write_json, write_sums
from leadline.models import Decoder
from leadline.models.resnet import ResNet
from leadline.models.saving import read_tensors, read_weights, write_model, write_tensors
from leadline.reading import read_json
from leadline.sharded import whole_tensors
from leadline.training.gradient_steps import NORMS, StepNorms
from leadline.training.optimiser import load_optimiser, optimiser_tensors
from leadline.training.records import Detail

FOLDER = "checkpoints"
GRADIENT = "gradient.json"
OPTIMISER = "optimizer.safetensors"
STATE = "state.json"
LIVE = "live"

Resume = Literal["newest", "previous", "never"]
"""Which checkpoint a run that is there resumes from."""


class ShareState(TypedDict):
    """What `GradientShare.state` returns; checkpoints of earlier versions have fewer entries."""

    steps: int
    blocks: list[float]
    sublayers: list[float]
    seen: NotRequired[int]
    not_finite: NotRequired[int]
    blocks_missing: NotRequired[list[int]]
    sublayers_missing: NotRequired[list[int]]
    never: NotRequired[list[str]]
    details: NotRequired[list[Detail]]


class State(TypedDict):
    """The content of `state.json`: what a run resumes with beside weights and optimiser."""

    step: int
    seconds: float
    train_loss: float
    loader: dict[str, int]
    gradient: dict[str, Any]
    equalised: NotRequired[dict[str, Any]]


def save_checkpoint(
    out: Path,
    model: Decoder | ResNet,
    optimiser: torch.optim.Optimizer,
    state: State,
    *,
    keep: int,
    kept_step: int | None = None,
    gradient: dict[str, Any] | None = None,
    norms: StepNorms | None = None,
    world: World = ALONE,
) -> Path:
    """Writes `checkpoints/step-…`, then removes all but the newest `keep`.

    BHyT's constants are recomputed for what is written, and a resumed run keeps those it had: when and how
    often it was saved changes nothing of what it computes.

    Args:
        state: what the run resumes with, as JSON can hold it.
        kept_step: the checkpoint of this step stays, beside the newest `keep`.
        gradient: the gradient share up to this step, which `leadline.training.load_gradient` reads.
        norms: every step's gradient norms up to this one, which a resumed run adds to.
        world: all processes call this at the same time, and the main one writes.

    Raises:
        LeadlineError: it can't be written; the checkpoints that were there stay.
    """
    folder = out / FOLDER / _name(state["step"])
    partial = folder.with_name(f".{folder.name}.partial")
    live = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        if isinstance(model, Decoder):
            model.refresh_statistics()
        weights = whole_tensors(model.state_dict(), keep=world.main)
        moments = whole_tensors(optimiser_tensors(model, optimiser), keep=world.main)
        if not world.main:
            return folder
        for left in folder.parent.glob(".*.partial"):
            shutil.rmtree(left, ignore_errors=True)
        folder.parent.mkdir(exist_ok=True)  # and not the run's folder, which may have been removed
        partial.mkdir()
        write_model(partial, model.config, weights)
        kept = {f"{name}:{LIVE}": value for name, value in live.items()}
        write_tensors(partial / OPTIMISER, {**moments, **kept})
        write_json(partial / STATE, state)
        if gradient is not None:
            write_json(partial / GRADIENT, gradient)
        if norms is not None:
            norms.save(partial)
        write_sums(partial)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
        sync_folder(folder.parent)
    except LeadlineError as error:
        raise LeadlineError(f"can't write the checkpoint {folder}: {error.__cause__ or error}") from error
    except (OSError, SafetensorError) as error:
        raise LeadlineError(f"can't write the checkpoint {folder}: {error}") from error
    finally:
        if world.main:
            shutil.rmtree(partial, ignore_errors=True)
        _set_buffers(model, live)
    for old in checkpoints(out)[:-keep]:
        if step_of(old) != kept_step:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def checkpoints(out: Path) -> list[Path]:
    """The run's checkpoints, the oldest first."""
    return sorted(
        path for path in (out / FOLDER).glob("step-*") if path.name.removeprefix("step-").isdecimal() and path.is_dir()
    )


def load_checkpoint(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, device: torch.device) -> State:
    """Puts the weights, the buffers and the optimiser's state in place and returns the rest.

    Tensors are read one at a time, so that this needs no more memory than the model and its optimiser.

    Raises:
        LeadlineError: a file is missing or damaged; it is named. Files are compared with their checksums, which
            checkpoints of earlier versions don't have.
    """
    state = _read_state(folder)
    read_weights(folder, model, device=device, keep_dtype=False)
    path, live = folder / OPTIMISER, {}

    def of_optimiser() -> Iterator[tuple[str, Tensor]]:
        for name, value in read_tensors(path):
            if name.endswith(f":{LIVE}"):
                live[name.removesuffix(f":{LIVE}")] = value.clone()
            else:
                yield name, value
            del value  # before the next is read

    try:
        check_sum(path)
        load_optimiser(model, optimiser, of_optimiser())
        _set_buffers(model, live)
    except FileNotFoundError as error:
        raise LeadlineError(f"{path} is missing") from error
    except KeyError as error:
        raise LeadlineError(f"{path} is damaged: it lacks {error.args[0]}") from error
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError) as error:
        raise LeadlineError(f"{path} is damaged or incomplete: {error}") from error
    return state


def _read_state(folder: Path) -> State:
    path = folder / STATE
    try:
        state = read_json(path, State)
        shares: list[ShareState] = [
            from_dict(ShareState, state[part], part) for part in ("gradient", "equalised") if part in state
        ]
        check_sum(path)
    except FileNotFoundError as error:
        raise LeadlineError(f"{path} is missing") from error
    except UsageError as error:
        raise LeadlineError(f"{path} is damaged: {error}") from error
    step = state["step"]
    if folder.name != _name(step):
        raise LeadlineError(f"{path} is damaged: it says step {step}, and its folder {folder.name}")
    if state["seconds"] < 0:
        raise LeadlineError(f"{path} is damaged: {state['seconds']} seconds of training")
    for share in shares:
        blocks, sublayers = share["blocks"], share["sublayers"]
        missing = (share.get("blocks_missing", blocks), share.get("sublayers_missing", sublayers))
        if tuple(map(len, missing)) != (len(blocks), len(sublayers)):
            raise LeadlineError(f"{path} is damaged: its lists of gradients are of unlike lengths")
    if not all(0 <= share["steps"] <= share.get("seen", step) == step for share in shares):
        raise LeadlineError(f"{path} is damaged: its gradient share is that of other steps than {step}")
    return state


def check_position(state: State, epoch: int, batch: int) -> None:
    """Makes sure that a checkpoint's position in the data is that of its step.

    Args:
        epoch: sequences, or images, in an epoch.
        batch: of these in a step.

    Raises:
        LeadlineError: it is not.
    """
    if state["loader"]["epoch"] * epoch + state["loader"]["index"] != state["step"] * batch:
        raise LeadlineError(f"{STATE} is damaged: its position in the data is not that of step {state['step']}")


def _name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint's folder is named after."""
    return int(checkpoint.name.removeprefix("step-"))


@torch.no_grad()
def _set_buffers(model: nn.Module, values: dict[str, Tensor]) -> None:
    for name, buffer in model.named_buffers():
        buffer.copy_(values[name])


def choose_checkpoint(out: Path, which: Resume) -> Path | None:
    """The checkpoint to resume from, or None where a run begins.

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
    wanted = out / FOLDER / _name(step)
    if wanted not in found:
        there = ", ".join(str(step_of(path)) for path in found)
        raise UsageError(f"{out} has no checkpoint of step {step}; it has {there}")
    return wanted
