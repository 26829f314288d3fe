"""How many copies of the weights are in memory while a model is pruned: the whole one's, and the reloaded one's."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from leadline.data import ByteTokenizer
from leadline.designs import preset_named, resolve
from leadline.models import Decoder
from leadline.pruning import Amount, EvaluationSettings, PruneConfig, dataset_for, open_model, prune

SHAPE = {"blocks": 6, "dim": 64, "heads": 2, "kv_heads": 1, "head_dim": 32, "hidden": 512, "context": 16}
MOST = 2.2
"""Copies: the whole model, what is left of it once more, and a little."""


def hugging_face(folder: Path) -> None:
    tiny = pytest.importorskip("tiny_hub_models")
    config = tiny.CONFIGS["llama"](vocab_size=256, hidden_size=64, intermediate_size=512)
    tiny.build(config, dtype=torch.float32).save_pretrained(folder)


def leadline(folder: Path) -> None:
    shape = dataclasses.replace(preset_named("tiny").shape, **SHAPE)
    Decoder(resolve("prenorm").decoder(shape, 256)).save(folder)


@pytest.fixture(autouse=True)
def _frozen() -> Iterator[None]:
    """What other tests left is not looked at: in a long run that would take most of the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def living() -> int:
    """The bytes of all tensors that were made since `gc.freeze`, shared memory once."""
    storages = {}
    for found in gc.get_objects():
        if issubclass(type(found), Tensor) and found.device.type == "cpu":
            with contextlib.suppress(RuntimeError):  # tensors that tracing leaves behind have no storage
                storage = found.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


@pytest.mark.parametrize("make", [hugging_face, leadline])
@pytest.mark.parametrize("criterion", ["magnitude", "taylor"])
def test_two_models_are_in_memory_at_most(
    make: Callable[[Path], None], criterion: str, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    make(folder)
    ByteTokenizer().save(folder)
    seen: list[int] = []
    embedding = torch.nn.functional.embedding

    def watched(*args: Any, **more: Any) -> Tensor:
        seen.append(living())
        return embedding(*args, **more)

    opened = open_model(folder)
    weights = sum(p.nbytes for p in opened.stack.model.parameters())
    config = PruneConfig(
        criterion=criterion,
        amount=Amount(count=1),
        evaluation=EvaluationSettings(context=16, stride=16, tokens=16, batch_size=1),
        calibration_tokens=16,
    )
    data = dataset_for(opened, str(trained.data))
    # Every pass of every model begins with it: those that score, evaluate, and compare with what was reloaded.
    monkeypatch.setattr(torch.nn.functional, "embedding", watched)
    prune(opened, data, config, tmp_path / "out")
    assert weights < max(seen) < MOST * weights
    assert max(seen) > 1.8 * weights  # the reloaded model is among what is seen
