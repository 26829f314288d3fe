"""`MultiGate(memory="invert")` against `memory="store"`, in every way in which a fold over depth can go."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
from inverted import DIM, GATES, SUBLAYERS, Gate, Stack, compare, loss_of, mgr
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from leadline import probes
from leadline.config import from_dict, to_dict
from leadline.connections import Connection, MultiGate
from leadline.connections.inversion import DEFAULTS, InversionError
from leadline.designs import resolve
from leadline.designs.presets import ShapeConfig
from leadline.errors import UsageError
from leadline.models import Decoder
from leadline.ops import use_backend
from leadline.ops.choice import why_not
from stacks import check_golden, golden_cases

each_gate = pytest.mark.parametrize("gate", GATES)


@each_gate
@pytest.mark.parametrize("streams", [1, 2, 4, SUBLAYERS])
def test_equals_store(streams: int, gate: Gate) -> None:
    compare(lambda stack: loss_of(stack()), mgr(gate=gate, streams=streams))


@each_gate
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("options", [{}, {"invert_budget": 0.4}, {"invert_anchor_every": 2}])
def test_the_bodies_for_the_compiler_equal_store(
    streams: int, gate: Gate, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are; compiling them takes a while, so one case below does."""
    called = "leadline.ops.multi_gate.compiled.run"
    monkeypatch.setattr(called, lambda function, *arguments: function(*arguments))
    with use_backend("compiled"):
        compare(lambda stack: loss_of(stack()), mgr(gate=gate, streams=streams, **options))


@pytest.mark.skipif(why_not("compiled", "cpu") is not None, reason="there is no C++ compiler")
def test_compiled_bodies_equal_store() -> None:
    def way(stack: Stack) -> Tensor:
        with use_backend("lean" if stack.depth.connection.memory == "store" else "compiled"):
            return loss_of(stack())

    compare(way, mgr(streams=2), sublayers=5)


@pytest.mark.parametrize("case", golden_cases("multi_gate"), ids=[c["name"] for c in golden_cases("multi_gate")])
def test_golden(case: dict[str, Any]) -> None:
    config = case["config"]
    connection = MultiGate(streams=config["streams"], gate=config["gate"], eps=config["eps"], memory="invert")
    check_golden(case, connection, "lean")


@each_gate
@pytest.mark.parametrize(
    "options",
    [
        {"invert_anchor_every": 1},
        {"invert_anchor_every": 3},
        {"invert_budget": 0.4},
        {"invert_budget": 0.4, "invert_capacity": 0.1},
        {"invert_gate_limit": 0.2, "invert_capacity": 1.0},
        {"invert_capacity": 0.0, "invert_budget": 0.2},
        {"invert_budget": 0.3, "invert_anchor_every": 4, "invert_gate_limit": 0.4},
    ],
)
def test_equals_store_whatever_is_stored(gate: Gate, options: dict[str, Any]) -> None:
    compare(lambda stack: loss_of(stack()), mgr(gate=gate, **options))


@pytest.mark.parametrize("sublayers", [3, 4, 5])
def test_the_first_gated_sublayers(sublayers: int) -> None:
    compare(lambda stack: loss_of(stack()), mgr(), sublayers=sublayers)


@pytest.mark.filterwarnings("ignore:streams=3 needs at least")
def test_a_stack_too_short_for_gates() -> None:
    compare(lambda stack: loss_of(stack()), mgr(), sublayers=2)


@pytest.mark.parametrize("skip", [(0,), (2,), (3,), (4, 5), (7, 8), (1, 3, 5), range(SUBLAYERS)])
def test_skipped_sublayers(skip: Collection[int]) -> None:
    compare(lambda stack: loss_of(stack(skip=skip)), mgr())


def test_dropout() -> None:
    compare(lambda stack: loss_of(stack()), mgr(), dropout=0.3)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("options", [{}, {"invert_budget": 0.3}, {"invert_anchor_every": 2}])
def test_recomputed_blocks(size: int, dropout: float, options: dict[str, Any]) -> None:
    def way(stack: Stack) -> Tensor:
        state = stack.depth.open(stack.x)
        for first in range(0, SUBLAYERS, size):
            last = min(first + size, SUBLAYERS)
            state = checkpoint(stack.block, first, last, state, use_reentrant=False)
        return loss_of(stack.depth.readout(state))

    compare(way, mgr(**options), dropout=dropout)


@pytest.mark.filterwarnings("ignore:memory='invert' lost accuracy")
def test_the_edge_of_a_recomputed_block_is_an_anchor() -> None:
    """The block's input is alive anyway, so nothing is computed across blocks: gates of almost one do no harm."""

    def way(stack: Stack) -> Tensor:
        state = stack.depth.open(stack.x)
        for index in range(SUBLAYERS):
            state = checkpoint(stack.block, index, index + 1, state, use_reentrant=False)
        return loss_of(stack.depth.readout(state))

    lax = mgr(gate="independent", invert_budget=1e6, invert_gate_limit=0.99999, invert_anchor_every=99)
    compare(way, lax, beta=0.999, noise=0.1)
    with pytest.raises(AssertionError):
        compare(lambda stack: loss_of(stack()), lax, beta=0.999, noise=0.1)


@pytest.mark.parametrize("order", ["in turn", "first in first", "last in first", "at once"])
def test_several_forward_passes_before_their_backward_passes(order: str) -> None:
    results = []
    for memory in ("store", "invert"):
        stack = Stack(mgr(memory))
        inputs = [stack.x.detach() + i for i in range(3)]
        if order == "in turn":
            for x in inputs:
                loss_of(stack(x)).backward()
        else:
            losses = [loss_of(stack(x)) for x in inputs]
            if order == "at once":
                torch.stack(losses).sum().backward()
            else:
                for loss in losses if order == "first in first" else losses[::-1]:
                    loss.backward()
        results.append([p.grad for p in stack.parameters()])
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("exits", [(2,), (4,), (3, 8), (1, 5, 6), range(SUBLAYERS)])
def test_early_and_several_readouts(exits: Collection[int]) -> None:
    def way(stack: Stack) -> Tensor:
        state, outputs = stack.depth.open(stack.x), []
        for index in range(SUBLAYERS):
            state = stack.block(index, index + 1, state)
            if index in exits:
                outputs.append(stack.depth.readout(state))
        return loss_of(*outputs)

    compare(way, mgr())
    compare(way, mgr(invert_budget=0.4))


@pytest.mark.parametrize("used", ["both", "first", "second"])
@pytest.mark.parametrize("depth", [2, 3, 5])
def test_a_state_that_goes_on_in_two_ways(used: str, depth: int) -> None:
    def way(stack: Stack) -> Tensor:
        shared = stack.block(0, depth, stack.depth.open(stack.x))
        one = stack.depth.readout(stack.block(depth, SUBLAYERS, shared))
        two = stack.depth.readout(stack.block(depth, SUBLAYERS - 1, shared, skip={depth}))
        return loss_of(*{"both": (one, two), "first": (one,), "second": (two,)}[used])

    compare(way, mgr())
    compare(way, mgr(invert_anchor_every=2, invert_budget=0.5))


def test_sites_in_another_order_and_more_than_once() -> None:
    def way(stack: Stack) -> Tensor:
        state = stack.block(0, 4, stack.depth.open(stack.x))
        for index in (7, 5, 5, 4, 8, 7):
            state = stack.block(index, index + 1, state)
        return loss_of(stack.depth.readout(state))

    compare(way, mgr())


def test_reads_that_are_not_written() -> None:
    def way(stack: Stack) -> Tensor:
        state, outputs = stack.block(0, 4, stack.depth.open(stack.x)), []
        for index in (4, 5, 6):
            h, state = stack.depth.sites[index].read(state)
            outputs.append(h)
        return loss_of(*outputs, stack.depth.readout(stack.block(7, 9, state)))

    compare(way, mgr())


def test_a_loss_on_reads_and_streams_themselves() -> None:
    def way(stack: Stack) -> Tensor:
        state, outputs = stack.depth.open(stack.x), []
        for index in range(6):
            h, state = stack.depth.sites[index].read(state)
            outputs += [h, *state.streams, *state.gates]
            state = stack.depth.sites[index].write(state, stack.sublayer(index, h))
        return loss_of(*outputs)

    compare(way, mgr())


@pytest.mark.parametrize("hops", [(3,), (4, 5), (0, 2, 8), range(SUBLAYERS + 1)])
def test_hops(hops: Collection[int]) -> None:
    def way(stack: Stack) -> Tensor:
        state = stack.depth.open(stack.x)
        for index in range(SUBLAYERS + 1):
            place = [*stack.depth.sites, stack.depth.readout][index]
            if index in hops:
                state = stack.depth.unpack([t * 1.0 for t in stack.depth.pack(state)], place)
            state = stack.block(index, min(index + 1, SUBLAYERS), state)
        return loss_of(stack.depth.readout(state))

    compare(way, mgr())
    compare(way, mgr(invert_budget=0.4))


def test_a_pipeline_of_two_stages() -> None:
    """Each stage has a graph of its own; gradients travel as plain tensors."""
    whole = Stack(mgr("store"))
    expected = whole.gradients(loss_of(whole()))
    stack = Stack(mgr())
    sent = stack.depth.pack(stack.block(0, 5, stack.depth.open(stack.x)))
    received = [t.detach().requires_grad_() for t in sent]
    state = stack.block(5, SUBLAYERS, stack.depth.unpack(received, stack.depth.sites[5]))
    loss_of(stack.depth.readout(state)).backward()
    torch.autograd.backward(sent, [t.grad for t in received])
    found = [p.grad for p in (stack.x, *stack.parameters())]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_streams_that_were_replaced_begin_anew() -> None:
    """A state made of other streams never meets the tape of the first."""
    for change in (lambda s: s * 0.5, lambda s: s.clone(), lambda s: s.detach(), lambda s: s.view_as(s)):

        def way(stack: Stack, change: Callable[[Tensor], Tensor] = change) -> Tensor:
            state = stack.block(0, 5, stack.depth.open(stack.x))
            state = state._replace(streams=(change(state.streams[0]),))
            return loss_of(stack.depth.readout(stack.block(5, SUBLAYERS, state)))

        compare(way, mgr())


def test_gates_that_were_replaced_are_looked_at_anew() -> None:
    def way(stack: Stack) -> Tensor:
        state = stack.block(0, 5, stack.depth.open(stack.x))
        state = state._replace(gates=(torch.ones_like(state.gates[0]),))
        return loss_of(stack.depth.readout(stack.block(5, SUBLAYERS, state)))

    compare(way, mgr())


def test_streams_changed_in_place_raise() -> None:
    stack = Stack(mgr())
    state = stack.block(0, 5, stack.depth.open(stack.x))
    with torch.no_grad():
        state.streams[0].mul_(2.0)
    with pytest.raises(InversionError, match="changed in place"):
        stack.block(5, SUBLAYERS, state)


def test_parts_without_gradients() -> None:
    def frozen(stack: Stack, prefixes: Collection[str]) -> None:
        for name, p in stack.named_parameters():
            if any(name.startswith(prefix) for prefix in prefixes):
                p.requires_grad_(False)

    for prefixes in (("depth.sites.0", "depth.sites.1", "depth.sites.2"), ("depth",), ("weights",), ("depth.sites.5",)):
        for leaf in (True, False):
            results = []
            for memory in ("store", "invert"):
                stack = Stack(mgr(memory))
                frozen(stack, prefixes)
                stack.x.requires_grad_(leaf)
                loss = loss_of(stack())
                wanted = [p for p in (stack.x, *stack.parameters()) if p.requires_grad]
                results.append(torch.autograd.grad(loss, wanted) if wanted else [])
            torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


def test_gradients_of_a_few_tensors_only() -> None:
    for name in ("weights", "depth.sites.6.gate_query", "depth.sites.2.pool_query", "depth.readout.pool_query"):
        results = []
        for memory in ("store", "invert"):
            stack = Stack(mgr(memory))
            results.append(torch.autograd.grad(loss_of(stack()), dict(stack.named_parameters())[name]))
        torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


def test_a_lower_part_without_gradients() -> None:
    def way(stack: Stack) -> Tensor:
        with torch.no_grad():
            state = stack.block(0, 5, stack.depth.open(stack.x))
        return loss_of(stack.depth.readout(stack.block(5, SUBLAYERS, state)))

    compare(way, mgr())


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_there_is_no_tape(context: Callable[[], Any]) -> None:
    stack = Stack(mgr())
    expected = stack().detach()
    with context():
        state = stack.block(0, SUBLAYERS, stack.depth.open(stack.x))
        assert state.tape == ()
        torch.testing.assert_close(stack.depth.readout(state), expected, rtol=1e-12, atol=1e-12)


def test_store_has_no_tape() -> None:
    stack = Stack(mgr("store"))
    assert stack.block(0, SUBLAYERS, stack.depth.open(stack.x)).tape == ()


def test_meta_tensors_pass() -> None:
    stack = Stack(mgr()).to("meta")
    assert stack(torch.empty(2, 4, DIM, dtype=torch.float64, device="meta", requires_grad=True)).shape == (2, 4, DIM)


def test_second_backward_passes_and_second_derivatives_raise() -> None:
    stack = Stack(mgr())
    loss = loss_of(stack())
    loss.backward(retain_graph=True)
    with pytest.raises(UsageError, match="memory='store'"):
        loss.backward()
    with pytest.raises(RuntimeError, match=r"create_graph=True.*memory='store'"):
        torch.autograd.grad(loss_of(stack()), stack.x, create_graph=True)


def test_two_losses_one_after_the_other_raise() -> None:
    stack = Stack(mgr())
    out = stack()
    loss_of(out).backward(retain_graph=True)
    with pytest.raises(InversionError):
        out.sum().backward()


def test_a_pass_that_leads_back_from_no_later_use_raises() -> None:
    """The streams went on to a sublayer that is no part of this loss."""
    stack = Stack(mgr())
    h, state = stack.depth.sites[5].read(stack.block(0, 5, stack.depth.open(stack.x)))
    state = stack.block(6, SUBLAYERS, stack.depth.sites[5].write(state, stack.sublayer(5, h)))
    stack.depth.readout(state)
    del state
    with pytest.raises(InversionError, match="memory='store' works"):
        loss_of(h).backward()


def test_probes_see_the_same_as_with_store() -> None:
    records, losses = [], []
    for design in ("mgr", "mgr(memory=invert)"):
        shape = ShapeConfig(dim=16, blocks=4, heads=2, kv_heads=2, head_dim=8, hidden=24, context=8)
        model = Decoder(resolve(design).decoder(shape, 31))
        with probes.record(model, inspect=True) as depth:
            loss = model(torch.arange(16).view(2, 8)).square().sum()
            loss.backward()
        records.append((depth.read_rms, depth.output_rms, depth.connection))
        losses.append([p.grad for p in model.parameters()])
    assert records[0] == records[1]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)


def test_a_decoder_that_recomputes() -> None:
    shape = ShapeConfig(dim=16, blocks=6, heads=2, kv_heads=2, head_dim=8, hidden=24, context=8)
    tokens = torch.arange(16).view(2, 8)
    results = []
    for design, recompute in (("mgr", False), ("mgr(memory=invert)", False), ("mgr(memory=invert)", True)):
        model = Decoder(resolve(design).decoder(shape, 31), dtype=torch.float64)
        model.recompute = recompute
        for skip in ((), (5,)):
            model(tokens, skip=skip).square().sum().backward()
        results.append([p.grad for p in model.parameters()])
    for found in results[1:]:
        torch.testing.assert_close(found, results[0], rtol=1e-9, atol=1e-9)


def test_compiled_code_is_left_for_the_tape() -> None:
    """Graphs break and gradients are right; a full graph is refused with a reason."""
    torch._dynamo.reset()
    stack = Stack(mgr(), sublayers=5)
    expected = stack.gradients(loss_of(stack()))
    compiled = torch.compile(stack, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(stack.gradients(loss_of(compiled())), expected, rtol=1e-9, atol=1e-9)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="memory='store' compiles whole"):
        torch.compile(stack, fullgraph=True, backend="aot_eager")()
    torch._dynamo.reset()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(stack, fullgraph=True, backend="aot_eager")(), stack())
    torch._dynamo.reset()


def test_options() -> None:
    for options, words in (
        ({"memory": "recall"}, "memory='recall' is not known; store and invert work"),
        ({"memory": "store", "invert_budget": 1.0}, "invert_budget=1.0 needs memory=invert"),
        ({"memory": "store", "invert_capacity": 0.1}, "invert_capacity=0.1 needs memory=invert"),
        ({"invert_gate_limit": 1.0}, "invert_gate_limit=1.0 must lie between 0 and 1"),
        ({"invert_budget": 0.0}, "invert_budget=0.0 must be a finite number more than 0"),
        ({"invert_budget": math.inf}, "invert_budget=inf"),
        ({"invert_anchor_every": 0}, "invert_anchor_every=0 must be at least 1"),
        ({"invert_capacity": 1.5}, "invert_capacity=1.5 must lie from 0 to 1"),
        ({"invert_capacity": math.nan}, "invert_capacity=nan"),
    ):
        with pytest.raises(UsageError, match=words):
            MultiGate(**{"memory": "invert", **options})
    given = mgr(invert_budget=2.0, invert_anchor_every=7)
    assert from_dict(Connection, to_dict(given)) == given
    assert resolve("mgr(memory=invert, invert_budget=2)").connection.invert_budget == 2.0
    assert set(DEFAULTS) == {torch.float64, torch.float32, torch.float16, torch.bfloat16}
