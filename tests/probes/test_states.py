from __future__ import annotations

import pytest
import torch

from leadline.probes.passes import angles, cosines


@pytest.mark.parametrize("size", [1e-40, 1e-3, 1.0, 1e40])
def test_size_changes_no_angle(size: float) -> None:
    """Two states of one token, 45 degrees apart, in float64."""
    states = size * torch.tensor([[[1.0, 0.0]], [[1.0, 1.0]]], dtype=torch.float64)
    found = angles(cosines(states))[0]
    assert found.flatten().tolist() == pytest.approx([0, 0.25, 0.25, 0], abs=1e-12)
