"""Where Multi-Gate Residuals start: the paper's gates, PreNorm's, and depths at which a start does not exist."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from leadline.connections import MultiGate
from leadline.connections.multi_gate import paper_gate_bias, prenorm_gate_bias
from leadline.errors import UsageError
from leadline.ops import Backend, use_backend
from stacks import DIM, inputs

TABLES = json.loads((Path(__file__).parents[1] / "golden" / "tables.json").read_text())
BACKENDS: tuple[Backend, ...] = ("reference", "lean")
GATES: tuple[Literal["competitive", "independent"], ...] = ("competitive", "independent")

each_gate = pytest.mark.parametrize("gate", GATES)


def prenorm(streams: int, gate: Literal["competitive", "independent"]) -> MultiGate:
    return MultiGate(streams=streams, gate=gate, gate_init="prenorm")


def test_scales_and_queries_at_the_start() -> None:
    depth = MultiGate(streams=3).build(DIM, 7)
    for index, site in enumerate(depth.sites):
        assert site.scale == pytest.approx(1 / (index + 1))
        assert all(not p.any() for name, p in site.named_parameters() if name != "gate_bias")
        assert site.gate_bias is None or site.gate_bias.shape == (1,)
    assert depth.readout.scale == pytest.approx(1 / 8)
    assert not depth.readout.pool_query.any()


@pytest.mark.parametrize("row", TABLES["gate_bias"], ids=lambda r: f"{r['model']}-{r['streams']}")
def test_paper_gate_biases(row: dict[str, Any]) -> None:
    for gate in GATES:
        assert paper_gate_bias(row["streams"], gate, row["sublayers"]) == pytest.approx(row[gate], abs=1e-9)
        depth = MultiGate(streams=row["streams"], gate=gate).build(2, row["sublayers"], dtype=torch.float64)
        biases = [site.gate_bias.item() for site in depth.sites if site.gate_bias is not None]
        assert len(biases) == row["gated_sublayers"]
        assert biases == pytest.approx([row[gate]] * len(biases), abs=1e-9)


@pytest.mark.parametrize("row", TABLES["prenorm_gate_bias_by_site"], ids=lambda r: str(r["streams"]))
def test_prenorm_gate_biases(row: dict[str, Any]) -> None:
    for gate in GATES:
        depth = prenorm(row["streams"], gate).build(2, len(row[gate]), dtype=torch.float64)
        for index, (site, expected) in enumerate(zip(depth.sites, row[gate], strict=True)):
            if expected is None:
                assert site.gate_bias is None
            else:
                assert site.gate_bias.item() == pytest.approx(expected, abs=1e-9)
                assert prenorm_gate_bias(row["streams"], gate, index) == pytest.approx(expected, abs=1e-9)


@each_gate
@pytest.mark.parametrize(("streams", "sublayers"), [(1, 24), (2, 24), (4, 48), (8, 24)])
def test_gates_start_small_with_the_papers_start(
    streams: int, sublayers: int, gate: Literal["competitive", "independent"]
) -> None:
    """The sign trap: the printed (competitive) formula in a sigmoid would start at 0.94."""
    target = 1 / (1 + math.exp(3)) * math.sqrt(21 / (sublayers - streams + 1))
    depth = MultiGate(streams=streams, gate=gate).build(DIM, sublayers, dtype=torch.float64)
    x, layers = inputs(sublayers)
    state, gated = depth.open(x), 0
    for site, layer in zip(depth.sites, layers, strict=True):
        h, state = site.read(state)
        if state.gates:
            gated += 1
            torch.testing.assert_close(state.gates[0], torch.full_like(state.gates[0], target), rtol=1e-12, atol=0)
        state = site.write(state, torch.tanh(h @ layer))
    assert gated == sublayers - streams + 1


@settings(max_examples=30)
@given(
    streams=st.integers(1, 6),
    sublayers=st.integers(1, 14),
    seed=st.integers(0, 99),
    gate=st.sampled_from(GATES),
    backend=st.sampled_from(BACKENDS),
)
def test_the_prenorm_start_equals_prenorm_with_distinct_streams(
    streams: int, sublayers: int, seed: int, gate: Literal["competitive", "independent"], backend: Backend
) -> None:
    """Exactly, with `eps · scale²` in the norms that read, even for an eps of 0.1."""
    assume(sublayers >= streams)
    x, layers = inputs(sublayers, seed)
    depth = prenorm(streams, gate).build(DIM, sublayers, dtype=torch.float64)

    def normed(x: Tensor, scale: float) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 0.1 * scale**2)

    with use_backend(backend):
        state, stream = depth.open(x), x
        for site, layer in zip(depth.sites, layers, strict=True):
            h, state = site.read(state)
            torch.testing.assert_close(normed(h, site.scale), normed(stream, 1.0), rtol=1e-12, atol=1e-12)
            state = site.write(state, torch.tanh(normed(h, site.scale) @ layer))
            stream = stream + torch.tanh(normed(stream, 1.0) @ layer)
        out = depth.readout(state)
    torch.testing.assert_close(normed(out, depth.readout.scale), normed(stream, 1.0), rtol=1e-12, atol=1e-12)
    shown = depth.readout.inspect(state)["streams"]
    assert len(shown) == streams
    for i in range(streams):
        assert all((shown[i] - shown[j]).norm() > 1e-3 * shown[i].norm() for j in range(i))


def test_too_few_sublayers_to_gate_warn() -> None:
    with pytest.warns(UserWarning, match="streams=8 needs at least 8 sublayers to gate; this model has 6"):
        depth = MultiGate(streams=8).build(DIM, 6, dtype=torch.float64)
    assert not any("gate" in name for name, _ in depth.named_parameters())
    x, layers = inputs(6)
    state, sources = depth.open(x), [x]
    for site, layer in zip(depth.sites, layers, strict=True):
        h, state = site.read(state)
        torch.testing.assert_close(h, torch.stack(sources).mean(0), rtol=1e-12, atol=1e-12)
        sources.append(torch.tanh(h @ layer))
        state = site.write(state, sources[-1])
    torch.testing.assert_close(depth.readout(state), torch.stack(sources).mean(0), rtol=1e-12, atol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MultiGate(streams=6, gate="independent").build(DIM, 6)


@each_gate
@pytest.mark.parametrize("streams", [1, 2, 4, 6, 8, 12, 22, 30])
def test_a_start_that_does_not_exist_names_the_smallest_depth_that_works(
    streams: int, gate: Literal["competitive", "independent"]
) -> None:
    floor = streams if gate == "competitive" else 1
    smallest = next(g for g in range(1, 60) if math.sqrt(g / 21) * (math.exp(3) + 1) > floor) + streams - 1
    config = MultiGate(streams=streams, gate=gate)
    config.build(2, smallest, device="meta")
    for sublayers in range(streams, smallest):
        words = f"streams={streams} .* at {sublayers} sublayers.*at least {smallest} sublayers work"
        with pytest.raises(UsageError, match=words):
            config.build(2, sublayers, device="meta")
    prenorm(streams, gate).build(2, streams, device="meta")


def test_the_specs_example_of_a_start_that_does_not_exist() -> None:
    with pytest.raises(
        UsageError, match=r"streams=8 with gate=competitive .* 10 sublayers.*at least 11 sublayers work"
    ):
        MultiGate(streams=8).build(DIM, 10)
    MultiGate(streams=8).build(DIM, 11)
