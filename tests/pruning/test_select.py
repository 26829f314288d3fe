"""How many, and which: counts, ratios, ranges with both ends, protected ends, shared blocks."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from toy_stack import ToyStack

from leadline.designs import preset_named, resolve
from leadline.errors import UsageError
from leadline.models import Decoder
from leadline.models.config import RepeatConfig
from leadline.pruning.criteria import ScoringInputs, rank
from leadline.pruning.select import (
    Amount,
    candidates,
    explicit,
    free_units,
    lowest,
    lowest_window,
    number_to_cut,
    parse_blocks,
)
from leadline.stacks import Stack, Unit, stack_of


def own(blocks: int = 20, sublayers: int = 1) -> ToyStack:
    return ToyStack(torch.eye(2), [torch.eye(2).clone() for _ in range(blocks * sublayers)], sublayers)


def named(text: str, toy: Stack, kind: str = "block") -> list[str]:
    return [str(unit) for unit in parse_blocks(text, toy, candidates(toy, kind))]


def test_ranges_hold_both_ends() -> None:
    assert named("8..16", own()) == [str(i) for i in range(8, 17)]
    assert named("3,5,8..10", own()) == ["3", "5", "8", "9", "10"]
    assert named("19, 0", own()) == ["0", "19"]
    assert named("4..4", own()) == ["4"]


def test_sublayers() -> None:
    toy = own(4, 2)
    assert named("3.mlp,1.attention", toy, "sublayer") == ["1.attention", "3.mlp"]
    assert named("1..2", toy, "sublayer") == ["1.attention", "1.mlp", "2.attention", "2.mlp"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("20", "has 20, and this model has blocks 0 to 19"),
        ("8..20", r"8\.\.20, and this model has blocks 0 to 19"),
        ("10..8", r"10\.\.8, which runs backwards; 8\.\.10 works"),
        ("3,3", "names block 3 twice"),
        ("2..4,3", "names block 3 twice"),
        ("3-5", "blocks are numbers from 0, and ranges hold both ends"),
        ("", "blocks are numbers from 0"),
        ("-1", "blocks are numbers from 0"),
        ("3.mlp", "needs --unit sublayer"),
    ],
)
def test_lists_that_do_not_work(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        named(text, own())


def test_a_sublayer_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"no sublayer 1\.attention; block 1 has mlp"):
        named("1.attention", own(4), "sublayer")


@pytest.mark.parametrize(
    ("ratio", "units", "count"),
    [
        *[(0.25, 24, 6), (0.1, 24, 2), (0.1, 25, 3), (0.5, 5, 3), (0.3, 30, 9), (0.0, 24, 0), (0.96, 24, 23)],
        # Halves, which as floats are a little less.
        *[(0.58, 25, 15), (0.7, 45, 32), (0.29, 50, 15), (0.35, 90, 32), (1e-05, 50000, 1)],
    ],
)
def test_a_ratio_is_rounded_to_the_nearest(ratio: float, units: int, count: int) -> None:
    assert number_to_cut(Amount(ratio=ratio), units, units, "block") == count


@pytest.mark.parametrize(
    ("amount", "message"),
    [
        ({"ratio": 0.01}, r"--ratio 0\.01 of 24 blocks is none; 0\.042 is one of them"),
        ({"ratio": 0.99}, r"is 24 of 24 blocks, which leaves nothing; --ratio 0\.83 is 20, the most"),
        ({"ratio": 0.9}, r"leave 20 to choose from; --ratio 0\.83 is 20, the most"),
        ({"count": 24}, "leaves nothing; 20 is the most"),
        ({"count": 99}, "leaves nothing; 20 is the most"),
        ({"count": 21, "protect_first": 2, "protect_last": 2}, "--protect-first 2 and --protect-last 2 leave 20"),
    ],
)
def test_more_than_there_is(amount: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        number_to_cut(Amount(**amount), 24, 20, "block")


@pytest.mark.parametrize("units", [2, 3, 4, 24, 101, 1000])
def test_the_ratio_that_is_named_works(units: int) -> None:
    with pytest.raises(UsageError, match="leaves nothing") as error:
        number_to_cut(Amount(ratio=0.9999), units, units, "block", "--sweep")
    named = re.search(r"--sweep (\S+) is \d+, the most", str(error.value))
    assert named is not None
    assert number_to_cut(Amount(ratio=float(named[1])), units, units, "block") == units - 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing says how much to cut; give one of --ratio"),
        ({"ratio": 0.1, "count": 2}, "--ratio and --count are given; give one"),
        ({"ratio": 1.0}, "--ratio 1 is out of range"),
        ({"ratio": -0.1}, "--ratio -0.1 is out of range"),
        ({"ratio": float("nan")}, "--ratio nan is out of range"),
        ({"count": -1}, "--count -1 is negative"),
        ({"count": 1, "protect_last": -2}, "--protect-last -2 is negative"),
    ],
)
def test_amounts_that_say_nothing(options: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Amount(**options)


def test_protected_ends() -> None:
    toy = own(6)
    free = free_units(candidates(toy, "block"), 6, Amount(count=1, protect_first=1, protect_last=2))
    assert free == [Unit(1), Unit(2), Unit(3)]
    with pytest.raises(UsageError, match="protect all of 6 blocks; together 5 is the most"):
        free_units(candidates(toy, "block"), 6, Amount(count=1, protect_first=3, protect_last=3))
    with pytest.raises(UsageError, match="--blocks names 0, which --protect-first or --protect-last protects"):
        explicit(Amount(blocks="0,2", protect_first=1), toy, candidates(toy, "block"))


def test_sublayers_that_cannot_be_told_apart() -> None:
    toy = own(3)
    toy.sublayers = ((),) * 3
    with pytest.raises(UsageError, match=r"--unit sublayer: .* can't be told apart; --unit block works"):
        candidates(toy, "sublayer")


def test_all_blocks_by_name() -> None:
    toy = own(3)
    with pytest.raises(UsageError, match=r"--blocks 0\.\.2 names every block, which leaves nothing"):
        explicit(Amount(blocks="0..2"), toy, candidates(toy, "block"))


def test_the_lowest_go_and_of_equals_the_deeper() -> None:
    units = [Unit(i) for i in range(5)]
    assert lowest(units, [3.0, 1.0, 1.0, 2.0, 1.0], units, 2) == [Unit(2), Unit(4)]
    assert lowest(units, [3.0, 1.0, 1.0, 2.0, 1.0], units[:4], 2) == [Unit(1), Unit(2)]
    assert lowest(units, [3.0, 1.0, 1.0, 2.0, 1.0], units, 0) == []


def test_the_lowest_window() -> None:
    units = [Unit(i) for i in range(5)]
    assert lowest_window([0.3, 0.1, 0.1, 0.2], 2, units) == [Unit(2), Unit(3)]
    assert lowest_window([0.3, 0.1, 0.1, 0.2], 2, units[:3]) == [Unit(1), Unit(2)]


def repeated() -> Stack:
    """Layers 0 1 2 1 2."""
    shape = dataclasses.replace(preset_named("tiny").shape, blocks=3, dim=8, heads=2, kv_heads=1, head_dim=4, hidden=12)
    config = resolve("prenorm").decoder(shape, 32)
    return stack_of(Decoder(dataclasses.replace(config, repeat=RepeatConfig(last=2, times=2))))


def test_a_shared_block_counts_once() -> None:
    found = repeated()
    assert found.blocks == 5
    once = candidates(found, "block")
    assert once.units == [Unit(0), Unit(1), Unit(2)]
    assert once.runs[Unit(1)] == (Unit(1), Unit(3))
    assert once.expand([Unit(1)]) == [Unit(1), Unit(3)]
    assert named("3", found) == ["1"]
    with pytest.raises(UsageError, match="names every block"):
        explicit(Amount(blocks="0,1,4"), found, once)
    # The last run is protected, so the block is.
    assert free_units(once, 5, Amount(count=1, protect_last=1)) == [Unit(0), Unit(1)]
    sizes = [sum(p.abs().sum().item() for p in found.parameters_of(Unit(b)).values()) for b in range(3)]
    assert rank("magnitude", "block", ScoringInputs(stack=found)).scores == pytest.approx(sizes, rel=1e-4)
    with pytest.raises(UsageError, match="needs blocks that run once in a pass"):
        rank("angular", "block", ScoringInputs(stack=found))


def test_sharing_that_nobody_knows_of() -> None:
    shared = torch.nn.Parameter(torch.eye(2))
    with pytest.raises(UsageError, match="block 1 has no parameters of its own"):
        candidates(ToyStack(torch.eye(2), [shared, shared]), "block")
