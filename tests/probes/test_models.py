"""The probes on real models of every kind of connection."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled import trace_bodies

from leadline.designs import PRESETS, resolve
from leadline.models import Decoder
from leadline.ops import use_backend
from leadline.probes import measure, record

DESIGNS = (
    "prenorm",
    "post-ln",
    "attnres",
    "attnres-block(blocks=2)",
    "mgr-competitive",
    "hc",
    "mhc",
    "mhc-lite",
    "bhyt",
)
BLOCKS = 3


def build(expression: str) -> Decoder:
    shape = dataclasses.replace(
        PRESETS["tiny"].shape, blocks=BLOCKS, dim=16, heads=2, kv_heads=2, head_dim=8, hidden=24, context=8
    )
    return Decoder(resolve(expression).decoder(shape, vocab_size=11), seed=0)


@pytest.fixture
def rows(batches: Callable[..., Any]) -> Any:
    generator = torch.Generator().manual_seed(0)
    return batches(*torch.randint(0, 11, (3, 8), generator=generator).tolist())


@pytest.mark.parametrize("expression", DESIGNS)
def test_every_design_can_be_measured(expression: str, rows: Any) -> None:
    model = build(expression)
    plain = model(rows[0].tokens)
    result = measure(model, rows, bytes_per_token=1.0)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert torch.equal(model(rows[0].tokens), plain)
    assert len(result["read_rms"]) == 2 * BLOCKS + 1
    assert len(result["output_rms"]) == 2 * BLOCKS
    assert len(result["removal"]) == len(result["block_output_rms"]) == BLOCKS
    assert all(value > 0 for value in (*result["read_rms"], *result["output_rms"]))
    assert any(abs(value) > 1e-5 for value in result["removal"])
    angles = torch.tensor(result["angular_distance"])
    assert torch.equal(angles, angles.T)
    assert angles.shape == (BLOCKS + 1, BLOCKS + 1)
    shown = {name for name in ("depth_weights", "gates", "stream_diversity", "mixing") if result[name] is not None}
    family = expression.partition("(")[0].split("-")[0]
    expected = {
        "attnres": {"depth_weights"},
        "mgr": {"gates", "stream_diversity"},
        "hc": {"stream_diversity", "mixing"},
        "mhc": {"stream_diversity", "mixing"},
    }
    assert shown == expected.get(family, set())


def test_weights_of_attention_residuals_at_the_start(rows: Any) -> None:
    """Zero queries weigh all sources alike."""
    weights = measure(build("attnres"), rows)["depth_weights"]
    assert [len(row) for row in weights] == list(range(1, 2 * BLOCKS + 2))
    for row in weights:
        assert row == pytest.approx([1 / len(row)] * len(row))


def test_gates_of_mgr_at_the_start(rows: Any) -> None:
    """The first three sublayers append; then gates, one per stream and all alike."""
    result = measure(build("mgr-competitive(gate_init=prenorm)"), rows)
    assert [len(row) for row in result["gates"]] == [0, 0, 0, 4, 4, 4]
    for index in (3, 4, 5):
        assert result["gates"][index] == pytest.approx([1 / (index + 2)] * 4)
    assert result["stream_diversity"][0] == 0


def test_removal_equals_cutting_the_block_out(rows: Any) -> None:
    model = build("prenorm")
    removed = measure(model, rows)["removal"][1]
    cut = dataclasses.replace(model.config, layers=(model.config.layers[0], model.config.layers[2]))
    small = Decoder(cut, seed=0)
    names = small.state_dict().keys()
    old = model.state_dict()
    small.load_state_dict({name: old[name.replace("blocks.1.", "blocks.2.")] for name in names})

    def bits(of: Decoder) -> float:
        with torch.no_grad():
            losses = [torch.nn.functional.cross_entropy(of(b.tokens).flatten(0, 1), b.targets.flatten()) for b in rows]
        return float(torch.stack(losses).mean() / torch.tensor(2.0).log())

    assert removed == pytest.approx(bits(small) - bits(model), abs=1e-5)


def test_recording_a_training_step_changes_nothing(rows: Any) -> None:
    for expression in ("prenorm", "attnres", "mgr-competitive"):
        gradients = []
        for recorded in (False, True):
            model = build(expression).train()
            model.recompute = recorded
            if recorded:
                with record(model, inspect=True) as depth:
                    model(rows[0].tokens).square().mean().backward()
                assert None not in depth.read_rms
            else:
                model(rows[0].tokens).square().mean().backward()
            gradients.append([p.grad for p in model.parameters() if p.grad is not None])
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


def test_a_read_that_takes_the_norm_over_is_seen_and_stays_as_it_is(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients to the bit, with a record and without; and the record is the one of the reference's plain reads."""
    model = build("mgr-competitive").train()
    trace_bodies(monkeypatch)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(rows[0].tokens).square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    with use_backend("compiled"):
        plain = gradients()
        with record(model) as depth:
            recorded = gradients()
    assert all(map(torch.equal, recorded, plain))
    with use_backend("reference"), record(model) as truth:
        gradients()
    assert depth.read_rms == pytest.approx(truth.read_rms, rel=1e-4)


def test_the_size_of_an_output_is_that_of_what_joins_the_stream(rows: Any) -> None:
    """ReZero's gains start at 0, so nothing joins."""
    model = build("rezero")
    assert measure(model, rows)["output_rms"] == [0.0] * (2 * BLOCKS)
    with torch.no_grad():
        for site in model.sites():
            site.branch_gain.fill_(0.5)
    halves = measure(model, rows)["output_rms"]
    for block in model.blocks:
        block.attn_site.branch_gain.data.fill_(1.0)
        break
    assert measure(model, rows)["output_rms"][0] == pytest.approx(2 * halves[0])
