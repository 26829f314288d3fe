"""mHC and mHC-lite: golden values, the start, and the constraint that gives them their name."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leadline.connections import ManifoldHyperConnections
from leadline.errors import UsageError
from leadline.ops import Backend
from stacks import check_golden, close, fold, golden_cases

CASES = golden_cases("manifold_hyper_connections")


@pytest.mark.parametrize("backend", ["reference", "lean"])
@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_golden(case: dict[str, Any], backend: Backend) -> None:
    config = case["config"]
    options = {k: config[k] for k in ("streams", "mixing", "eps")}
    connection = ManifoldHyperConnections(**options, sinkhorn_iterations=config.get("sinkhorn_iterations", 20))
    mixes: list[Tensor] = []
    check_golden(case, connection, backend, lambda site, before, after: mixes.append(after.pending[0]))
    close(torch.stack(mixes), case["expected"]["mixes"])


@pytest.mark.parametrize("mixing", ["sinkhorn", "birkhoff"])
@pytest.mark.parametrize("streams", [1, 3, 4])
def test_start(mixing: Literal["sinkhorn", "birkhoff"], streams: int) -> None:
    depth = ManifoldHyperConnections(streams=streams, mixing=mixing).build(6, 6)
    for index, site in enumerate(depth.sites):
        home = torch.eye(streams)[index % streams]
        if mixing == "sinkhorn":
            torch.testing.assert_close(site.b_pre, 6 * home - 3)
            assert not site.b_post.any()
            torch.testing.assert_close(site.b_res, 6 * torch.eye(streams) - 3)
        else:
            torch.testing.assert_close(site.b_pre, 2 * home - 1)
            torch.testing.assert_close(site.b_post, 2 * home - 1)
            assert site.b_res.shape == (math.factorial(streams),)
            assert site.b_res[0] == 0
            assert (site.b_res[1:] == -8).all()
        assert not any(phi.any() for phi in (site.phi_pre, site.phi_post, site.phi_res))
        assert all(torch.equal(a, torch.tensor([0.01])) for a in (site.a_pre, site.a_post, site.a_res))
    mixing_at_start = depth.sites[0].inspect(depth.open(torch.randn(1, 6)))["mixing"][0]
    assert (mixing_at_start.diagonal() > 0.98).all()


@settings(max_examples=25)
@given(streams=st.integers(1, 5), sinkhorn=st.booleans(), seed=st.integers(0, 50), noise=st.floats(0, 2))
def test_every_mixing_is_doubly_stochastic(streams: int, sinkhorn: bool, seed: int, noise: float) -> None:
    connection = ManifoldHyperConnections(
        streams=streams, mixing="sinkhorn" if sinkhorn else "birkhoff", sinkhorn_iterations=300
    )
    depth = connection.build(6, 4, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in depth.parameters():
            p += noise * torch.randn(p.shape, generator=generator, dtype=p.dtype)
        layers = torch.randn(4, 6, 6, generator=generator, dtype=torch.float64)
        mixes: list[Tensor] = []
        x = torch.randn(3, 6, generator=generator, dtype=torch.float64)
        fold(depth, x, layers, watch=lambda site, before, after: mixes.append(after.pending[0]))
    for mixing in mixes:
        assert (mixing >= 0).all()
        torch.testing.assert_close(mixing.sum(-1), torch.ones_like(mixing[..., 0]), rtol=0, atol=1e-10)
        torch.testing.assert_close(
            mixing.sum(-2), torch.ones_like(mixing[..., 0]), rtol=0, atol=1e-2 if sinkhorn else 1e-10
        )


@pytest.mark.parametrize("mixing", ["sinkhorn", "birkhoff"])
def test_the_sum_of_the_streams_grows_by_what_is_written_only(mixing: Literal["sinkhorn", "birkhoff"]) -> None:
    depth = ManifoldHyperConnections(mixing=mixing).build(6, 4, dtype=torch.float64)
    x = torch.randn(3, 6, dtype=torch.float64)
    state = depth.open(x)
    for site in depth.sites:
        before = depth.readout(state)
        h, state = site.read(state)
        post = state.pending[1].sum(-1, keepdim=True)
        state = site.write(state, torch.tanh(h))
        torch.testing.assert_close(depth.readout(state), before + post * torch.tanh(h), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mixing", ["sinkhorn", "birkhoff"])
def test_the_mixing_matters_at_inner_sites_only(mixing: Literal["sinkhorn", "birkhoff"]) -> None:
    """Equal streams at the first site and a sum after the last hide M there: tests need four sites."""
    depth = ManifoldHyperConnections(streams=3, mixing=mixing, sinkhorn_iterations=100).build(6, 4, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    layers = torch.randn(4, 6, 6, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        for site in depth.sites:
            site.b_post.copy_(torch.randn(3, generator=generator, dtype=torch.float64))
    before, _ = fold(depth, x, layers)
    for index, site in enumerate(depth.sites):
        kept = site.b_res.detach().clone()
        with torch.no_grad():
            site.b_res.copy_(kept.flip(0))
        moved = (fold(depth, x, layers)[0] - before).abs().max()
        with torch.no_grad():
            site.b_res.copy_(kept)
        assert (moved > 1e-2) if index in (1, 2) else (moved < 1e-9)


def test_wrong_options() -> None:
    with pytest.raises(UsageError, match="streams=6 has 720 permutations; mixing='birkhoff' takes at most streams=5"):
        ManifoldHyperConnections(streams=6, mixing="birkhoff")
    ManifoldHyperConnections(streams=6)
    with pytest.raises(UsageError, match="sinkhorn and birkhoff work"):
        ManifoldHyperConnections(mixing="softmax")
    with pytest.raises(UsageError, match="sinkhorn_iterations=0"):
        ManifoldHyperConnections(sinkhorn_iterations=0)
    with pytest.raises(UsageError, match="streams=0"):
        ManifoldHyperConnections(streams=0)
