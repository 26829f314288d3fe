from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from leadline.errors import LeadlineError, UsageError
from leadline.experiments.compare.plan import (
    DesignPlan,
    Plan,
    check_out,
    keep_plan,
    parse_rates,
    parse_seeds,
    parse_sweep,
    split_outside,
)


def plan() -> Plan:
    names = {"prenorm": "prenorm", "mgr(streams=8, gate=independent)": "mgr-8"}
    designs = tuple(
        DesignPlan(name=n, slug=s, learning_rate=0.004, tokens=1000, flops_per_token=1e6) for n, s in names.items()
    )
    return Plan(
        designs=designs,
        baseline="prenorm",
        seeds=(0, 1),
        sweep_seed=2,
        data="sotu",
        data_hash="abc",
        preset="tiny",
        shape={},
        batch_size=8,
        context=128,
        flops=None,
        evaluations=5,
        evaluate_tokens=1024,
        measure_tokens=1024,
        removal_tokens=1024,
        precision="float32",
        backend="auto",
        device="cpu",
    )


def test_seeds() -> None:
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("0, 1,5") == (0, 1, 5)
    assert parse_seeds("7,") == (7,)


@pytest.mark.parametrize("text", ["0", "", ",", "1,1", "-1", "1,-2", "two", "1.5"])
def test_wrong_seeds(text: str) -> None:
    with pytest.raises(UsageError, match="--seeds"):
        parse_seeds(text)


def test_learning_rates() -> None:
    eight = "mgr(streams=8, gate=independent)"
    assert parse_rates(None, ["a"]) == {}
    assert parse_rates("4e-3", ["a", eight]) == {"a": 0.004, eight: 0.004}
    assert parse_rates(f"a=1e-3, {eight}=8e-3", ["a", eight]) == {"a": 0.001, eight: 0.008}
    assert parse_rates("a=1e-3", ["a", "b"]) == {"a": 0.001}


@pytest.mark.parametrize("text", ["nan", "0", "-1", "a=0", "a=x", "c=1", "1e-3,2e-3", "mgr(streams=8)"])
def test_wrong_learning_rates(text: str) -> None:
    with pytest.raises(UsageError, match="--lr"):
        parse_rates(text, ["a", "b"])


def test_sweeps() -> None:
    assert parse_sweep(None) is None
    assert parse_sweep([]) == ()
    assert parse_sweep(["8e-3,2e-3", "4e-3"]) == (0.002, 0.004, 0.008)
    with pytest.raises(UsageError, match="designs stand before --sweep-lr"):
        parse_sweep(["2e-3,4e-3", "prenorm"])
    for wrong in (["1e-3"], ["prenorm"], ["1e-3,0"]):
        with pytest.raises(UsageError, match="--sweep-lr"):
            parse_sweep(wrong)


def test_splitting() -> None:
    assert split_outside("a(b=1, c=2)=3, d") == ["a(b=1, c=2)=3", "d"]


def test_the_same_plan_continues_and_another_says_what_differs(tmp_path: Path) -> None:
    keep_plan(plan(), tmp_path)
    check_out(plan(), tmp_path)
    other = dataclasses.replace(plan(), seeds=(0, 1, 2), context=64)
    with pytest.raises(UsageError) as caught:
        check_out(other, tmp_path)
    assert "seeds is 0, 1 there and 0, 1, 2 here" in str(caught.value)
    assert "context is 128 there and 64 here" in str(caught.value)
    fewer = dataclasses.replace(plan(), designs=plan().designs[:1])
    with pytest.raises(UsageError, match=r"designs prenorm, mgr.* there, prenorm here"):
        check_out(fewer, tmp_path)
    first, second = plan().designs
    rate = dataclasses.replace(plan(), designs=(dataclasses.replace(first, learning_rate=0.1), second))
    with pytest.raises(UsageError, match=r"prenorm learning rate is 0\.004 there and 0\.1 here"):
        check_out(rate, tmp_path)


def test_a_broken_plan_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_text("{")
    with pytest.raises(LeadlineError, match=r"compare\.json is damaged.*give another --out"):
        check_out(plan(), tmp_path)
