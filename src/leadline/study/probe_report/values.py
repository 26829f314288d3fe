"""results.json of a probe as the report needs it: typed, and None wherever a value is missing.

leadline, command, created, seconds, machine
data       name, hash, heldout_tokens
settings   tokens, context, batch_size, parts, seed, device, dtype
models     one object each:
    name, path, kind, tokenizer, context
    status             "ok" or "failed"; error says why
    seconds            how long it was measured
    tokens, batches    of text that were there to measure on
    probe              what `leadline.probes.measure_stack` gives
    training_gradient  steps and share of the run's gradient.json, None for other models
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leadline.drawing.pictures import Entry, Row
from leadline.drawing.reading import items, mapping, number, row, rows, some, text


@dataclass(frozen=True, kw_only=True)
class ModelValues:
    """One model that was probed; a path such as `values("lens", "kl")` leads to a list of the measurement."""

    index: int
    name: str
    path: str
    kind: str
    tokenizer: str
    context: float | None
    data_hash: str
    failed: bool
    error: str
    seconds: float | None
    tokens: float | None
    probe: Mapping[str, Any]
    training_share: Row
    training_steps: float | None

    @classmethod
    def read(cls, index: int, data: Any) -> ModelValues:
        data = mapping(data)
        training = mapping(data.get("training_gradient"))
        return cls(
            index=index,
            name=text(data.get("name")) or f"model {index + 1}",
            path=text(data.get("path")),
            kind=text(data.get("kind")),
            tokenizer=text(data.get("tokenizer")),
            context=number(data.get("context")),
            data_hash=text(data.get("data_hash")),
            failed=text(data.get("status")) == "failed",
            error=text(data.get("error")),
            seconds=number(data.get("seconds")),
            tokens=number(data.get("tokens")),
            probe=mapping(data.get("probe")),
            training_share=row(training.get("share")),
            training_steps=number(training.get("steps")),
        )

    @property
    def entry(self) -> Entry:
        return Entry(index=self.index, name=self.name, drawn=not self.failed)

    @property
    def blocks(self) -> int:
        return int(self.number("model", "blocks") or 0)

    @property
    def sublayers(self) -> list[list[str]]:
        """The names of every block's sublayers."""
        return [[text(name) for name in items(names)] for names in items(self._at("model", "sublayers"))]

    def number(self, *path: str) -> float | None:
        """One number of the measurement."""
        return number(self._at(*path))

    def values(self, *path: str) -> Row:
        """A list of numbers; empty where it was not measured."""
        return row(self._at(*path))

    def matrix(self, *path: str) -> list[Row]:
        """A list of lists of numbers."""
        return rows(self._at(*path))

    def matrices(self, *path: str) -> list[list[Row]]:
        """A list of matrices."""
        return [rows(matrix) for matrix in items(self._at(*path))]

    def of_sublayer(self, name: str, *path: str) -> Row:
        """One number a block, of the sublayer of that name; None where a block has none."""
        measured = self.matrix(*path)
        found: Row = []
        for block, names in zip(measured, self.sublayers, strict=False):
            place = names.index(name) if name in names else None
            found.append(block[place] if place is not None and place < len(block) else None)
        return found

    def _at(self, *path: str) -> Any:
        value: Any = self.probe
        for key in path:
            value = mapping(value).get(key)
        return value


@dataclass(frozen=True, kw_only=True)
class ProbeValues:
    """The whole of results.json."""

    version: str
    command: str
    created: str
    seconds: float | None
    machine: Mapping[str, Any]
    data: Mapping[str, Any]
    settings: Mapping[str, Any]
    models: list[ModelValues]

    @classmethod
    def read(cls, results: Any) -> ProbeValues:
        results = mapping(results)
        return cls(
            version=text(results.get("leadline")),
            command=text(results.get("command")),
            created=text(results.get("created")),
            seconds=number(results.get("seconds")),
            machine=mapping(results.get("machine")),
            data=mapping(results.get("data")),
            settings=mapping(results.get("settings")),
            models=[ModelValues.read(i, model) for i, model in enumerate(items(results.get("models")))],
        )

    @property
    def measured(self) -> list[ModelValues]:
        """The models that have results."""
        return [model for model in self.models if not model.failed]

    @property
    def sublayers(self) -> list[str]:
        """The names of sublayers that occur, in the order in which they run."""
        return list(dict.fromkeys(name for model in self.measured for block in model.sublayers for name in block))


def growth(model: ModelValues) -> float | None:
    """How many times larger the last block's output is than that of block 2; block 1's jump is the embedding's."""
    values = model.values("activations", "blocks", "rms")
    first, last = (values[1], values[-1]) if len(values) > 2 else (None, None)
    return last / first if first and last is not None else None


def front_half(model: ModelValues) -> float | None:
    """The share of all blocks' ΔM that the first half of them has; falls of the loss count as zero."""
    values = model.values("ablation", "blocks", "nats")
    rises = [max(v, 0.0) for v in some(values)]
    if len(rises) < 2 or len(rises) < len(values) or not sum(rises):
        return None
    return sum(rises[: len(rises) // 2]) / sum(rises)


def least_needed(model: ModelValues) -> list[int]:
    """The blocks, from 0, in the order of what it costs to leave them out, cheapest first.

    By the ablation's ΔM, or by Block Influence where there was no ablation.
    """
    values = model.values("ablation", "blocks", "nats")
    if not some(values):
        values = model.values("similarity", "block_influence")
    present = [(value, block) for block, value in enumerate(values) if value is not None]
    return [block for _, block in sorted(present)]


def percent(values: Row) -> Row:
    """Shares as percentages."""
    return [None if value is None else 100 * value for value in values]
