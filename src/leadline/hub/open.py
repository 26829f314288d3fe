"""A model from its folder, whoever wrote it: a run's, one that `Decoder.save` wrote, or Hugging Face's.

    opened = open_model("runs/demo/runs/mgr-seed0")        # or a folder with a Hugging Face model
    opened.stack.logits(tokens)

Safetensors only, no code from the folder, nothing from the network.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import safetensors
import torch

from leadline.data import Tokenizer, load_tokenizer
from leadline.data.tokenizers import FILE
from leadline.errors import LeadlineError, UsageError
from leadline.hub.library import one_line
from leadline.hub.saving import load_causal_lm
from leadline.hub.tokenizer import read_tokenizer
from leadline.models import Decoder
from leadline.models.saving import CONFIG
from leadline.stacks import Stack, stack_of
from leadline.stacks.layout import a_few_tokens
from leadline.training import load_model
from leadline.training.resolve import usable_device
from leadline.training.run_folder import RUN_FILE

Kind = Literal["run", "leadline", "hugging-face"]

WEIGHTS = "model.safetensors"
"""The weights, or with `.index.json` the list of the files that hold them."""

STORED = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""What safetensors call the dtypes in which a model can be loaded."""


@dataclass(frozen=True)
class OpenedModel:
    """A model, ready to be measured, and its tokenizer.

    Attributes:
        stack: the model as a stack of blocks, in evaluation mode.
        tokenizer: of this model. It adds no tokens of its own to a text.
        kind: what the folder is.
        path: the folder.
        begins: the token that every text should begin with, where the model's own tokenizer adds one (Gemma, Llama);
            None otherwise.
    """

    stack: Stack
    tokenizer: Tokenizer
    kind: Kind
    path: Path
    begins: int | None = None


def kind_of(path: Path | str) -> Kind:
    """What a model's folder is.

    Raises:
        UsageError: there is no such folder, or no model in it.
        LeadlineError: its `config.json` can't be read.
    """
    path = Path(path)
    if not path.is_dir():
        raise UsageError(
            f"{path} is not a folder; MODEL is a run's folder, one with {CONFIG} and model.safetensors, or a Hugging "
            "Face model's. Nothing is downloaded"
        )
    if (path / RUN_FILE).is_file():
        return "run"
    if not (path / CONFIG).is_file():
        raise UsageError(f"{path} holds no model: neither {RUN_FILE} of a run nor {CONFIG} is there")
    config = _read_config(path)
    return "hugging-face" if "model_type" in config or "architectures" in config else "leadline"


def open_model(
    path: Path | str, device: str = "cpu", *, layers: str | None = None, dtype: torch.dtype | None = None
) -> OpenedModel:
    """The model in a folder, and its tokenizer.

    Args:
        path: a run's folder, a folder that `Decoder.save` wrote beside a tokenizer, or a Hugging Face folder.
        device: where the model goes.
        layers: the name of the list of blocks, such as "transformer.h", where it isn't found by itself.
        dtype: of the weights; as they are stored unless given.

    Raises:
        UsageError: no such folder, no model or no tokenizer in it, weights that are pickles, blocks that aren't found,
            a model that reads the tokens that it should predict, or a device that can't be used.
        LeadlineError: a file is damaged, or a package is missing.
    """
    path, place = Path(path), usable_device(device)
    kind = kind_of(path)
    model: Any
    begins = None
    if kind == "hugging-face":
        model = _load_hugging_face(path, dtype)
        tokenizer, begins = read_tokenizer(path, getattr(model.config, "eos_token_id", None))
    elif kind == "run":
        model, tokenizer = load_model(path)
        model = model if dtype is None else model.to(dtype)
    else:
        model, tokenizer = Decoder.load(path, dtype=dtype), load_tokenizer(path)
    stack = stack_of(model.to(place).eval(), blocks=layers)
    if kind == "hugging-face":
        _check_causal(stack)
    if tokenizer.vocab_size > stack.vocab_size:
        raise UsageError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model {stack.vocab_size}: "
            f"the {FILE} in {path} is not this model's"
        )
    return OpenedModel(stack, tokenizer, kind, path, begins)


def _check_causal(stack: Stack) -> None:
    """Makes sure that logits don't depend on later tokens: the library loads encoders as causal models too.

    Raises:
        UsageError: they do, so a perplexity would mean nothing.
    """
    tokens = a_few_tokens(stack.vocab_size, stack.context, stack.device)
    half = tokens.shape[1] // 2
    other = torch.cat((tokens[:, :half], tokens.flip(0)[:, half:]), dim=1)
    with torch.no_grad():
        one, two = (stack.logits(given)[:, :half] for given in (tokens, other))
    # Not zero: experts that are given other numbers of rows round otherwise.
    tolerance = 1e-4 if torch.finfo(one.dtype).bits >= 32 else 0.1
    if half and bool((one.double() - two.double()).abs().max() > tolerance * one.double().abs().max()):
        raise UsageError(
            f"{type(stack.model).__name__} is not causal as it is configured: what it says at a token depends on the "
            "tokens behind it, so its perplexity means nothing; models that were trained to predict the next token work"
        )


def _load_hugging_face(path: Path, dtype: torch.dtype | None) -> Any:
    config = _read_config(path)
    files = _weight_files(path, config)
    if not files:
        pickles = sorted(file.name for ending in ("*.bin", "*.pt", "*.pth") for file in path.glob(ending))
        if pickles:
            raise UsageError(
                f"the weights in {path} are pickles ({pickles[0]}), which can run any code when they are loaded; "
                "write them as safetensors where you trust them: model.save_pretrained(FOLDER)"
            )
        raise UsageError(f"there are no weights ({WEIGHTS} or {WEIGHTS}.index.json) in {path}")
    try:
        importlib.import_module("transformers")  # before anything is read
    except ImportError as error:
        raise LeadlineError('Hugging Face models need the package transformers: pip install "leadline[hf]"') from error
    try:
        return load_causal_lm(path, dtype or _stored_dtype(files, config))
    except LeadlineError as error:
        raise LeadlineError(f"{path}: {one_line(error)}") from error


def _weight_files(path: Path, config: dict[str, Any]) -> list[Path]:
    """The files that the library loads weights from: no other in the folder counts."""
    named = config.get("transformers_weights")
    for name in [named] if isinstance(named, str) else [WEIGHTS, f"{WEIGHTS}.index.json"]:
        file = path / name
        if not file.is_file():
            continue
        if file.suffix != ".json":
            return [file]
        # What is damaged is for the loading to say.
        with contextlib.suppress(OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
            shards = json.loads(file.read_text(encoding="utf-8"))["weight_map"].values()
            return [path / shard for shard in dict.fromkeys(shards)]
        return [file]
    return []


def _stored_dtype(files: list[Path], config: dict[str, Any]) -> torch.dtype:
    """What the configuration says, by any of the names it goes by; else what most of the loaded numbers are."""
    texts = config.get("text_config")
    for entries in (config, texts if isinstance(texts, dict) else {}):
        said = str(entries.get("dtype") or entries.get("torch_dtype"))
        dtype = getattr(torch, said.removeprefix("torch."), None)
        if isinstance(dtype, torch.dtype):
            return dtype
    found: dict[torch.dtype, int] = {}
    for file in files:
        # What is damaged is for the loading to say.
        with contextlib.suppress(safetensors.SafetensorError, OSError), safetensors.safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (a file's handle: it has keys, but can't be iterated)
                part = tensors.get_slice(name)
                dtype = STORED.get(part.get_dtype())
                if dtype is not None:
                    found[dtype] = found.get(dtype, 0) + math.prod(part.get_shape())
    return max(found, key=lambda dtype: found[dtype], default=torch.float32)


def _read_config(path: Path) -> dict[str, Any]:
    file = path / CONFIG
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LeadlineError(f"can't read {file}: {error}") from error
    if not isinstance(config, dict):
        raise LeadlineError(f"{file} is damaged: it should hold an object")
    return config
