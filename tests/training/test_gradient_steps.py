"""Every step's gradient norms, and the share by each definition against the formula written out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from leadline.designs import ShapeConfig, resolve
from leadline.errors import LeadlineError, UsageError
from leadline.models import Decoder
from leadline.training import GradientShare, StepNorms, load_gradient, load_norms
from leadline.training.gradient_steps import DEFINITIONS, NORMS, shares

BLOCK = np.array([[8.0, 4.0, 4.0], [1.0, 2.0, 1.0], [np.nan, 3.0, 1.0], [1.0, 1.0, np.inf]], np.float32)


def norms() -> StepNorms:
    """Four steps of three blocks; block 0 has no gradient in the third, and the fourth is not finite."""
    total = np.sqrt(np.square(np.nan_to_num(BLOCK, posinf=np.inf)).sum(axis=1)).astype(np.float32)
    return StepNorms(np.arange(1, 5), total, BLOCK, np.repeat(BLOCK, 2, axis=1))


def shared(values: list[float]) -> list[float]:
    return [value / sum(values) for value in values]


def test_each_definition_is_its_formula() -> None:
    first, second, third = math.sqrt(96), math.sqrt(6), math.sqrt(10)
    expected = {
        "sum": [9.0, 9.0, 6.0],
        "clipped": [8 / first + 1 / second, 4 / first + 2 / second + 3 / third, 4 / first + 1 / second + 1 / third],
        "mean-of-shares": [8 / 16 + 1 / 4, 4 / 16 + 2 / 4 + 3 / 4, 4 / 16 + 1 / 4 + 1 / 4],
        "after-warmup": [1.0, 5.0, 2.0],
    }
    for definition in DEFINITIONS:
        found = shares(norms(), definition, clip=1.0, warmup=1)
        assert found == pytest.approx(shared(expected[definition]), rel=1e-6), definition


def test_clipping_changes_nothing_where_no_step_was_clipped() -> None:
    for clip in (None, 100.0):
        assert shares(norms(), "clipped", clip=clip) == shares(norms(), "sum")


def test_a_block_without_a_gradient_in_the_steps_that_count_has_none() -> None:
    alone = norms().between(3, 3)
    assert shares(alone, "sum") == [None, 0.75, 0.25]
    assert shares(norms(), "after-warmup", warmup=4) == [None, None, None]


def small() -> Decoder:
    shape = ShapeConfig(dim=8, blocks=3, heads=2, kv_heads=2, head_dim=4, hidden=12, context=16)
    return Decoder(resolve("prenorm").decoder(shape, vocab_size=11))


def step(model: Decoder, share: GradientShare, seed: int, without: str = "none") -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        gradient = torch.randn(parameter.shape, generator=generator)
        parameter.grad = None if name.startswith(without) else gradient
    share.add(share.measure())


def test_what_is_kept_is_what_was_measured(tmp_path: Path) -> None:
    model = small()
    share = GradientShare(model, clip=1.0, warmup=1, since=2)
    for seed, without in enumerate(("none", "blocks.1.", "none")):
        step(model, share, seed, without)
    last = [value for value in share.last if value is not None]
    share.save(tmp_path)
    kept, report = load_norms(tmp_path), load_gradient(tmp_path)
    assert kept.step.tolist() == [1, 2, 3]
    assert kept.block[2].tolist() == pytest.approx(last)
    assert np.isnan(kept.block[1]).tolist() == [False, True, False]
    assert np.isnan(kept.sublayer[1]).tolist() == [False, False, True, True, False, False]
    assert kept.total[2] == pytest.approx(float(share.measure().total()))
    assert report["definitions"]["block"]["sum"] == pytest.approx(report["share"], rel=1e-6)
    assert report["definitions"]["sublayer"]["sum"] == pytest.approx(report["sublayer_share"], rel=1e-6)
    counted = kept.between(2, 3)
    assert report["definitions"]["block"]["clipped"] == shares(counted, "clipped", clip=1.0)
    assert (report["clip"], report["warmup_steps"]) == (1.0, 1)


def test_a_run_that_goes_on_keeps_the_steps_before(tmp_path: Path) -> None:
    model = small()
    whole, first, second = (GradientShare(model, clip=1.0) for _ in range(3))
    for seed in range(4):
        step(model, whole, seed)
    for seed in range(2):
        step(model, first, seed)
    first.save(tmp_path)
    second.load(first.state(), load_norms(tmp_path))
    for seed in range(2, 4):
        step(model, second, seed)
    assert second.report() == whole.report()
    for kept, expected in zip(second.norms(), whole.norms(), strict=True):
        np.testing.assert_array_equal(kept, expected)


def test_without_the_steps_before_there_is_no_other_definition() -> None:
    model = small()
    first, second = GradientShare(model), GradientShare(model)
    step(model, first, 0)
    second.load(first.state())
    step(model, second, 1)
    assert second.report()["definitions"] == {"block": {}, "sublayer": {}}


def test_norms_of_another_model_are_refused() -> None:
    share = GradientShare(small())
    with pytest.raises(ValueError, match="of 2 blocks"):
        share.load(share.state(), norms()._replace(block=BLOCK[:, :2]))


def test_a_file_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leadline train"):
        load_norms(tmp_path)
    (tmp_path / NORMS).write_bytes(b"nothing")
    with pytest.raises(LeadlineError, match=NORMS):
        load_norms(tmp_path)
    norms()._replace(total=np.zeros(2, np.float32)).save(tmp_path)
    with pytest.raises(LeadlineError, match="do not fit"):
        load_norms(tmp_path)


def test_the_share_for_each_step_in_which_a_block_took_part() -> None:
    # Norms 5, 3 and 1 a step, the last in half of the steps.
    rows = np.array([[5, 3, 1], [5, 3, np.nan]] * 5, np.float32)
    kept = StepNorms(np.arange(1, 11), np.ones(10, np.float32), rows, rows)
    assert shares(kept, "sum") == pytest.approx([50 / 85, 30 / 85, 5 / 85])
    assert shares(kept, "sum", when_present=True) == pytest.approx([5 / 9, 3 / 9, 1 / 9])
