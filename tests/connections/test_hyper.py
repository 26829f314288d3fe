"""Hyper-Connections: golden values, the start, and what other code gets wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from leadline.connections import Connection, HyperConnections, ManifoldHyperConnections
from leadline.errors import UsageError
from leadline.ops import Backend
from stacks import check_golden, fold, golden_cases, inputs

CASES = golden_cases("hyper_connections")
FAMILY = (
    HyperConnections(streams=3),
    ManifoldHyperConnections(streams=3),
    ManifoldHyperConnections(streams=3, mixing="birkhoff"),
)


@pytest.mark.parametrize("backend", ["reference", "lean"])
@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_golden(case: dict[str, Any], backend: Backend) -> None:
    config = case["config"]
    check_golden(case, HyperConnections(streams=config["streams"], eps=config["eps"]), backend)


@pytest.mark.parametrize("streams", [1, 2, 4, 5])
def test_start(streams: int) -> None:
    depth = HyperConnections(streams=streams).build(6, 7)
    for index, site in enumerate(depth.sites):
        assert torch.equal(site.pre, torch.eye(streams)[index % streams])
        assert torch.equal(site.res, torch.eye(streams))
        assert torch.equal(site.post, torch.ones(streams))
        assert not any(w.any() for w in (site.w_pre, site.w_res, site.w_post))
        assert all(torch.equal(s, torch.tensor([0.01])) for s in (site.s_pre, site.s_res, site.s_post))
        assert site.scale == 1.0
    assert depth.readout.scale == streams


each_of_the_family = pytest.mark.parametrize("connection", FAMILY, ids=lambda c: getattr(c, "mixing", "hyper"))


def static_mixing(site: torch.nn.Module) -> torch.nn.Parameter:
    parameter = getattr(site, "res", None)
    return site.b_res if parameter is None else parameter


@each_of_the_family
def test_the_mixing_is_applied(connection: Connection) -> None:
    """Public ports computed M and did not use it. Where streams differ, moving M must move the result."""
    x, layers = inputs(4)
    depth = connection.build(6, 4, dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for site in depth.sites:
            post = site.post if isinstance(connection, HyperConnections) else site.b_post
            post += torch.randn(3, generator=generator, dtype=torch.float64)
    before, _ = fold(depth, x, layers)
    with torch.no_grad():
        static = static_mixing(depth.sites[2])
        static.copy_(static.flip(0))
    after, _ = fold(depth, x, layers)
    assert (after - before).abs().max() > 1e-2
    mixing = depth.sites[2].inspect(depth.open(x))["mixing"]
    assert mixing[0, 0].argmax(-1).tolist() == [2, 1, 0]


@each_of_the_family
def test_the_mixing_learns_from_its_start(connection: Connection) -> None:
    """Public ports have a start that M never leaves.

    mHC starts with equal streams, so its M has no gradient in the very first step; `post` then sets the streams apart.
    """
    x, layers = inputs(6)
    target = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    depth = connection.build(6, 6, dtype=torch.float64)
    start = [site.inspect(depth.open(x))["mixing"] for site in depth.sites]
    optimiser = torch.optim.Adam(depth.parameters(), lr=0.02)
    for step in range(60):
        optimiser.zero_grad()
        (fold(depth, x, layers)[0] - target).square().mean().backward()
        if step == 0 and getattr(connection, "mixing", None) != "sinkhorn":
            assert all(static_mixing(site).grad.abs().max() > 1e-7 for site in list(depth.sites)[1:-1])
        optimiser.step()
    for site, before in list(zip(depth.sites, start, strict=True))[1:-1]:
        dynamic = site.w_res if isinstance(connection, HyperConnections) else site.phi_res
        assert dynamic.grad.abs().max() > 1e-7
        assert (site.inspect(depth.open(x))["mixing"] - before).abs().max() > 1e-4


@each_of_the_family
def test_the_streams_are_never_promoted(connection: Connection) -> None:
    """bf16 streams stay bf16, also in what the backward pass keeps; only numbers of the coefficients' size are wide."""
    depth = connection.build(32, 4)
    x = torch.randn(11, 32, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        state = depth.open(x)
        for site in depth.sites:
            h, state = site.read(state)
            assert state.streams.dtype == h.dtype == torch.bfloat16
            assert all(c.dtype == torch.float32 for c in state.pending)
            state = site.write(state, h * 0.5)
            assert state.streams.dtype == torch.bfloat16
        out = depth.readout(state)
    assert out.dtype == torch.bfloat16
    parameters = {p.data_ptr() for p in depth.parameters()}
    tokens_wide = [t for t in kept if t.dtype == torch.float32 and t.numel() >= 11 * 32 and 11 in t.shape]
    assert not [t.shape for t in tokens_wide if t.data_ptr() not in parameters]


@pytest.mark.parametrize("connection", [HyperConnections, ManifoldHyperConnections])
@pytest.mark.parametrize("streams", [1, 2, 3, 5, 6, 9])
def test_any_number_of_streams(connection: type[Connection], streams: int) -> None:
    depth = connection(streams=streams).build(6, 3)
    x = torch.randn(2, 6, requires_grad=True)
    out, _ = fold(depth, x, torch.randn(3, 6, 6))
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in depth.parameters())
    shown = depth.sites[0].inspect(depth.open(x))
    assert shown["weights"].shape == shown["gates"].shape == (2, streams)
    assert shown["mixing"].shape == (2, streams, streams)
    assert shown["streams"].shape == (streams, 2, 6)


def test_streams_less_than_one_are_an_error() -> None:
    with pytest.raises(UsageError, match="streams=0 must be at least 1"):
        HyperConnections(streams=0)


def test_a_write_without_its_read_is_an_error() -> None:
    depth = HyperConnections().build(6, 2)
    x = torch.randn(2, 6)
    with pytest.raises(UsageError, match="the state that this site's read returned"):
        depth.sites[0].write(depth.open(x), x)


def test_skip_and_readout_after_a_read_leave_the_sublayer_out() -> None:
    depth = HyperConnections(streams=2).build(6, 2)
    before = depth.open(torch.randn(2, 6))
    _, after = depth.sites[0].read(before)
    assert torch.equal(depth.readout(after), depth.readout(before))
    skipped = depth.sites[0].skip(after)
    assert skipped.pending == ()
    assert torch.equal(skipped.streams, before.streams)


def test_a_hop_between_read_and_write() -> None:
    depth = HyperConnections(streams=2).build(6, 2)
    h, state = depth.sites[0].read(depth.open(torch.randn(2, 6)))
    again = depth.unpack(depth.pack(state), depth.sites[0])
    expected, found = depth.sites[0].write(state, h), depth.sites[0].write(again, h)
    assert torch.equal(expected.streams, found.streams)
