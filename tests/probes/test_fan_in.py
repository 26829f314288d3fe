from __future__ import annotations

import json
from pathlib import Path

import pytest

from leadline.errors import UsageError
from leadline.probes import fan_in, repeat_last

TABLE = json.loads((Path(__file__).parents[1] / "golden" / "tables.json").read_text())["fan_in"]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row["layers"]))
def test_golden_values(row: dict) -> None:
    blocks = row["layers"]
    assert fan_in(blocks) == row["plain"]
    assert fan_in(blocks, exit_weights=[1.0] * blocks) == row["all_exits"]
    for case in row["repeat_last"]:
        assert fan_in(blocks, order=repeat_last(blocks, case["last"], case["times"])) == case["phi"]


def test_weighted_exits_by_hand() -> None:
    # Block 0 reaches exit 0 by one path and exit 2 by three; block 1 reaches exit 2 by two.
    assert fan_in(3, exit_weights=[0.5, 0.0, 2.0]) == [0.5 + 6.0, 4.0, 2.0]


def test_once_is_plain() -> None:
    assert repeat_last(3, last=2, times=1) == [0, 1, 2]
    assert repeat_last(3, last=0, times=5) == [0, 1, 2]
    assert fan_in(0) == []


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(UsageError, match="block 3; blocks 0 to 2"):
        fan_in(3, order=[0, 3])
    with pytest.raises(UsageError, match="each of the 3 places"):
        fan_in(3, exit_weights=[1.0])
    with pytest.raises(UsageError, match="last=4"):
        repeat_last(3, last=4, times=2)
    with pytest.raises(UsageError, match="times=0"):
        repeat_last(3, last=1, times=0)
