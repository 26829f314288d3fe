from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from leadline.errors import LeadlineError
from leadline.models import Decoder, RepeatConfig
from leadline.probes import bhyt, variance_order
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
    assert found["attention"]["lambda"] == pytest.approx([3, 7, 3])
    assert found["attention"]["ratio"] == pytest.approx([0.3, 0.7, 0.3])
    assert found["attention"]["below"] == [True, False, True]
    assert found["mlp"]["ratio"] == pytest.approx([0.3] * 3)
    moments = found["second_moment"]
    for block in range(3):
        assert moments["ratio_low"][block] <= moments["ratio"][block] <= moments["ratio_high"][block]
        assert 0.3 < moments["ratio"][block] < 3


def test_the_sign_of_lambda_makes_no_output_smaller(decoder: Toys, some_batches: list) -> None:
    model: Decoder = decoder("bhyt", blocks=2)
    with torch.no_grad():
        model.blocks[1].mlp_norm.lam.fill_(-9.0)
    assert bhyt(stack_of(model), some_batches)["mlp"]["below"] == [True, False]


def test_the_authors_first_setting_exceeds_the_bound_at_28_blocks(decoder: Toys, some_batches: list) -> None:
    found = bhyt(stack_of(decoder("bhyt(lambda_attention=2, lambda_mlp=1)", blocks=28)), some_batches[:1])
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
    assert aware - plain == pytest.approx(0.09 * (sum(1 / (t + 1) for t in range(8)) - 1), rel=1e-4)


def test_the_exact_form_has_ratios_but_no_moments(decoder: Toys, some_batches: list) -> None:
    for expression in ("bhyt-exact", "mgr + bhyt"):
        found = bhyt(stack_of(decoder(expression)), some_batches)
        assert found["attention"]["ratio"] == pytest.approx([0.3] * 3)
        assert found["second_moment"]["ratio"] == found["second_moment"]["exact"] == [None] * 3


def test_other_norms_are_none_and_the_model_is_left_alone(decoder: Toys, some_batches: list) -> None:
    assert bhyt(stack_of(decoder("prenorm")), some_batches) is None
    model = decoder("bhyt")
    plain = model(some_batches[0].tokens)
    bhyt(stack_of(model), some_batches)
    assert torch.equal(model(some_batches[0].tokens), plain)
    assert "reuse" not in model.blocks[0].mlp_norm.__dict__


def test_variances_of_known_streams(decoder: Toys, some_batches: list) -> None:
    """Entries of ±1 and sublayers that write nothing: LNS gives 1/l in block l, BHyT tanh²(λ/κ), and blocks leave 1."""
    found = {}
    for expression in ("lns", "bhyt(lambda_attention=4, lambda_mlp=6)"):
        model: Decoder = decoder(expression)
        with torch.no_grad():
            model.embed.weight.copy_(torch.tensor([1.0, -1.0]).repeat(model.embed.weight.shape[1] // 2))
            for block in model.blocks:
                block.attention.output.weight.zero_()
                block.mlp.down.weight.zero_()
        model.refresh_statistics()
        found[expression] = bhyt(stack_of(model), some_batches)
    scaled, bounded = found.values()
    assert scaled["variance"]["attention"] == pytest.approx([1, 1 / 2, 1 / 3], rel=1e-4)
    assert scaled["variance"]["mlp"] == pytest.approx([1, 1 / 2, 1 / 3], rel=1e-4)
    assert bounded["variance"]["attention"] == pytest.approx([math.tanh(0.4) ** 2] * 3, rel=1e-4)
    assert bounded["variance"]["mlp"] == pytest.approx([math.tanh(0.6) ** 2] * 3, rel=1e-4)
    assert bounded["variance"]["blocks"] == scaled["variance"]["blocks"] == pytest.approx([1] * 3)
    assert scaled["kappa"] is None
    assert scaled["attention"]["ratio"] == scaled["second_moment"]["ratio"] == [None] * 3
    order = variance_order(bounded, scaled)
    # λ/κ is 0.4 and 0.6 against 1/√3 = 0.577; tanh²(0.6) = 0.288 is still below 1/3.
    assert order == {
        "condition": False,
        "attention": [True] * 3,
        "mlp": [True] * 3,
        "blocks": [False] * 3,
    }


def test_the_order_needs_a_bounded_tanh_and_models_of_one_depth(decoder: Toys, some_batches: list) -> None:
    deep, scaled = (bhyt(stack_of(decoder(e, blocks=n)), some_batches) for e, n in (("bhyt", 4), ("lns", 3)))
    with pytest.raises(LeadlineError, match="no bounded tanh"):
        variance_order(scaled, scaled)
    with pytest.raises(LeadlineError, match="differ in depth"):
        variance_order(deep, scaled)
    assert variance_order(deep, deep)["condition"]


def test_repeated_blocks_have_variances_of_their_own(decoder: Toys, some_batches: list) -> None:
    model: Decoder = decoder("lns", blocks=2)
    repeated = Decoder(dataclasses.replace(model.config, repeat=RepeatConfig(last=1, times=2)), seed=0)
    once, twice = (bhyt(stack_of(m), some_batches)["variance"] for m in (model, repeated))
    for name in ("attention", "mlp", "blocks"):
        assert twice[name][:2] == pytest.approx(once[name])
        assert twice[name][2] != pytest.approx(twice[name][1], rel=1e-6)
