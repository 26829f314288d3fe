"""results.json of a probe as the report needs it: typed, and None wherever a value is missing.

leadline, command, created, seconds, machine
data       name, hash, heldout_tokens
settings   tokens, context, batch_size, parts, seed, device, dtype
models     one object each:
    name, path, kind, tokenizer, context, vocab_size
    status             "ok" or "failed"; error says why
    seconds            how long it was measured
    tokens, batches    of text that were there to measure on
    probe              what `leadline.probes.measure_stack` returns
    training_gradient  steps and share of the run's gradient.json, None for other models
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leadline.probes.paired import Bounds
from leadline.report.pictures import Entry, Row
from leadline.report.reading import items, mapping, number, row, rows, some, text


@dataclass(frozen=True, kw_only=True)
class ModelValues:
    """One model that was probed; a path such as `values("lens", "kl")` leads to a list of the measurement."""

    index: int
    name: str
    path: str
    kind: str
    tokenizer: str
    context: float | None
    vocab_size: float | None
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
            vocab_size=number(data.get("vocab_size")),
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

    def bounds(self, *path: str) -> Bounds:
        """A value within its interval."""
        return Bounds(*(self.number(*path, key) for key in ("value", "low", "high")))

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


def growth(model: ModelValues) -> Bounds:
    """How many times larger the last block's output is than that of block 1; block 0's jump is the embedding's."""
    return model.bounds("activations", "growth")


def first_half(model: ModelValues) -> Bounds:
    """What the first half of the blocks makes up of all blocks' ΔM."""
    return model.bounds("ablation", "first_half")


def least(model: ModelValues, criterion: str) -> list[int]:
    """The blocks that the criterion finds least important and can't tell apart; all of them where it tells none.

    Args:
        criterion: "ablation", "similarity" (Block Influence) or "gradient" (the share over training, where the run
            has recorded it: a record of the run, so there is no doubt about the lowest; else that on this text).
    """
    shares = some(model.training_share)
    if criterion == "gradient" and shares:
        return [block for block, share in enumerate(model.training_share) if share == min(shares)]
    return [block for block, (low, _) in enumerate(places(model, criterion)) if low == 1]


def most(model: ModelValues, criterion: str) -> list[int]:
    """The blocks that the criterion, "ablation" or "similarity", finds most important and can't tell apart."""
    found = places(model, criterion)
    return [block for block, (_, high) in enumerate(found) if high == len(found)]


def places(model: ModelValues, criterion: str) -> list[tuple[float | None, float | None]]:
    """Between which places each block stands, 1 being the least important; empty where that wasn't measured."""
    path = {"ablation": ("ablation", "blocks"), "similarity": ("similarity",), "gradient": ("gradients", "blocks")}
    low, high = (model.values(*path[criterion], key) for key in ("place_low", "place_high"))
    return list(zip(low, high, strict=False))


def percent(values: Row) -> Row:
    """Shares as percentages."""
    return [None if value is None else 100 * value for value in values]
