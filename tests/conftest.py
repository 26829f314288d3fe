"""The same random numbers in every run, alone or among others.

Each test starts from one seed. Hypothesis tries the same examples each time, and others with
`--hypothesis-profile=search`.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("search", deadline=None)
settings.register_profile("leadline", derandomize=True, deadline=None)
settings.load_profile("leadline")


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)
