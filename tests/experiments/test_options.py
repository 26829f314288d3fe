"""How seeds, rates and lists of designs are written, and the command that repeats an experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from leadline.errors import UsageError
from leadline.experiments.compare.config import CompareConfig
from leadline.experiments.options import parse_rates, parse_seeds, parse_sweep, split_outside
from leadline.repeating import repeating


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
    with pytest.raises(UsageError, match="--rates"):
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


def test_the_command_that_repeats_it() -> None:
    given = CompareConfig(
        designs=("prenorm", "mgr(streams=8)"), seeds="2", sweep_lr=("1e-3,2e-3",), out=Path("runs/my run")
    ).replaced(tokens=1_200_000, batch_size=7, clip=None, evaluate_tokens=32_768, decay_embeddings=True)
    assert repeating(["compare", *given.designs], given, without=("designs",)) == (
        "leadline compare prenorm 'mgr(streams=8)' --tokens 1.2M --batch-size 7 --decay-embeddings --clip None "
        "--seeds 2 --sweep-lr 1e-3,2e-3 --out 'runs/my run'"
    )
