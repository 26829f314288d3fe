"""A few hundred bytes of text, and runs so small that one takes a fraction of a second."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leadline.data import prepare
from leadline.training import RunConfig

SHAPE = {"blocks": 2, "dim": 8, "heads": 2, "kv_heads": 1, "head_dim": 4, "hidden": 12}
TIMES = ("tokens_per_second", "memory_bytes")

Config = Callable[..., RunConfig]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven windows of 16 tokens to train on, so that a run of more than three steps reaches the next epoch."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "0.txt").write_text("By the deep, six! By the mark, seven! And a half, eight! " * 2)
    (folder / "1.txt").write_text("And a quarter less nine! By the deep, ten! " * 2)
    prepare([folder], folder / "set", heldout_last=1)
    return folder / "set"


@pytest.fixture
def config(data: Path) -> Config:
    """`config(design, steps=6, **fields)`: two sequences of 16 tokens in a step."""

    def make(design: str = "prenorm", *, steps: int = 6, **fields: Any) -> RunConfig:
        shape = fields.pop("shape", SHAPE)
        chosen: dict[str, Any] = {"batch_size": 2, "context": 16, "lr": 0.01, **shape, **fields}
        tokens = steps * chosen["batch_size"] * chosen["context"]
        return RunConfig.of(design=design, data=str(data), tokens=tokens, **chosen)

    return make


@pytest.fixture
def lines() -> Callable[[Path], list[dict[str, Any]]]:
    """The records of a JSONL file, without what differs from one run to the next."""

    def read(path: Path) -> list[dict[str, Any]]:
        records = [json.loads(line) for line in path.read_text().splitlines()]
        return [{name: value for name, value in record.items() if name not in TIMES} for record in records]

    return read
