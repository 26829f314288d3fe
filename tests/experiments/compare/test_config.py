"""The designs, sizes, budgets and rates that follow from what a comparison is asked to be."""

from __future__ import annotations

from typing import Any

import pytest

from leadline.data import DataSet
from leadline.designs import count_flops, preset_named, reshaped, resolve, settings
from leadline.errors import UsageError
from leadline.experiments.compare.arms import DEMO, untuned_rates
from leadline.experiments.compare.config import CompareConfig
from leadline.experiments.compare.experiment import Compare
from leadline.training.config import Model
from leadline.training.resolve import shape_of

SMALL = CompareConfig(designs=("prenorm", "attnres")).replaced(blocks=2, dim=24, context=16, batch_size=4, steps=5)


def test_the_defaults_are_the_demo(dataset: DataSet) -> None:
    plan = Compare(CompareConfig(), dataset)
    preset = preset_named("tiny")
    assert [arm.name for arm in plan.arms] == list(DEMO)
    assert plan.baseline == "prenorm"
    assert plan.seeds == (0, 1, 2)
    assert plan.sweep_seed == 3
    assert {arm.tokens for arm in plan.arms} == {preset.tokens}
    assert plan.budget.batch_tokens == preset.batch_tokens
    assert plan.config.model.shape == {}
    assert plan.arms[2].learning_rate == settings(resolve("attnres-block"), preset).learning_rate
    assert len({arm.slug for arm in plan.arms}) == 9


def test_equal_flops_give_costly_designs_fewer_tokens(dataset: DataSet) -> None:
    flops = 4 * 10**9
    plan = Compare(SMALL.replaced(steps=None, flops=flops), dataset)
    plain, routed = plan.arms
    assert routed.tokens < plain.tokens
    for arm in plan.arms:
        used = arm.tokens * arm.flops_per_token
        assert flops - plan.budget.batch_tokens * arm.flops_per_token <= used <= flops
        assert arm.config.data.tokens == arm.tokens
    model = resolve("attnres").decoder(plan.budget.shape, dataset.vocab_size)
    assert routed.flops_per_token == count_flops(model).training_total


def test_a_shape_of_ones_own(dataset: DataSet) -> None:
    plan = Compare(SMALL, dataset)
    shape = {"blocks": 2, "dim": 24, "heads": 1, "kv_heads": 1, "head_dim": 24, "hidden": 64}
    assert plan.config.model.shape == shape
    assert plan.budget.context == 16
    odd = shape_of(Model(dim=32))
    assert (odd.heads, odd.head_dim) == (1, 32)
    grouped = shape_of(Model(preset="374M", dim=512))
    assert (grouped.heads, grouped.kv_heads, grouped.hidden) == (8, 2, 2048)
    # What `leadline designs --dim` counts is what a comparison trains.
    assert grouped == reshaped(preset_named("374M").shape, dim=512)


def test_rates_that_were_not_tuned_at_the_size_are_said(dataset: DataSet) -> None:
    def lines(config: CompareConfig) -> list[str]:
        plan = Compare(config, dataset)
        return untuned_rates(plan.budget, plan.arms)

    found = lines(SMALL.replaced(designs=("prenorm", "hc")))
    assert [line.partition(":")[0] for line in found] == ["prenorm", "hc"]
    assert all("not tuned at this size" in line for line in found)
    assert lines(CompareConfig(designs=("prenorm", "hc"))) == []
    assert lines(SMALL.replaced(lr=1e-5)) == []
    assert lines(SMALL.replaced(sweep_lr=())) == []


def test_baselines(dataset: DataSet) -> None:
    assert Compare(SMALL.replaced(designs=("lns", "attnres")), dataset).baseline == "lns"
    added = Compare(SMALL.replaced(designs=("lns",), baseline="attnres"), dataset)
    assert [arm.name for arm in added.arms] == ["attnres", "lns"]


def test_learning_rates_and_sweeps(dataset: DataSet) -> None:
    given = Compare(SMALL.replaced(rates="attnres=1e-3", lr=2e-3), dataset)
    assert [arm.learning_rate for arm in given.arms] == [0.002, 0.001]
    assert [arm.config.optimizer.lr for arm in given.arms] == [0.002, 0.001]
    assert given.arms[1].sweep == ()
    own = Compare(SMALL.replaced(sweep_lr=()), dataset).arms[0]
    assert own.sweep == tuple(own.learning_rate * factor for factor in (0.5, 1, 2))
    grid = Compare(SMALL.replaced(sweep_lr=("1e-3,2e-3",)), dataset)
    assert all(arm.sweep == (0.001, 0.002) for arm in grid.arms)


def test_every_option_of_a_run_reaches_it(dataset: DataSet) -> None:
    """An experiment has all options of training, declared once."""
    plan = Compare(SMALL.replaced(weight_decay=0.3, schedule="wsd", clip=None, evaluate_every=2), dataset)
    run = plan.arms[0].config
    assert (run.optimizer.weight_decay, run.schedule.schedule, run.optimizer.clip) == (0.3, "wsd", None)
    assert (run.logging.evaluate_every, run.checkpoints.checkpoint_every) == (2, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"designs": ("prenrom",)}, "Did you mean prenorm"),
        ({"designs": ("prenorm", " prenorm ")}, "named twice"),
        ({"baseline": "nothing"}, "not known"),
        ({"preset": "huge"}, "preset 'huge'"),
        ({"tokens": 1000}, "tokens=1000 and steps=5 both say how long to train"),
        ({"flops": 10**9}, "--flops and --tokens both set the budget"),
        ({"steps": None, "flops": 10}, "does not buy one step"),
        ({"seeds": "0"}, "--seeds"),
        ({"rates": "lns=1e-3"}, "--rates names 'lns'"),
        ({"sweep_lr": ("1e-3",)}, "--sweep-lr"),
        ({"sweep_lr": ("1e-3,2e-3",), "lr": 1e-3}, "--lr and --rates do nothing beside --sweep-lr"),
        ({"dim": 7}, "dim=7"),
        ({"blocks": 0}, "blocks=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"evaluations": 0}, "evaluations=0"),
        ({"jobs": 0}, "jobs=0"),
        ({"speed_rounds": -1}, "speed_rounds=-1"),
        ({"context": 10**7}, "too short for one sequence"),
        ({"backend": "compiled", "device": "meta"}, "--device meta"),
        ({"recompute": True}, "'recompute' is not an option"),
    ],
)
def test_what_does_not_work_is_named(dataset: DataSet, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Compare(SMALL.replaced(**change), dataset)
