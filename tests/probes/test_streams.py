from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from toy_stack import ToyStack

from leadline.errors import LeadlineError
from leadline.probes import connection_shown, depth_weights, measure
from leadline.probes.streams import StreamRecord
from leadline.stacks import stack_of

Toys = Callable[..., Any]


def test_each_stream_is_compared_with_itself() -> None:
    """Two blocks of two sites: stream 0 turns by 90 degrees at block 1, stream 1 appears there and then stays."""
    east, north = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    record = StreamRecord(4, [0, 2])
    for _ in range(2):  # two batches of one token
        record._show(0, {"streams": torch.stack([east])})
        record._show(1, {"streams": torch.stack([100 * north])})  # no first site of a block
        record._show(2, {"streams": torch.stack([north, east])})
        record._show(4, {"streams": torch.stack([-east, 3 * east])})
        record.end_batch()
    first, second = record.stream_angles()
    assert first == [[0, 0.5, pytest.approx(1)], [0.5, 0, 0.5], [pytest.approx(1), 0.5, 0]]
    assert second == [[None, None, None], [None, 0, 0], [None, 0, 0]]


def test_angles_are_means_over_tokens() -> None:
    record = StreamRecord(1, [0])
    start = torch.tensor([[[1.0, 0.0]] * 4, [[1.0, 0.0]] * 4])
    end = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]] * 2)
    record._show(0, {"streams": start})
    record._show(1, {"streams": end})
    record.end_batch()
    assert record.stream_angles()[0][0][1] == pytest.approx(0.5 / 4)


@pytest.mark.parametrize("expression", ["prenorm", "attnres", "mgr-competitive(streams=2)", "hc", "mhc-lite"])
def test_a_decoder_shows_what_measure_shows(decoder: Toys, expression: str, some_batches: list) -> None:
    model = decoder(expression)
    found = connection_shown(stack_of(model), some_batches)
    whole = measure(model, some_batches)
    for name in ("gates", "mixing", "stream_diversity"):
        assert found[name] == whole[name]
    # What compare leaves out because gates tell more is shown here: the pool's weights over the live streams.
    weights = depth_weights(model, some_batches) if "mgr" in expression else whole["depth_weights"]
    assert found["depth_weights"] == weights
    angles = found["stream_angular_distance"]
    if expression in ("prenorm", "attnres"):
        assert angles is None
        return
    assert len(angles) == (2 if "mgr" in expression else 4)
    for stream, table in enumerate(angles):
        assert len(table) == len(table[0]) == 4
        there = [row for row in range(4) if table[row][row] is not None]
        # MGR's second stream is what the first sublayer gave, so it is not there before block 0.
        assert there == ([1, 2, 3] if "mgr" in expression and stream == 1 else [0, 1, 2, 3])
        assert all(0 <= table[i][j] <= 1 and table[i][j] == table[j][i] for i in there for j in there)
        assert all(math.isfinite(table[i][j]) for i in there for j in there)
        assert table[there[0]][there[-1]] > 0.01


def test_a_stack_without_sites_has_no_connection() -> None:
    with pytest.raises(LeadlineError, match="no connection sites"):
        connection_shown(ToyStack(torch.eye(2), [torch.eye(2)]), [])
