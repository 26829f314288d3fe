"""Multi-Gate Residuals: golden values, accumulation, removal, bounds, and what goes wrong in other code."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from leadline.connections import Depth, MultiGate, Site, State
from leadline.errors import UsageError
from leadline.ops import Backend, use_backend
from stacks import DIM, check_golden, close, fold, golden_cases, inputs, moved

CASES = golden_cases("multi_gate")
BACKENDS: tuple[Backend, ...] = ("reference", "lean")
GATES: tuple[Literal["competitive", "independent"], ...] = ("competitive", "independent")
EPS = 1e-6

both = pytest.mark.parametrize("backend", BACKENDS)
each_gate = pytest.mark.parametrize("gate", GATES)


def prenorm(streams: int, gate: Literal["competitive", "independent"]) -> MultiGate:
    return MultiGate(streams=streams, gate=gate, gate_init="prenorm")


def written_out(depth: Depth, x: Tensor, layers: Tensor, config: MultiGate, skip: Collection[int] = ()) -> Tensor:
    """The paper's equations on a list of streams, every write at once."""
    streams = [x]

    def pooled(query: Tensor | None) -> Tensor:
        if len(streams) == 1:
            return streams[0]
        assert query is not None
        scores = torch.stack([(query * rms(s)).sum(-1).div(DIM**0.5).exp() for s in streams])
        weights = (scores / scores.sum(0)).unsqueeze(-1)
        return (weights * torch.stack(streams)).sum(0)

    for index, (site, layer) in enumerate(zip(depth.sites, layers, strict=True)):
        if index in skip:
            continue
        output = torch.tanh(pooled(site.pool_query) @ layer)
        if len(streams) < config.streams:
            streams.append(output)
            continue
        z = torch.stack([(site.gate_query * rms(s)).sum(-1) / DIM**0.5 for s in streams])
        if config.gate == "independent":
            gates = 1 / (1 + (-z - site.gate_bias).exp())
        else:
            gates = z.exp() / (site.gate_bias.exp() + z.exp().sum(0))
        streams = [s * (1 - g.unsqueeze(-1)) + g.unsqueeze(-1) * output for s, g in zip(streams, gates, strict=True)]
    return pooled(depth.readout.pool_query)


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


@both
@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_golden(case: dict[str, Any], backend: Backend) -> None:
    config = case["config"]
    gates: list[Tensor] = []

    def watch(site: Site, before: State, after: State) -> None:
        if after.gates:
            gates.append(after.gates[0].movedim(0, -1))
            shown = site.inspect(before)["gates"]
            torch.testing.assert_close(shown, gates[-1].detach().float(), rtol=1e-6, atol=1e-6)

    connection = MultiGate(streams=config["streams"], gate=config["gate"], eps=config["eps"])
    check_golden(case, connection, backend, watch)
    close(torch.stack(gates), case["expected"]["gates"])


@both
@each_gate
@pytest.mark.parametrize(
    "skip", [(), (0,), (1,), (2, 3), (0, 1, 2), (5, 6, 7), (1, 3, 5), (1, 2, 3, 4, 5, 6), range(8)]
)
@pytest.mark.parametrize("streams", [1, 2, 3, 6])
def test_the_equations_with_anything_skipped(
    streams: int, skip: Collection[int], gate: Literal["competitive", "independent"], backend: Backend
) -> None:
    """Streams are appended by count: a gated site that meets fewer than n of them appends."""
    x, layers = inputs(8)
    config = prenorm(streams, gate)
    depth = moved(config, 8)
    with use_backend(backend):
        found, _ = fold(depth, x, layers, skip)
    torch.testing.assert_close(found, written_out(depth, x, layers, config, skip), rtol=1e-11, atol=1e-11)


@each_gate
def test_gradients_with_something_skipped(gate: Literal["competitive", "independent"]) -> None:
    x, layers = inputs(8)
    config = prenorm(3, gate)
    depth = moved(config, 8)
    wanted = [x.requires_grad_(), *depth.parameters()]
    for skip in ((), (1,), (4, 5)):
        truth = torch.autograd.grad(
            written_out(depth, x, layers, config, skip).square().sum(), wanted, materialize_grads=True
        )
        found = torch.autograd.grad(fold(depth, x, layers, skip)[0].square().sum(), wanted, materialize_grads=True)
        torch.testing.assert_close(found, truth, rtol=1e-10, atol=1e-10)


def test_a_gated_site_that_meets_too_few_streams_leaves_its_gate_unused() -> None:
    x, layers = inputs(4)
    depth = moved(prenorm(3, "competitive"), 4)
    fold(depth, x, layers, skip={0})[0].sum().backward()
    assert depth.sites[2].gate_query.grad is None
    assert depth.sites[2].gate_bias.grad is None
    assert depth.sites[3].gate_query.grad.any()


def test_streams_accumulate_first_and_never_are_copies() -> None:
    """Copies of the embedding would have equal scores, gates and gradients for ever."""
    x, layers = inputs(8)
    depth = moved(MultiGate(streams=4), 8)
    state, outputs = depth.open(x), []
    for count, (site, layer) in enumerate(zip(depth.sites, layers, strict=True)):
        if count < 3:
            assert len(state.live) == count + 1
            assert not state.streams
            assert all(a is b or torch.equal(a, b) for a, b in zip(state.live, [x, *outputs], strict=True))
            assert site.gate_query is site.gate_bias is None
        else:
            assert not state.live
            assert state.streams[0].shape == (4, *x.shape)
        if count == 3:
            assert torch.equal(state.streams[0], torch.stack([x, *outputs]))
        h, state = site.read(state)
        outputs.append(torch.tanh(h @ layer))
        state = site.write(state, outputs[-1])
    streams = depth.readout.inspect(state)["streams"]
    for i in range(4):
        for j in range(i):
            assert (streams[i] - streams[j]).norm() > 0.05 * streams[i].norm()


def test_while_streams_accumulate_nothing_is_copied() -> None:
    depth = MultiGate(streams=4).build(DIM, 8)
    state = depth.open(torch.randn(5, DIM))
    for site in list(depth.sites)[:2]:
        before = [s.data_ptr() for s in state.live]
        h, state = site.read(state)
        output = h * 0.5
        state = site.write(state, output)
        assert [s.data_ptr() for s in state.live] == [*before, output.data_ptr()]


def test_each_sublayer_has_its_own_parameters_and_only_those_it_uses() -> None:
    depth = MultiGate(streams=4).build(DIM, 8)
    for index, site in enumerate(depth.sites):
        names = {name for name, _ in site.named_parameters()}
        pool, gate = ["pool_query"] * (index >= 1), ["gate_query", "gate_bias"] * (index >= 3)
        assert names == {*pool, *gate}
    single = MultiGate(streams=1).build(DIM, 3)
    assert {name for name, _ in single.named_parameters()} == {
        f"sites.{i}.{name}" for i in range(3) for name in ("gate_query", "gate_bias")
    }


@settings(max_examples=30)
@given(
    streams=st.integers(1, 5),
    sublayers=st.integers(1, 10),
    growth=st.floats(0.1, 100),
    seed=st.integers(0, 99),
    gate=st.sampled_from(GATES),
    backend=st.sampled_from(BACKENDS),
)
def test_norms_are_bounded(
    streams: int,
    sublayers: int,
    growth: float,
    seed: int,
    gate: Literal["competitive", "independent"],
    backend: Backend,
) -> None:
    """No read is longer than the longest of the embedding and the outputs so far, whatever the parameters."""
    assume(sublayers >= streams)
    x, layers = inputs(sublayers, seed)
    depth = moved(prenorm(streams, gate), sublayers, seed)
    with use_backend(backend), torch.no_grad():
        state, bound = depth.open(x), x.norm(dim=-1)
        for site, layer in zip(depth.sites, layers, strict=True):
            h, state = site.read(state)
            assert (h.norm(dim=-1) <= bound * (1 + 1e-12)).all()
            output = growth * torch.tanh(h @ layer)
            bound = torch.maximum(bound, output.norm(dim=-1))
            state = site.write(state, output)
        assert (depth.readout(state).norm(dim=-1) <= bound * (1 + 1e-12)).all()


def test_removal_skips_the_write_and_is_not_an_output_of_zero() -> None:
    x, layers = inputs(8)
    depth = moved(MultiGate(streams=2), 8)
    state = depth.open(x)
    for site, layer in list(zip(depth.sites, layers, strict=True))[:5]:
        h, state = site.read(state)
        state = site.write(state, torch.tanh(h @ layer))
    before = depth.readout.inspect(state)["streams"]
    removed = depth.readout.inspect(depth.sites[5].skip(state))["streams"]
    h, after = depth.sites[5].read(state)
    zeroed = depth.readout.inspect(depth.sites[5].write(after, torch.zeros_like(h)))["streams"]
    assert torch.equal(removed, before)
    assert (zeroed.norm(dim=-1) < before.norm(dim=-1)).all()


def test_a_pending_write_stays_pending_when_a_sublayer_is_skipped() -> None:
    x, _ = inputs(3)
    depth = moved(MultiGate(streams=1), 3)
    h, state = depth.sites[0].read(depth.open(x))
    state = depth.sites[0].write(state, h)
    assert depth.sites[1].skip(state) is state
    assert state.pending is not None
    h, flushed = depth.sites[2].read(depth.sites[1].skip(state))
    assert flushed.pending is None


def test_a_state_is_tensors_and_tuples_of_them() -> None:
    depth = MultiGate(streams=2).build(DIM, 4)
    state = depth.open(torch.ones(3, DIM))
    for site in depth.sites:
        h, state = site.read(state)
        for value in (*state, *(site.write(state, h))):
            assert all(isinstance(t, Tensor) for t in value)
        state = site.write(state, h)


def test_packing_flushes_and_gives_the_streams() -> None:
    x, layers = inputs(8)
    depth = moved(MultiGate(streams=3), 8)
    state = depth.open(x)
    for count, (site, layer) in enumerate(zip(depth.sites, layers, strict=True)):
        packed = depth.pack(state)
        assert [t.shape for t in packed] == [x.shape] * min(count + 1, 3)
        again = depth.unpack(packed, site)
        torch.testing.assert_close(depth.readout(again), depth.readout(state), rtol=1e-12, atol=1e-12)
        h, state = site.read(state)
        state = site.write(state, torch.tanh(h @ layer))


def test_the_readout_has_its_own_query_and_reads_the_last_output() -> None:
    x, layers = inputs(5)
    depth = moved(MultiGate(streams=3), 5)
    state = depth.open(x)
    for site, layer in zip(depth.sites, layers, strict=True):
        h, state = site.read(state)
        output = torch.tanh(h @ layer).detach().requires_grad_()
        state = site.write(state, output)
    gradients = torch.autograd.grad(depth.readout(state).square().sum(), [output, depth.readout.pool_query])
    assert all(g.any() for g in gradients)


def test_wrong_options_are_errors() -> None:
    for options, words in (
        ({"streams": 0}, "streams=0 must be at least 1"),
        ({"gate": "soft"}, "gate='soft' is not known; competitive and independent work"),
        ({"gate_init": "zero"}, "gate_init='zero' is not known; paper and prenorm work"),
        ({"eps": -1.0}, "eps=-1.0 must not be negative"),
    ):
        with pytest.raises(UsageError, match=words):
            MultiGate(**options)


def test_calls_out_of_order_are_errors() -> None:
    x = torch.ones(2, DIM)
    depth = MultiGate(streams=2).build(DIM, 4)
    h, state = depth.sites[0].read(depth.open(x))
    state = depth.sites[0].write(state, h)
    with pytest.raises(UsageError, match="only append, and must come first"):
        depth.sites[0].read(state)
    with pytest.raises(UsageError, match="the state that this site's read returned"):
        depth.sites[1].write(state, x)
    h, state = depth.sites[1].read(state)
    state = depth.sites[1].write(state, h)
    with pytest.raises(UsageError, match="the state that this site's read returned"):
        depth.sites[2].write(state, x)


def test_inspect_shows_weights_gates_and_streams() -> None:
    x, layers = inputs(5)
    depth = moved(MultiGate(streams=3), 5)
    state = depth.open(x)
    for count, (site, layer) in enumerate(zip(depth.sites, layers, strict=True)):
        shown = site.inspect(state)
        live = min(count + 1, 3)
        assert shown["weights"].shape == (2, 3, live)
        assert shown["streams"].shape == (live, 2, 3, DIM)
        assert ("gates" in shown) == (count >= 2)
        torch.testing.assert_close(shown["weights"].sum(-1), torch.ones(2, 3))
        h, state = site.read(state)
        mixed = (shown["weights"].movedim(-1, 0).unsqueeze(-1) * shown["streams"]).sum(0)
        torch.testing.assert_close(mixed, h.float(), rtol=1e-5, atol=1e-5)
        state = site.write(state, torch.tanh(h @ layer))
    assert set(depth.readout.inspect(state)) == {"weights", "streams"}


def test_the_python_on_its_page_runs() -> None:
    page = Path(__file__).parents[2] / "docs" / "multi-gate-residuals.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, str(page), "exec"), names)
    assert len(names["depth"].sites) == 24
