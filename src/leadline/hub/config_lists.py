"""A Hugging Face configuration for a model with fewer blocks: everything in it that counts or lists layers.

What is changed, in the configuration that the blocks were built from and in the dictionaries inside it:

- the number of layers itself, under whatever name the class keeps it;
- *per-layer lists*: a list or tuple with one entry per block. The length alone decides nothing: the class must make a
  list of that name as long as its layers are many (asked of the class itself, with other layer counts), or the name
  must say so (it has a word such as layer, block, types, pattern, or counts heads or widths). So a list of token ids
  or of rotary factors that happens to be as long stays;
- *lists of layer numbers* (`mlp_only_layers`, `attn_layer_indices`) and dictionaries keyed by them
  (`per_layer_config`): removed layers leave, the others are renumbered;
- *counts from one end* (the first k layers are dense, the last n share their cache): counted again among those kept;
- *periods* (every n-th layer is sparse): written out as a list where the class can read one.

A period that the class cannot read as a list stays as it is; whoever builds the model sees that its layers changed
kind (`leadline.hub.surgery`) and refuses.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from leadline.errors import LeadlineError
from leadline.hub.library import one_line

_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_FROM_THE_FRONT = ("first_k_dense_replace", "num_dense_layers", "max_window_layers", "moe_layer_start_index")
_FROM_THE_BACK = ("num_kv_shared_layers",)
_LAYER_WORDS = frozenset({"layer", "layers", "layerwise", "block", "blocks"})
_KIND_WORDS = frozenset({"types", "pattern", "patterns", "heads", "head", "intermediate", "ffn", "windows", "window"})
_NUMBER_WORDS = frozenset({"idx", "idxs", "indices", "indexes", "ids", "layers"})
_NOT_LAYERS = frozenset({"token", "tokens", "architectures", "label", "labels", "vision", "rope", "visual"})
_ASKED = (37, 41)
"""Layer counts for which the class is asked how long its lists are: primes, so that no other length is one of them."""


class ConfigCut(NamedTuple):
    """A configuration for the blocks that stay, and what was changed in it.

    Attributes:
        config: the new configuration, of the same class.
        changed: the new value of everything that was changed, by its path, such as `text_config.layer_types`.
    """

    config: Any
    changed: dict[str, Any]


def cut_config(config: Any, blocks: int, kept: Sequence[int]) -> ConfigCut:
    """The configuration of the same model with only the blocks `kept`.

    Args:
        config: a `PreTrainedConfig`; stays as it is.
        blocks: how many blocks the model has now.
        kept: the numbers of those that stay, from 0, ascending.

    Raises:
        LeadlineError: the configuration counts its layers in a way that is not known, or its class refuses the new
            values; says why.
    """
    values = config.to_dict()
    path, decoder = _decoder_of(config)
    inner = values
    for name in path:
        inner = inner[name]
    changed: dict[str, Any] = {}
    cut = _Cut(blocks, tuple(kept), _lists_of_the_class(decoder), ".".join(path), changed)
    cut.count(inner, decoder)
    cut.sparse_steps(inner)
    cut.walk(inner, "")
    try:
        new = type(config).from_dict(copy.deepcopy(values))
    except Exception as error:  # Whatever the library objects to is the reason of the refusal.
        raise LeadlineError(
            f"{type(config).__name__} does not accept its own values with {len(kept)} of {blocks} blocks: "
            f"{one_line(error)}"
        ) from error
    new._attn_implementation = config._attn_implementation
    new._experts_implementation = config._experts_implementation
    return ConfigCut(new, changed)


def value_at(config: Any, path: str) -> Any:
    """What a configuration holds at a path of `ConfigCut.changed`, as JSON has it; None where there is nothing."""
    value: Any = config.to_dict()
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name, value.get(int(name)) if name.isdigit() else None)
    return as_json(value)


def as_json(value: Any) -> Any:
    """The same with lists for tuples and strings for keys; numbers as keys lose their leading zeros."""
    if isinstance(value, Mapping):
        return {str(int(key)) if str(key).isdigit() else str(key): as_json(entry) for key, entry in value.items()}
    return [as_json(entry) for entry in value] if isinstance(value, list | tuple) else value


@dataclass
class _Cut:
    """The changes to one configuration's values, made in place."""

    blocks: int
    kept: tuple[int, ...]
    lists: Mapping[str, str]
    where: str
    changed: dict[str, Any]

    @property
    def renumbered(self) -> dict[int, int]:
        return {old: new for new, old in enumerate(self.kept)}

    def count(self, values: dict[str, Any], decoder: Any) -> None:
        """The number of layers."""
        name = decoder.attribute_map.get("num_hidden_layers", "num_hidden_layers")
        if values.get(name) != self.blocks:
            raise LeadlineError(
                f"the model has {self.blocks} blocks, and its configuration says {name}={values.get(name)}: "
                "how it counts layers is not known, so they can only be skipped without saving (--dry-run)"
            )
        for other in dict.fromkeys((name, *_COUNTS)):
            if values.get(other) == self.blocks:
                self._set(values, "", other, len(self.kept))

    def sparse_steps(self, values: dict[str, Any]) -> None:
        """Every n-th layer is a mixture of experts: written out as the list of those that are not."""
        step, dense = values.get("decoder_sparse_step"), values.get("mlp_only_layers")
        if not isinstance(step, int) or step <= 1 or not isinstance(dense, list | tuple):
            return
        # Renumbered by `walk`, like any list of layer numbers.
        values["mlp_only_layers"] = [block for block in range(self.blocks) if block in dense or (block + 1) % step != 0]
        self._set(values, "", "decoder_sparse_step", 1)

    def walk(self, values: dict[Any, Any], path: str) -> None:
        """Every list, count and dictionary below `values`."""
        for name in list(values):
            value = values[name]
            if not isinstance(name, str):
                continue
            if isinstance(value, dict):
                if _numbers_layers(value, self.blocks) and _names_layers(name):
                    renumbered = {str(self.renumbered[int(key)]): entry for key, entry in value.items()
                                  if int(key) in self.renumbered}  # fmt: skip
                    self._set(values, path, name, renumbered)
                elif "model_type" not in value:  # Another model's configuration counts that model's layers.
                    self.walk(value, f"{path}{name}.")
            elif isinstance(value, list | tuple):
                new = self._list(name, value, path)
                if new is not None:
                    self._set(values, path, name, new)
            elif isinstance(value, int) and not isinstance(value, bool) and not path:
                self._end(values, name, value)

    def _end(self, values: dict[Any, Any], name: str, value: int) -> None:
        if name in _FROM_THE_FRONT and value > 0:
            self._set(values, "", name, sum(block < value for block in self.kept))
        elif name in _FROM_THE_BACK and value > 0:
            self._set(values, "", name, sum(block >= self.blocks - value for block in self.kept))

    def _list(self, name: str, value: Sequence[Any], path: str) -> list[Any] | None:
        kind = self.lists.get(name) if not path else None
        if kind != "entries" and _lists_layer_numbers(name, value, self.blocks):
            return [self.renumbered[block] for block in value if block in self.renumbered]
        named = _names_layers(name, _LAYER_WORDS | _KIND_WORDS)
        if len(value) == self.blocks and (kind == "entries" or named):
            return [value[block] for block in self.kept]
        runs = _run_lengths(value)
        if runs is not None and len(runs) == self.blocks and named:
            return [[[runs[block] for block in self.kept], 1]]
        return None

    def _set(self, values: dict[Any, Any], path: str, name: str, value: Any) -> None:
        values[name] = value
        prefix = f"{self.where}." if self.where else ""
        self.changed[f"{prefix}{path}{name}"] = as_json(value)


def _decoder_of(config: Any) -> tuple[tuple[str, ...], Any]:
    """Where the language model's configuration lies in a composite one, and itself."""
    decoder = config.get_text_config(decoder=True)
    if decoder is config:
        return (), config
    for name in config.sub_configs:
        if getattr(config, name, None) is decoder:
            return (name,), decoder
    raise LeadlineError(f"{type(config).__name__} keeps its language model's configuration where it cannot be found")


def _lists_of_the_class(decoder: Any) -> dict[str, str]:
    """The lists that the class itself makes as long as its layers are many: "entries", or "numbers" of layers."""
    name = decoder.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    seen: list[dict[str, Any]] = []
    for layers in _ASKED:
        try:
            seen.append(type(decoder)(**{name: layers}).to_dict())
        except Exception:  # Its defaults fit no other number of layers: names alone decide.
            return {}
    return {
        key: "numbers" if _ascending(value) else "entries"
        for key, value in seen[0].items()
        if isinstance(value, list | tuple)
        and len(value) == _ASKED[0]
        and isinstance(seen[1].get(key), list | tuple)
        and len(seen[1][key]) == _ASKED[1]
    }


def _words(name: str) -> set[str]:
    return set(name.lower().split("_"))


def _names_layers(name: str, known: frozenset[str] = _LAYER_WORDS) -> bool:
    words = _words(name)
    return bool(words & known) and not words & _NOT_LAYERS


def _lists_layer_numbers(name: str, value: Sequence[Any], blocks: int) -> bool:
    words = _words(name)
    named = bool(words & _NUMBER_WORDS) and bool(words & (_LAYER_WORDS | {"attn", "attention", "mlp", "moe"}))
    # As long as the layers are many and 0 or 1 only: flags, one for each layer.
    flags = len(value) == blocks and blocks <= 2
    return named and not words & _NOT_LAYERS and not flags and _distinct(value) and all(0 <= v < blocks for v in value)


def _distinct(value: Sequence[Any]) -> bool:
    whole = all(isinstance(entry, int) and not isinstance(entry, bool) for entry in value)
    return bool(value) and whole and len(set(value)) == len(value)


def _ascending(value: Sequence[Any]) -> bool:
    return _distinct(value) and list(value) == sorted(value)


def _numbers_layers(value: Mapping[Any, Any], blocks: int) -> bool:
    keys = [int(key) for key in value if isinstance(key, int) or (isinstance(key, str) and key.isdigit())]
    return bool(keys) and len(keys) == len(value) and all(0 <= key < blocks for key in keys)


def _run_lengths(value: Sequence[Any]) -> list[Any] | None:
    """Layer kinds written as [[kinds, repeats], …], spelled out; None for anything else."""
    spelled: list[Any] = []
    for entry in value:
        if not (isinstance(entry, list | tuple) and len(entry) == 2 and isinstance(entry[0], list | tuple)):
            return None
        if not isinstance(entry[1], int):
            return None
        spelled += list(entry[0]) * entry[1]
    return spelled or None
