"""Saving a pruned Hugging Face model so that it loads again, and saying so only once it has.

    saved = save_pruned(model, [20, 21, 25], Path("smaller"), tokenizer=tokenizer)

Everything is written into a hidden folder (`leadline.hub.new_folder`), loaded from there with `AutoModelForCausalLM` as
anyone would, compared, and only then moved into place. A model that would not come back the same leaves nothing behind.

In memory there are two models at most: the one that is saved, whose tensors are those of the whole model, and the one
that was loaded.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from leadline.errors import LeadlineError
from leadline.files import sync_folder, write_json, write_text
from leadline.hub.agreement import check_cache, check_logits, check_same_weights, logits_of, sample_tokens
from leadline.hub.config_lists import value_at
from leadline.hub.library import one_line, quiet
from leadline.hub.new_folder import check_new, placed
from leadline.hub.surgery import Place, check_same_block, cut_blocks, find_blocks
from leadline.hub.tokenizer import write_tokenizer
from leadline.stacks.bypass import bypassing

_IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")


class Reloaded(NamedTuple):
    """A model that was saved, loaded again and found the same.

    Attributes:
        model: it, as loaded again.
        difference: the largest difference of logits.
        steps: of generation, compared with the cache and without.
    """

    model: Any
    difference: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """A pruned model that was saved, loaded again and found the same.

    Attributes:
        folder: where it is.
        model: it, as loaded again.
        kept: the numbers that its blocks had before they were removed, from 0.
        removed: those that went.
        parameters: how many it has, tied ones once.
        parameters_before: how many there were.
        difference: the largest difference of its logits from those of the whole model with the blocks skipped.
        steps: of generation, compared with the cache and without.
        changed: what was changed in the configuration, by path.
    """

    folder: Path
    model: Any
    kept: tuple[int, ...]
    removed: tuple[int, ...]
    parameters: int
    parameters_before: int
    difference: float
    steps: int
    changed: dict[str, Any]


def save_pruned(
    model: Any,
    blocks: Collection[int],
    folder: Path,
    *,
    tokenizer: Any = None,
    record: dict[str, Any] | None = None,
    tokens: Tensor | None = None,
    layers: str | None = None,
) -> SavedModel:
    """Removes blocks and saves what is left as safetensors with its configuration.

    Compared before the folder appears, in the model's own dtype: the logits of the whole model with the blocks skipped
    and of the model loaded again; its weights, blocks and parameters; every list of its configuration; and generation
    with and without the cache.

    Args:
        model: a `transformers.PreTrainedModel`; stays as it is.
        blocks: the numbers of the blocks to remove, from 0.
        folder: a new or empty folder.
        tokenizer: a tokenizer of the library, or the folder that holds its files; read again like the model.
        record: written beside the weights as `pruning.json`.
        tokens: to compare with, (B, T) int64; random ones without.
        layers: the name of the list of blocks, such as "model.layers"; found without.

    Raises:
        UsageError: the folder holds something, or a block that isn't there.
        LeadlineError: the model cannot be cut, or does not come back the same; nothing is left behind.
    """
    check_new(folder)
    check_configurations(model)
    surgery = cut_blocks(model, blocks, layers=layers)
    tokens = sample_tokens(model) if tokens is None else tokens.to(model.device)
    removed = tuple(sorted(set(blocks)))
    with bypassing(model.get_submodule(surgery.layers), removed):
        expected = logits_of(model, tokens)
    compared: dict[str, Any] = {"tokens": tokens, "expected": expected, "changed": surgery.changed}
    with placed(folder, "partial") as hidden:
        reloaded = write_and_reload(surgery.model, hidden, tokenizer=tokenizer, record=record, **compared)
    return SavedModel(
        folder=folder,
        kept=surgery.kept,
        removed=removed,
        parameters=_count(reloaded.model),
        parameters_before=_count(model),
        changed=surgery.changed,
        **reloaded._asdict(),
    )


def save_checked(model: Any, folder: Path, *, tokenizer: Any = None, record: dict[str, Any] | None = None) -> Any:
    """Saves a model as it is (a pruned one that was trained further) with the same comparison, and returns it loaded.

    Raises:
        UsageError: the folder holds something.
        LeadlineError: it does not come back the same; nothing is left behind.
    """
    check_new(folder)
    check_configurations(model)
    with placed(folder, "partial") as hidden:
        return write_and_reload(model, hidden, tokenizer=tokenizer, record=record).model


def write_and_reload(
    model: Any,
    folder: Path,
    *,
    tokenizer: Any = None,
    record: dict[str, Any] | None = None,
    tokens: Tensor | None = None,
    expected: Tensor | None = None,
    changed: Mapping[str, Any] | None = None,
) -> Reloaded:
    """Writes a model into a hidden folder, loads it again and compares it.

    Args:
        folder: isn't there yet.
        tokens: to compare with, (B, T) int64; random ones without.
        expected: the logits of `tokens`; those of `model` unless given.
        changed: what of the configuration has to come back, by path.

    Raises:
        LeadlineError: it can't be saved, or does not come back the same.
    """
    try:
        with quiet():
            model.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # Whatever the library objects to is the reason.
        raise LeadlineError(f"{type(model).__name__} cannot be saved: {one_line(error)}") from error
    if tokenizer is not None:
        write_tokenizer(tokenizer, folder, getattr(model.config, "eos_token_id", None))
    if record is not None:
        write_json(folder / "pruning.json", record)
    _forget_code(folder)
    loaded = load_causal_lm(folder, model.dtype, like=model).to(model.device).eval()
    _check_shape(model, loaded, changed or {})
    check_same_weights(model, loaded, "the reloaded model")
    tokens = sample_tokens(model) if tokens is None else tokens
    expected = logits_of(model, tokens) if expected is None else expected
    difference = check_logits(expected, logits_of(loaded, tokens), "the reloaded model")
    steps = check_cache(loaded, tokens)
    _settle(folder)
    return Reloaded(loaded, difference, steps)


def check_configurations(model: Any) -> None:
    """Makes sure that the library saves what this model is and how it generates; it loads more than it saves.

    Raises:
        LeadlineError: it doesn't; names the entries.
    """
    for name, config in (("config", model.config), ("generation_config", getattr(model, "generation_config", None))):
        try:
            with tempfile.TemporaryDirectory() as folder, quiet():
                if config is not None:
                    config.save_pretrained(folder)
        except Exception as error:  # Whatever the library objects to is the reason.
            entries = ", ".join(re.findall(r"^- `(\w+)`", str(error), re.MULTILINE))
            said = f"{entries} can't stand beside the other entries; take them out" if entries else one_line(error)
            raise LeadlineError(f"transformers does not save this {name}.json: {said}") from error


def load_causal_lm(folder: Path, dtype: torch.dtype, *, like: Any = None) -> Any:
    """A model from a folder, on the CPU, from safetensors only, without the network and without code of its own.

    Args:
        like: a model whose attention and experts are computed the same way, so that the logits can be compared.

    Raises:
        LeadlineError: it cannot be loaded, or a weight is missing, left over or of another shape.
    """
    from transformers import AutoModelForCausalLM

    # Without the third the library asks on the terminal whether to run what lies in the folder, and waits.
    options: dict[str, Any] = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
    # How the configuration wants its outputs isn't what the model is; the library's own classes need them by name.
    options |= {"dtype": dtype, "return_dict": True}
    if like is not None:
        implementations = {name: getattr(like.config, f"_{name}") for name in _IMPLEMENTATIONS}
        options |= {name: value for name, value in implementations.items() if value is not None}
    load: Any = AutoModelForCausalLM.from_pretrained
    try:
        with quiet():
            model, info = load(str(folder), output_loading_info=True, **options)
    except Exception as error:  # Whatever the library objects to is the reason.
        raise LeadlineError(f"AutoModelForCausalLM cannot load it: {_reason(error)}") from error
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        entries = sorted(map(one_line, info.get(kind) or ()))
        if entries:
            more = f" and {len(entries) - 1} more" if len(entries) > 1 else ""
            raise LeadlineError(f"its weights don't fit its config.json: {kind.replace('_', ' ')}: {entries[0]}{more}")
    return model


def _reason(error: Exception) -> str:
    """What the library says; briefly where it goes on about everything else that works."""
    said = one_line(error)
    if "trust_remote_code" in said:
        return "its configuration names code of its own (auto_map), which isn't run here; classes of transformers work"
    strange = re.match(r"Unrecognized configuration class <class '(?:\w+\.)*(\w+)'>", said)
    if strange:
        return f"this version of transformers has no causal language model for {strange[1]}"
    return said


def _check_shape(model: Any, loaded: Any, changed: Mapping[str, Any]) -> None:
    """The loaded model is the pruned one in everything that logits of a short text need not show."""
    if type(loaded) is not type(model):
        raise LeadlineError(f"{type(model).__name__} comes back as {type(loaded).__name__}")
    name, blocks = find_blocks(model)
    other, others = find_blocks(loaded)
    if (name, len(blocks)) != (other, len(others)):
        raise LeadlineError(f"{len(blocks)} blocks were saved and {len(others)} come back")
    if _count(model) != _count(loaded):
        raise LeadlineError(f"{_count(model):,} parameters were saved and {_count(loaded):,} come back")
    everything = tuple(range(len(blocks)))
    for position, (block, again) in enumerate(zip(blocks, others, strict=True)):
        check_same_block(block, again, Place(position, position, len(blocks), everything))
    for path, value in changed.items():
        there = value_at(loaded.config, path)
        if there != value:
            raise LeadlineError(f"the configuration comes back with {path} = {there} instead of {value}")


def _forget_code(folder: Path) -> None:
    """Takes out what names code in the folder: none comes along, and who trusts it could load nothing."""
    for name in ("config.json", "tokenizer_config.json"):
        try:
            content = json.loads((folder / name).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # what can't be read names nothing
            continue
        named = content.get("auto_map") if isinstance(content, dict) else None
        if isinstance(named, dict):
            # `owner/name--module.Class` lies elsewhere, and is still there.
            content["auto_map"] = {key: value for key, value in named.items() if "--" in str(value)}
            if not content["auto_map"]:
                del content["auto_map"]
            write_text(folder / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _settle(folder: Path) -> None:
    """The same rights for all files, and all of them on the disk."""
    mode = (folder / "config.json").stat().st_mode
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)  # Weights are written for their owner alone.
            with open(path, "rb") as handle:
                os.fsync(handle.fileno())
    sync_folder(folder)


def _count(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
