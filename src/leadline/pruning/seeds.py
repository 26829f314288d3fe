"""What a model is and where it comes from, as data, and whether several models differ by seed alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from leadline.config import differing, to_dict
from leadline.errors import UsageError
from leadline.hub.open import OpenedModel
from leadline.models import Decoder
from leadline.pruning.select import candidates
from leadline.reading import read_json
from leadline.training.config import FREE
from leadline.training.run_folder import read_run_file

BESIDE_LEARNING = (
    *FREE, "evaluate_every", "evaluate_tokens", "record_every", "gradient_every", "backend", "compile",
    "compile_blocks", "activation_checkpointing", "loss_chunk", "grad_accumulation", "seed",
)  # fmt: skip
"""Options of a run in which two seeds may differ: they change nothing of what is learnt but rounding."""
SHOWN = 4
"""Differences in an error."""
WORKS = "the models of a sweep differ by seed alone: train one design with --seed 0, --seed 1, --seed 2"


def identity(opened: OpenedModel) -> dict[str, Any]:
    """What decides a model's numbers on a text: its weights, configuration, tokenizer and blocks. JSON can hold it."""
    return {
        "weights": hash_of_weights(opened.stack.model),
        "configuration": hash_of_data(configuration(opened)),
        "tokenizer": opened.tokenizer.hash,
        "begins": opened.begins,
        "blocks": getattr(opened.stack, "path", None),  # which list of a Hugging Face model's they are
    }


def configuration(opened: OpenedModel) -> dict[str, Any]:
    """A model's configuration as data; of a Hugging Face one without where it lies and what wrote it."""
    model: Any = opened.stack.model
    if isinstance(model, Decoder):
        found: dict[str, Any] = to_dict(model.config)
        return found
    whole = model.config.to_dict()
    return {name: value for name, value in whole.items() if not name.startswith("_") and name != "transformers_version"}


def check_seeds(models: Sequence[OpenedModel], identities: Sequence[Mapping[str, Any]], kind: str) -> None:
    """Makes sure that several models are one, trained with several seeds.

    Args:
        identities: the `identity` of each.
        kind: "block" or "sublayer".

    Raises:
        UsageError: two that differ in more than that, or in nothing; both are named.
    """
    first = models[0]
    for other in models[1:]:
        if candidates(other.stack, kind).runs != candidates(first.stack, kind).runs:
            raise UsageError(f"{other.path} has other {kind}s than {first.path}; {WORKS}")
        if other.tokenizer.hash != first.tokenizer.hash:
            raise UsageError(f"{other.path} has another tokenizer than {first.path}; {WORKS}")
        for how, of in (("configured", configuration), ("trained", _training)):
            different = shown(of(first), of(other), ("in the first", "in the other"))
            if different and of(first) and of(other):
                raise UsageError(f"{first.path} and {other.path} are {how} differently: {different}; {WORKS}")
    for what in ("weights", "seed"):
        before: dict[Any, OpenedModel] = {}
        for opened, found in zip(models, identities, strict=True):
            value = found["weights"] if what == "weights" else run_config(opened).get("seed")
            if value is not None and value in before:
                raise UsageError(f"{opened.path} has the same {what} as {before[value].path}; {WORKS}")
            before[value] = opened


def shown(a: Mapping[str, Any], b: Mapping[str, Any], places: tuple[str, str] = ("there", "here")) -> str:
    """What two plain data differ in, the first few; nothing where they are equal."""
    different = differing(a, b, places)
    return "; ".join(different[:SHOWN]) + ("; …" if len(different) > SHOWN else "")


def _training(opened: OpenedModel) -> dict[str, Any]:
    """How a run was trained; nothing where that isn't known."""
    options = {name: value for name, value in run_config(opened).items() if name not in BESIDE_LEARNING}
    return options and {**options, "data": read_run_file(opened.path).get("data", {}).get("hash")}


def hash_of_data(content: Any) -> str:
    """SHA-256 of data that JSON can hold, in hexadecimal; the order of keys doesn't count."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


@torch.no_grad()
def hash_of_weights(model: nn.Module) -> str:
    """SHA-256 of all parameters and buffers with their names, in hexadecimal; dtypes and shapes count."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


RECORD = "prune.json"
EARLIER = ("origin", "criterion", "unit", "cut", "kept")
"""What is kept of the record of an earlier pruning."""
TRAINING = {name: name for name in ("design", "preset", "data", "seed", "tokens")} | {"learning_rate": "lr"}
"""What is kept of a run's options, and their names there."""
HEAL_SHARE = 0.1
HEAL_RATE = 1e-4


def origin_of(opened: OpenedModel) -> dict[str, Any]:
    """Where a model comes from, as data that JSON can hold."""
    origin: dict[str, Any] = {"model": str(opened.path), "kind": opened.kind}
    if (opened.path / RECORD).is_file():
        before = read_json(opened.path / RECORD, dict[str, Any], advice="remove it to continue without it")
        origin["earlier"] = {name: before.get(name) for name in EARLIER}
    config = run_config(opened)
    return origin | ({name: config.get(option) for name, option in TRAINING.items()} if opened.kind == "run" else {})


def healing_rate(opened: OpenedModel) -> float:
    """The learning rate for healing, unless one is given: a tenth of the run's, or 1e-4."""
    rate = run_config(opened).get("lr")
    return HEAL_SHARE * rate if rate is not None and rate > 0 else HEAL_RATE


def run_config(opened: OpenedModel) -> dict[str, Any]:
    """The options of the run that a model is of; empty where it is of none."""
    return {**read_run_file(opened.path)["config"]} if opened.kind == "run" else {}
