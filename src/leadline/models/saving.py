"""A model in a folder: `config.json` and `model.safetensors`. No pickles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from leadline.config import from_dict, to_dict
from leadline.errors import LeadlineError, UsageError
from leadline.files import check_sum, forget_sums, write_atomically, write_json
from leadline.models.config import DecoderConfig
from leadline.reading import read_json
from leadline.sharded import laid_out

if TYPE_CHECKING:
    from leadline.models.resnet import ResNetConfig

CONFIG = "config.json"
WEIGHTS = "model.safetensors"


def write_model(folder: Path, config: DecoderConfig | ResNetConfig, weights: dict[str, Tensor]) -> None:
    """Writes the weights, from `whole_tensors`, then the configuration, each whole or not at all.

    Raises:
        LeadlineError: the folder can't be written.
    """
    try:
        forget_sums(folder)
        write_tensors(folder / WEIGHTS, weights)
        write_json(folder / CONFIG, to_dict(config))
    except (OSError, SafetensorError) as error:
        raise LeadlineError(f"can't write the model to {folder}: {error}") from error


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Writes a safetensors file atomically, as readable as any new file is (`save_file` keeps others out)."""

    def write(temporary: Path) -> None:
        temporary.touch()
        mode = temporary.stat().st_mode
        save_file(tensors, temporary, metadata={"format": "pt"})
        temporary.chmod(mode)

    write_atomically(path, write)


def read_tensors(path: Path, device: torch.device | str | None = None) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a safetensors file, one at a time: a tensor's part of the file leaves the memory with it.

    So let go of each, with `del`, before the next.

    Raises:
        OSError, SafetensorError: the file is missing, damaged or incomplete.
    """
    for name in shapes_in(path):
        with safe_open(path, framework="pt", device=str(device or "cpu")) as file:
            tensor = file.get_tensor(name)
        yield name, tensor
        del tensor


def shapes_in(path: Path) -> dict[str, list[int]]:
    """The shapes of the tensors in a safetensors file, by name; no tensor is read."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 (no dictionary)


def read_config(folder: Path) -> DecoderConfig:
    """The configuration of the model in `folder`.

    Raises:
        LeadlineError: the file is missing, is no JSON, or holds something else.
    """
    path = folder / CONFIG
    try:
        data = read_json(path, dict[str, Any])
    except (FileNotFoundError, NotADirectoryError) as error:
        raise LeadlineError(f"{path} is missing; a model's folder holds {CONFIG} and {WEIGHTS}") from error
    try:
        config = from_dict(DecoderConfig, data, where="model")
        check_sum(path)
        return config
    except (UsageError, TypeError) as error:
        raise LeadlineError(f"{path} is not a configuration of a decoder: {error}") from error


def read_weights(folder: Path, model: nn.Module, *, device: torch.device | str | None, keep_dtype: bool) -> None:
    """Gives a model made on the meta device its weights.

    Args:
        keep_dtype: take the dtypes of the file, not those of `model`.

    Raises:
        LeadlineError: the file is missing or damaged, or its names or shapes aren't the model's.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        raise LeadlineError(f"{path} is missing; a model's folder holds {CONFIG} and {WEIGHTS}")
    try:
        check_sum(path)
        _fill(path, model, device, keep_dtype)
    except (OSError, SafetensorError) as error:
        raise LeadlineError(f"{path} is damaged or incomplete: {error}") from error


@torch.no_grad()
def _fill(path: Path, model: nn.Module, device: torch.device | str | None, keep_dtype: bool) -> None:
    expected, shapes = model.state_dict(), shapes_in(path)
    missing, unknown = expected.keys() - shapes.keys(), shapes.keys() - expected.keys()
    if missing or unknown:
        told = [f"{word} {_first(names)}" for word, names in (("lacks", missing), ("has unknown", unknown)) if names]
        raise LeadlineError(f"{path} doesn't fit its {CONFIG}: it {' and '.join(told)}")
    for name, shape in shapes.items():
        if shape != list(expected[name].shape):
            raise LeadlineError(
                f"{path} doesn't fit its {CONFIG}: {name} is {shape} there and should be {list(expected[name].shape)}"
            )
    assigned = any(value.is_meta for value in expected.values())
    for name, value in read_tensors(path, device):
        if assigned:
            # A copy, because the file's tensors are unaligned and matrix products round differently on those.
            expected[name] = value.to(value.dtype if keep_dtype else expected[name].dtype, copy=True)
        else:
            # A model that has values keeps its parameters, because an optimiser holds them.
            expected[name].copy_(laid_out(value, expected[name]))
        del value  # before the next is read
    if assigned:
        model.load_state_dict(expected, assign=True)


def _first(names: set[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
