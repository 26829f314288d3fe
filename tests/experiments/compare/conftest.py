from __future__ import annotations

import random

import pytest

from leadline.data import DataSet, prepare

TEXT = "the depth of a line is what the lead finds when the rope runs out and no more can be let down"


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """Some 60 kB of made-up text as bytes."""
    folder = tmp_path_factory.mktemp("data")
    generator = random.Random(0)
    text = folder / "text.txt"
    text.write_text("\n".join(" ".join(generator.choices(TEXT.split(), k=12)) for _ in range(1200)), encoding="utf-8")
    prepare(text, folder / "set", heldout=0.2)
    return DataSet.open(folder / "set")
