"""What a model of a sweep is, as data, and whether several models differ by seed alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from leadline.config import differing, to_dict
from leadline.errors import UsageError
from leadline.models import Decoder
from leadline.pruning.candidates import candidates
from leadline.pruning.subject import Subject
from leadline.training.config import FREE
from leadline.training.run_folder import read_run_file

BESIDE_LEARNING = (
    *FREE, "evaluate_every", "evaluate_tokens", "record_every", "gradient_every", "backend", "compile",
    "compile_blocks", "activation_checkpointing", "loss_chunk", "grad_accumulation", "seed",
)  # fmt: skip
"""Options of a run in which two seeds may differ: they change nothing of what is learnt but rounding."""
SHOWN = 3
"""Differences in an error."""
WORKS = "the models of a sweep differ by seed alone: train one design with --seed 0, --seed 1, --seed 2"


def identity(subject: Subject) -> dict[str, Any]:
    """What decides a model's numbers on a text: its weights, configuration, tokenizer and blocks. JSON can hold it."""
    return {
        "weights": hash_of_weights(subject.stack.model),
        "configuration": hash_of_data(configuration(subject)),
        "tokenizer": subject.opened.tokenizer.hash,
        "begins": subject.opened.begins,
        "blocks": getattr(subject.stack, "path", None),  # which list of a Hugging Face model's they are
    }


def configuration(subject: Subject) -> dict[str, Any]:
    """A model's configuration as data; of a Hugging Face one without where it lies and what wrote it."""
    model: Any = subject.stack.model
    if isinstance(model, Decoder):
        found: dict[str, Any] = to_dict(model.config)
        return found
    whole = model.config.to_dict()
    return {name: value for name, value in whole.items() if not name.startswith("_") and name != "transformers_version"}


def check_seeds(subjects: Sequence[Subject], models: Sequence[Mapping[str, Any]], kind: str) -> None:
    """Makes sure that several models are one, trained with several seeds.

    Args:
        models: the `identity` of each.
        kind: "block" or "sublayer".

    Raises:
        UsageError: two that differ in more than that, or in nothing; both are named.
    """
    first = subjects[0]
    for subject in subjects[1:]:
        if candidates(subject.stack, kind).runs != candidates(first.stack, kind).runs:
            raise UsageError(f"{subject.path} has other {kind}s than {first.path}; {WORKS}")
        if subject.opened.tokenizer.hash != first.opened.tokenizer.hash:
            raise UsageError(f"{subject.path} has another tokenizer than {first.path}; {WORKS}")
        _check_equal(first, subject, "configured", configuration(first), configuration(subject))
        _check_equal(first, subject, "trained", _training(first), _training(subject))
    _check_once("the same weights", subjects, [model["weights"] for model in models])
    _check_once("the same seed", subjects, [_seed(subject) for subject in subjects])


def _check_equal(first: Subject, other: Subject, how: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    different = differing(a, b, ("in the first", "in the other")) if a and b else []
    if different:
        shown = "; ".join(different[:SHOWN]) + ("; …" if len(different) > SHOWN else "")
        raise UsageError(f"{first.path} and {other.path} are {how} differently: {shown}; {WORKS}")


def _check_once(what: str, subjects: Sequence[Subject], values: Sequence[Any]) -> None:
    before: dict[Any, Subject] = {}
    for subject, value in zip(subjects, values, strict=True):
        if value is not None and value in before:
            raise UsageError(f"{subject.path} has {what} as {before[value].path}; {WORKS}")
        before[value] = subject


def _training(subject: Subject) -> dict[str, Any]:
    """How a run was trained; nothing where that isn't known."""
    if subject.opened.kind != "run":
        return {}
    run = read_run_file(subject.path)
    options = {name: value for name, value in run["config"].items() if name not in BESIDE_LEARNING}
    return {**options, "data": run.get("data", {}).get("hash")}


def _seed(subject: Subject) -> Any:
    return read_run_file(subject.path)["config"].get("seed") if subject.opened.kind == "run" else None


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
