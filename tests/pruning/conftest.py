"""Toy stacks, small decoders, a few hundred bytes of text, and runs that take a fraction of a second."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from leadline.data import ByteTokenizer, prepare
from leadline.designs import preset_named, resolve
from leadline.models import Decoder
from leadline.training import RunConfig, train

SHAPE = {"blocks": 4, "dim": 8, "heads": 2, "kv_heads": 1, "head_dim": 4, "hidden": 12}

Trained = Callable[..., Path]


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of bytes with a hundred windows of 16 tokens."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "0.txt").write_text("By the deep, six! By the mark, seven! And a half, eight! " * 30)
    (folder / "1.txt").write_text("And a quarter less nine! By the deep, ten! " * 30)
    prepare([folder], folder / "set", heldout_last=1)
    return folder / "set"


@pytest.fixture(scope="session")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """`trained(design, seed=0)`: the folder of a run of 4 steps, made once."""
    made: dict[tuple[str, int], Path] = {}

    def run(design: str = "prenorm", seed: int = 0) -> Path:
        if (design, seed) not in made:
            out = tmp_path_factory.mktemp("runs") / "run"
            config = RunConfig.of(
                design=design,
                data=str(text),
                **SHAPE,
                batch_size=4,
                context=16,
                tokens=4 * 64,
                lr=0.02,
                evaluate_tokens=256,
                seed=seed,
            )
            train(config, out)
            made[design, seed] = out
        return made[design, seed]

    run.data = text
    return run


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`saved(design)`: the folder of a model whose parameters are all moved off their start, made once."""
    made: dict[str, Path] = {}

    def save(design: str) -> Path:
        if design not in made:
            shape = dataclasses.replace(preset_named("tiny").shape, context=16, **SHAPE)
            model = Decoder(resolve(design).decoder(shape, 256))
            generator = torch.Generator().manual_seed(5)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
            made[design] = tmp_path_factory.mktemp("models")
            model.save(made[design])
            ByteTokenizer().save(made[design])
        return made[design]

    return save
