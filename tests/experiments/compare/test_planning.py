from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from leadline.data import DataSet
from leadline.designs import count_flops, preset_named, reshaped, resolve, settings
from leadline.errors import UsageError
from leadline.experiments.compare import DEMO, Wish, make_plan
from leadline.experiments.compare.planning import shape_of, untuned_rates

SMALL = Wish(designs=("prenorm", "attnres"), blocks=2, dim=24, context=16, batch_size=4, steps=5)


def test_the_defaults_are_the_demo(dataset: DataSet) -> None:
    plan = make_plan(Wish(data=str(dataset.folder)), dataset)
    preset = preset_named("tiny")
    assert [design.name for design in plan.designs] == list(DEMO)
    assert plan.baseline == "prenorm"
    assert plan.seeds == (0, 1, 2)
    assert plan.sweep_seed == 3
    assert {design.tokens for design in plan.designs} == {preset.tokens}
    assert plan.batch_tokens == preset.batch_tokens
    assert plan.shape == {}
    assert plan.designs[2].learning_rate == settings(resolve("attnres-block"), preset).learning_rate
    assert len({design.slug for design in plan.designs}) == 9


def test_equal_flops_give_costly_designs_fewer_tokens(dataset: DataSet) -> None:
    flops = 4e9
    plan = make_plan(replace(SMALL, steps=None, flops=flops), dataset)
    plain, routed = plan.designs
    assert routed.tokens < plain.tokens
    for design in plan.designs:
        used = design.tokens * design.flops_per_token
        assert flops - plan.batch_tokens * design.flops_per_token <= used <= flops
    config = resolve("attnres").decoder(shape_of(preset_named("tiny"), SMALL), dataset.vocab_size)
    assert routed.flops_per_token == count_flops(config).training_total


def test_a_shape_of_ones_own(dataset: DataSet) -> None:
    plan = make_plan(SMALL, dataset)
    assert plan.shape == {"blocks": 2, "dim": 24, "heads": 1, "kv_heads": 1, "hidden": 64}
    assert plan.context == 16
    odd = shape_of(preset_named("tiny"), replace(SMALL, dim=32))
    assert (odd.heads, odd.head_dim) == (1, 32)
    grouped = shape_of(preset_named("374M"), Wish(dim=512))
    assert (grouped.heads, grouped.kv_heads, grouped.hidden) == (8, 2, 2048)
    # What `leadline designs --dim` counts is what a comparison trains.
    assert grouped == reshaped(preset_named("374M").shape, dim=512)


def test_rates_that_were_not_tuned_at_the_size_are_said(dataset: DataSet) -> None:
    lines = untuned_rates(make_plan(replace(SMALL, designs=("prenorm", "hc")), dataset))
    assert [line.partition(":")[0] for line in lines] == ["prenorm", "hc"]
    assert all("not tuned at this size" in line for line in lines)
    assert untuned_rates(make_plan(Wish(designs=("prenorm", "hc"), data=str(dataset.folder)), dataset)) == []
    assert untuned_rates(make_plan(replace(SMALL, rates="1e-5"), dataset)) == []
    assert untuned_rates(make_plan(replace(SMALL, sweep=()), dataset)) == []


def test_baselines(dataset: DataSet) -> None:
    first = make_plan(replace(SMALL, designs=("lns", "attnres")), dataset)
    assert first.baseline == "lns"
    added = make_plan(replace(SMALL, designs=("lns",), baseline="attnres"), dataset)
    assert [design.name for design in added.designs] == ["attnres", "lns"]


def test_learning_rates_and_sweeps(dataset: DataSet) -> None:
    given = make_plan(replace(SMALL, rates="attnres=1e-3"), dataset)
    assert given.designs[1].learning_rate == 0.001
    assert given.designs[1].sweep == ()
    own = make_plan(replace(SMALL, sweep=()), dataset).designs[0]
    assert own.sweep == tuple(own.learning_rate * factor for factor in (0.5, 1, 2))
    grid = make_plan(replace(SMALL, sweep=("1e-3,2e-3",)), dataset)
    assert all(design.sweep == (0.001, 0.002) for design in grid.designs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"designs": ("prenrom",)}, "Did you mean prenorm"),
        ({"designs": ("prenorm", " prenorm ")}, "named twice"),
        ({"baseline": "nothing"}, "not known"),
        ({"preset": "huge"}, "preset 'huge'"),
        ({"tokens": 1000}, "--tokens and --steps both set the budget"),
        ({"steps": None, "tokens": 10}, "--tokens 10 is less than one step, which has 64 tokens"),
        ({"steps": None, "flops": 10.0}, "does not buy one step"),
        ({"seeds": "0"}, "--seeds"),
        ({"rates": "lns=1e-3"}, "--lr names 'lns'"),
        ({"sweep": ("1e-3",)}, "--sweep-lr"),
        ({"dim": 7}, "--dim 7"),
        ({"blocks": 0}, "--blocks 0"),
        ({"batch_size": 0}, "--batch-size 0"),
        ({"evaluations": 0}, "--evaluations 0"),
        ({"context": 10**7}, "too short for one sequence"),
        ({"backend": "compiled", "device": "cuda:0"}, "--backend compiled can't run here"),
    ],
)
def test_wrong_wishes(dataset: DataSet, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_plan(replace(SMALL, **change), dataset)
