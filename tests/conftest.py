"""The same random numbers in every run, alone or among others.

Each test starts from one seed. Hypothesis tries the same examples each time, and others with
`--hypothesis-profile=search`.
"""

from __future__ import annotations

import pytest
import torch
from compiled import backend_fixture
from hypothesis import settings

__all__ = ["backend_fixture"]

settings.register_profile("search", deadline=None)
settings.register_profile("leadline", derandomize=True, deadline=None)
settings.load_profile("leadline")


FIRST = ("test_triton_", "test_folded_norm", "test_compil", "test_compare.py", "test_next_norm", "test_recomputed")
"""Files that take minutes, with few tests. Begun last, as xdist would, one of two processes would wait for them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; `--no-loadscope-reorder` keeps this order."""
    items.sort(
        key=lambda item: next((i for i, name in enumerate(FIRST) if item.path.name.startswith(name)), len(FIRST))
    )


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)
