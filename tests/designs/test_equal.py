"""Equal training FLOPs by tokens, depth or width."""

from __future__ import annotations

import dataclasses
import re

import pytest

from leadline.designs import ShapeConfig, Side, count_flops, count_parameters, resolve, solve
from leadline.designs.equal import RESIDUAL, WAYS, Balance, By, describe
from leadline.errors import UsageError
from leadline.report.words import percent

SHAPE = ShapeConfig(dim=96, blocks=15, heads=6, kv_heads=6, head_dim=16, hidden=256, context=128)
REFERENCE = Side(design=resolve("prenorm"), shape=SHAPE, tokens=512_000)


def solved(variant: str, by: By, reference: Side = REFERENCE) -> Balance:
    return solve(reference, resolve(variant), vocab_size=257, batch_tokens=1024, by=by)


def cost(side: Side) -> int:
    return count_flops(side.design.decoder(side.shape, 257)).training_total * side.tokens


@pytest.mark.parametrize(
    ("variant", "by"),
    [
        ("cascade-a2", "tokens"),
        ("cascade-a2", "width"),
        ("cascade-a2", "depth+tokens"),
        ("cascade-a2", "width+tokens"),
        ("cascade-af", "depth"),
        ("attnres", "tokens"),
        ("attnres", "width"),
        ("mgr(streams=8) + cascade-a1", "depth+tokens"),
    ],
)
def test_both_cost_the_same(variant: str, by: By) -> None:
    balance = solved(variant, by)
    found = balance.variant
    assert balance.residual == pytest.approx(cost(found) / cost(REFERENCE) - 1)
    assert abs(balance.residual) < RESIDUAL
    assert found.tokens % 1024 == 0
    changed = {
        "tokens": found.tokens != REFERENCE.tokens,
        "depth": found.shape.blocks != SHAPE.blocks,
        "width": found.shape.hidden != SHAPE.hidden,
    }
    assert {name for name, differs in changed.items() if differs} == set(by.split("+"))
    assert dataclasses.replace(found.shape, blocks=SHAPE.blocks, hidden=SHAPE.hidden) == SHAPE


def test_a_cheaper_variant_gets_more_and_a_dearer_one_less() -> None:
    assert solved("cascade-a2", "tokens").variant.tokens > 512_000 > solved("attnres", "tokens").variant.tokens
    assert solved("cascade-af", "depth").variant.shape.blocks > 15
    assert solved("attnres", "depth+tokens").variant.shape.blocks < 15
    assert solved("cascade-a2", "width").variant.shape.hidden > 256 > solved("attnres", "width").variant.shape.hidden


@pytest.mark.parametrize("by", WAYS)
def test_the_same_design_stays_as_it_is(by: By) -> None:
    balance = solved("prenorm", by)
    assert balance.variant == REFERENCE
    assert balance.residual == 0


def test_no_size_of_the_same_kind_is_nearer() -> None:
    """The whole neighbourhood, looked at one by one."""
    side = solved("cascade-af", "depth").variant
    near = [dataclasses.replace(side, shape=dataclasses.replace(SHAPE, blocks=blocks)) for blocks in range(1, 60)]
    assert min(near, key=lambda other: abs(cost(other) - cost(REFERENCE))) == side
    side = solved("attnres", "width").variant
    near = [dataclasses.replace(side, shape=dataclasses.replace(SHAPE, hidden=8 * n)) for n in range(1, 80)]
    assert min(near, key=lambda other: abs(cost(other) - cost(REFERENCE))) == side


def test_what_cannot_be_equal_is_an_error_that_names_what_can() -> None:
    with pytest.raises(UsageError, match=r"18 blocks, is \+1\.8\s% off.*--by tokens and --by depth\+tokens work"):
        solved("cascade-a2", "depth")
    with pytest.raises(UsageError, match="--by flops is not known; tokens, depth"):
        solved("cascade-a2", "flops")
    with pytest.raises(UsageError, match="at least 1"):
        solved("cascade-a2", "tokens", dataclasses.replace(REFERENCE, tokens=0))


@pytest.mark.parametrize("variant", ["cascade-a2", "mgr(streams=8)", "taper(heads=3, mlp=3)"])
def test_tokens_that_the_error_promises_are_enough(variant: str) -> None:
    """A dearer variant takes fewer steps than the reference, so it needs a longer one."""
    short = dataclasses.replace(REFERENCE, tokens=10 * 1024)
    with pytest.raises(
        UsageError, match=r"whole steps of 1024 tokens.*--tokens \d+ or more works, or a smaller"
    ) as error:
        solved(variant, "tokens", short)
    found = re.search(r"--tokens (\d+) or more", str(error.value))
    assert found is not None
    steps = -(-int(found[1]) // 1024)
    for more in range(12):
        solved(variant, "tokens", dataclasses.replace(REFERENCE, tokens=1024 * (steps + more)))


def test_ways_that_the_error_names_work() -> None:
    """With one step neither blocks nor tokens come near; 37 steps are too few for whole steps alone."""
    for steps, message in (
        (1, r"; --by depth\+tokens with --tokens (\d+) or more works"),
        (37, r"; --by depth\+tokens works"),
    ):
        short = dataclasses.replace(REFERENCE, tokens=1024 * steps)
        with pytest.raises(UsageError, match=message) as error:
            solved("cascade-a2", "depth", short)
        found = re.search(r"--tokens (\d+)", str(error.value))
        tokens = short.tokens if found is None else -(-int(found[1]) // 1024) * 1024
        solved("cascade-a2", "depth+tokens", dataclasses.replace(REFERENCE, tokens=tokens))


def test_both_models_are_described() -> None:
    balance = solved("cascade-a2", "tokens")
    reference, variant = balance.rows()
    assert reference["flops"] == cost(REFERENCE)
    assert variant["parameters"] == count_parameters(balance.variant.design.decoder(SHAPE, 257)).total
    text = describe(balance)
    for row in (reference, variant):
        assert all(f"{row[key]:,}" in text for key in ("flops_per_token", "tokens", "parameters"))
    assert f"{percent(balance.residual, 2, sign=True)} off" in text
