"""A model in a folder: `config.json` and `model.safetensors`. No pickles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from leadline.config import from_dict, to_dict
from leadline.errors import LeadlineError, UsageError
from leadline.files import write_atomically, write_json
from leadline.models.config import DecoderConfig

if TYPE_CHECKING:
    from leadline.models.resnet import ResNetConfig

CONFIG = "config.json"
WEIGHTS = "model.safetensors"


def write_model(folder: Path, config: DecoderConfig | ResNetConfig, model: nn.Module) -> None:
    """Writes the weights, then the configuration, each whole or not at all.

    Raises:
        LeadlineError: the folder can't be written.
    """
    weights = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
    try:
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


def read_config(folder: Path) -> DecoderConfig:
    """The configuration of the model in `folder`.

    Raises:
        LeadlineError: the file is missing, is no JSON, or holds something else.
    """
    path = folder / CONFIG
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise LeadlineError(f"{path} is missing; a model's folder holds {CONFIG} and {WEIGHTS}") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise LeadlineError(f"can't read {path}: {error}") from error
    try:
        return from_dict(DecoderConfig, data, where="model")
    except (UsageError, TypeError) as error:
        raise LeadlineError(f"{path} is no configuration of a decoder: {error}") from error


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
        weights = load_file(path, device=str(device or "cpu"))
    except (OSError, SafetensorError) as error:
        raise LeadlineError(f"{path} is damaged or incomplete: {error}") from error
    expected = model.state_dict()
    missing, unknown = expected.keys() - weights.keys(), weights.keys() - expected.keys()
    if missing or unknown:
        told = [f"{word} {_first(names)}" for word, names in (("lacks", missing), ("has unknown", unknown)) if names]
        raise LeadlineError(f"{path} doesn't fit its {CONFIG}: it {' and '.join(told)}")
    for name, value in weights.items():
        if value.shape != expected[name].shape:
            raise LeadlineError(
                f"{path} doesn't fit its {CONFIG}: {name} is {list(value.shape)} there and should be "
                f"{list(expected[name].shape)}"
            )
        # A copy, because the file's tensors are unaligned and matrix products round differently on those.
        weights[name] = value.to(value.dtype if keep_dtype else expected[name].dtype, copy=True)
    # A model that has values keeps its parameters, because an optimiser holds them.
    model.load_state_dict(weights, assign=any(value.is_meta for value in expected.values()))


def _first(names: set[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
