from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from leadline.models import Decoder
from leadline.probes import bhyt
from leadline.probes.watch import Watcher, watch
from leadline.stacks import stack_of

Toys = Callable[..., Any]


def test_bounds_and_moments_of_a_decoder(decoder: Toys, some_batches: list) -> None:
    model: Decoder = decoder("bhyt", blocks=3)
    with torch.no_grad():
        model.blocks[1].attention_norm.lam.fill_(7.0)
    found = bhyt(stack_of(model), some_batches)
    assert found["kappa"] == pytest.approx(10)
    assert found["bound"] == pytest.approx(1 / math.sqrt(3))
    assert found["attention"]["lambda"] == pytest.approx([2, 7, 2])
    assert found["attention"]["ratio"] == pytest.approx([0.2, 0.7, 0.2])
    assert found["attention"]["below"] == [True, False, True]
    assert found["mlp"]["ratio"] == pytest.approx([0.1] * 3)
    moments = found["second_moment"]
    for block in range(3):
        assert moments["ratio_low"][block] <= moments["ratio"][block] <= moments["ratio_high"][block]
        assert 0.3 < moments["ratio"][block] < 3


def test_the_sign_of_lambda_makes_no_output_smaller(decoder: Toys, some_batches: list) -> None:
    model: Decoder = decoder("bhyt", blocks=2)
    with torch.no_grad():
        model.blocks[1].mlp_norm.lam.fill_(-9.0)
    assert bhyt(stack_of(model), some_batches)["mlp"]["below"] == [True, False]


def test_the_authors_setting_exceeds_the_bound_at_28_blocks(decoder: Toys, some_batches: list) -> None:
    found = bhyt(stack_of(decoder("bhyt", blocks=28)), some_batches[:1])
    assert found["attention"]["below"] == [False] * 28
    assert found["mlp"]["below"] == [True] * 28


def test_moments_by_hand(decoder: Toys, some_batches: list) -> None:
    """The stream before and after attention, from sites; c and λ set to known values."""
    model: Decoder = decoder("bhyt", blocks=1)
    block = model.blocks[0]
    with torch.no_grad():
        block.mlp_norm.c.fill_(3.0)
        block.attention_norm.lam.fill_(4.0)
    reads: list[torch.Tensor] = []

    class Reads(Watcher):
        def on_read(self, index: int, site: object, state: object, read: torch.Tensor) -> None:
            reads.append(read.square().mean(-1))

    with watch(model, Reads()), torch.no_grad():
        model(some_batches[0].tokens)
    found = bhyt(stack_of(model), some_batches[:1])["second_moment"]
    approximate = reads[0] + 3.0 * 16 / 100
    assert found["approximate"] == pytest.approx([float(approximate.mean())], rel=1e-5)
    assert found["exact"] == pytest.approx([float(reads[1].mean())], rel=1e-5)
    assert found["ratio"] == pytest.approx([float((approximate / reads[1]).mean())], rel=1e-5)
    assert found["ratio_high"] == pytest.approx([float((approximate / reads[1]).max())], rel=1e-5)


def test_the_position_aware_constant(decoder: Toys, some_batches: list) -> None:
    model: Decoder = decoder("bhyt(position_aware=true)", blocks=1)
    norm = model.blocks[0].mlp_norm
    with torch.no_grad():
        norm.c.fill_(1.0)
        norm.length.fill_(8)
    aware = bhyt(stack_of(model), some_batches[:1])["second_moment"]["approximate"][0]
    norm.position_aware = False
    plain = bhyt(stack_of(model), some_batches[:1])["second_moment"]["approximate"][0]
    # λ²/κ² c (T mean 1/(t+1) − 1) over 8 positions, T = 8.
    assert aware - plain == pytest.approx(0.04 * (sum(1 / (t + 1) for t in range(8)) - 1), rel=1e-4)


def test_the_exact_form_has_ratios_but_no_moments(decoder: Toys, some_batches: list) -> None:
    for expression in ("bhyt-exact", "mgr + bhyt"):
        found = bhyt(stack_of(decoder(expression)), some_batches)
        assert found["attention"]["ratio"] == pytest.approx([0.2] * 3)
        assert found["second_moment"]["ratio"] == found["second_moment"]["exact"] == [None] * 3


def test_other_norms_are_none_and_the_model_is_left_alone(decoder: Toys, some_batches: list) -> None:
    assert bhyt(stack_of(decoder("prenorm")), some_batches) is None
    model = decoder("bhyt")
    plain = model(some_batches[0].tokens)
    bhyt(stack_of(model), some_batches)
    assert torch.equal(model(some_batches[0].tokens), plain)
    assert "reuse" not in model.blocks[0].mlp_norm.__dict__
