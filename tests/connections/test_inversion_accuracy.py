"""What `MultiGate(memory="invert")` costs in accuracy and saves in bytes, and what it says when it loses accuracy."""

from __future__ import annotations

import dataclasses
import gc
import math
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from inverted import DIM, SUBLAYERS, Gate, Stack, bias_for, loss_of, mgr
from torch import Tensor

from leadline.connections import inversion
from leadline.connections.inversion import tape_bytes
from leadline.designs import resolve
from leadline.designs.presets import ShapeConfig
from leadline.models import Decoder


@pytest.fixture(autouse=True)
def _fresh_warnings() -> Iterator[None]:
    inversion._WARNED.clear()
    yield
    inversion._WARNED.clear()


def distance(found: list[Tensor], true: list[Tensor]) -> float:
    """The error of a whole gradient, relative to its norm."""
    error = sum((a.double() - b.double()).square().sum() for a, b in zip(found, true, strict=True))
    whole = sum(b.double().square().sum() for b in true)
    return math.sqrt(float(error) / float(whole))


def test_autocast_and_narrow_states() -> None:
    """Forward values are those of store to the bit; gradients are near them."""
    for options, autocast in (({"state_dtype": "bfloat16"}, False), ({}, True), ({"state_dtype": "float16"}, False)):
        results = []
        for memory in ("store", "invert"):
            stack = Stack(mgr(memory, **options), dtype=torch.float32, sublayers=24, dim=32)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                out = stack()
            results.append((out, stack.gradients(loss_of(out))))
        (expected, truth), (found, near) = results
        assert torch.equal(found, expected)
        assert all(a.dtype == b.dtype for a, b in zip(near, truth, strict=True))
        assert distance(near, truth) < (1e-5 if autocast else 5e-2)


ACCURATE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""What the page states for 96 sublayers."""


@pytest.mark.parametrize("dtype", ACCURATE, ids=str)
@pytest.mark.parametrize(
    ("gate", "beta"),
    [("competitive", 0.02), ("competitive", 0.1), ("competitive", 0.2), ("independent", 0.05), ("independent", 0.6)],
)
def test_96_sublayers_are_as_accurate_as_stated(dtype: torch.dtype, gate: Gate, beta: float) -> None:
    results = []
    for memory in ("store", "invert"):
        stack = Stack(
            mgr(memory, gate, streams=4, state_dtype=str(dtype)[6:]),
            sublayers=96,
            dtype=torch.promote_types(dtype, torch.float32),
            dim=32,
            time=8,
            beta=beta,
            noise=0.3,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            results.append(stack.gradients(loss_of(stack())))
    assert distance(results[1], results[0]) < ACCURATE[dtype]


def test_without_its_fallbacks_a_deep_stack_loses_its_gradients_and_says_so() -> None:
    """β = 0.2 over 96 sublayers: errors grow by 10⁸."""
    lax = {"invert_budget": 1e9, "invert_anchor_every": 10**6}
    results = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for memory, options in (("store", {}), ("invert", lax), ("invert", lax)):
            stack = Stack(mgr(memory, streams=4, **options), sublayers=96, dtype=torch.float32, beta=0.2, noise=0.3)
            results.append(stack.gradients(loss_of(stack())))
    assert not distance(results[1], results[0]) < 1e-2
    messages = [str(w.message) for w in said]
    assert len(messages) == 1  # once
    assert "lost accuracy" in messages[0]
    assert "invert_budget" in messages[0]
    assert "float32" in messages[0]


def test_an_anchor_sees_what_was_lost_above_it() -> None:
    """The drift is in the upper half; the lower half is stored whole."""
    stack = Stack(mgr(gate="independent", invert_gate_limit=0.99, invert_budget=1e9), 40, torch.float32, beta=0.05)
    with torch.no_grad():
        for site in list(stack.depth.sites)[33:38]:
            site.gate_bias.fill_(bias_for(0.985, mgr(gate="independent")))
    with pytest.warns(UserWarning, match="lost accuracy"):
        stack.gradients(loss_of(stack()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_with_large_gates_are_stored(dtype: torch.dtype) -> None:
    """A gate of one leaves no trace of a stream, so the row comes from the store or not at all."""
    connection = mgr(gate="independent")
    results = []
    for memory in ("store", "invert"):
        stack = Stack(dataclasses.replace(connection, memory=memory), dtype=dtype)
        with torch.no_grad():
            stack.depth.sites[5].gate_bias.fill_(60.0)
            stack.depth.sites[6].gate_query.mul_(40.0)
        results.append(stack.gradients(loss_of(stack())))
    assert all(torch.isfinite(g).all() for g in results[1])
    assert distance(results[1], results[0]) < (1e-11 if dtype == torch.float64 else 1e-5)


def saved(forward: Callable[[], Tensor]) -> tuple[int, Tensor]:
    """Bytes of storages that autograd and tapes hold after a forward pass, and what it gave."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = forward()
    return sum(sizes.values()) + tape_bytes(), result


def test_a_whole_model_saves_little_more_than_prenorm() -> None:
    shape = ShapeConfig(dim=512, blocks=12, heads=8, kv_heads=8, head_dim=64, hidden=1368, context=64)
    tokens = torch.randint(97, (1, 64), generator=torch.Generator().manual_seed(0))
    sizes = {}
    for design in ("prenorm", "mgr", "mgr(memory=invert)"):
        model = Decoder(resolve(design).decoder(shape, 97))
        own = sum(p.numel() * p.element_size() for p in model.parameters())
        size, logits = saved(lambda model=model: model(tokens))
        sizes[design] = size - own
        del logits
    assert sizes["mgr(memory=invert)"] <= 1.12 * sizes["prenorm"]
    assert sizes["mgr(memory=invert)"] <= 0.85 * sizes["mgr"]


def test_a_sublayer_adds_its_output_and_a_few_numbers() -> None:
    """Of each further sublayer: its output, which is one vector a token, and 6 numbers a stream."""
    dim, time = 64, 16
    sizes = []
    for sublayers in (12, 13):
        stack = Stack(mgr(streams=4), sublayers=sublayers, dtype=torch.float32, dim=dim, time=time, beta=0.02)
        size, _ = saved(stack)
        sizes.append(size - stack.weights.numel() * 4)
    vectors = (sizes[1] - sizes[0]) / (2 * time * dim * 4)
    # The norm keeps what it reads, the linear map what the norm gives, and F is tanh's output as well.
    assert vectors < 3 + (6 * 4 + 1) / dim


def test_rows_are_stored_compactly_and_anchors_whole() -> None:
    def size(**options: Any) -> int:
        stack = Stack(mgr(gate="independent", streams=4, **options), 24, torch.float32, beta=0.3, noise=0.3, dim=32)
        return saved(stack)[0]

    least = size(invert_budget=1e6, invert_anchor_every=99)
    rows = size(invert_budget=3.0, invert_anchor_every=99, invert_capacity=1.0)
    anchors = size(invert_budget=1e6, invert_anchor_every=2)
    large = size(invert_budget=1e6, invert_anchor_every=99, invert_gate_limit=0.32, invert_capacity=1.0)
    everything = size(invert_budget=1e-6, invert_capacity=0.0)
    assert least < rows < anchors < everything
    assert least < large < everything
    vector = 2 * 4 * 32 * 4
    assert everything - least == pytest.approx(20 * 4 * vector, rel=0.05)


def test_nothing_stays_alive_when_backward_never_comes() -> None:
    gc.collect()
    gc.disable()
    try:
        stack = Stack(mgr(invert_budget=0.4))
        state = stack.block(0, SUBLAYERS, stack.depth.open(stack.x))
        out = stack.depth.readout(state)
        alive = [weakref.ref(t) for t in (*state.streams, *state.output, *state.gates, out)]
        slots = [weakref.ref(tape.slot) for tape in state.tape]
        del state, out
        assert not any(ref() is not None for ref in (*alive, *slots))
        stack.gradients(loss_of(stack()))
        assert tape_bytes() == 0
    finally:
        gc.enable()


def test_slots_let_go_in_the_backward_pass() -> None:
    """Also where somebody keeps the tapes."""
    stack = Stack(mgr())
    state, tapes = stack.depth.open(stack.x), []
    for index in range(SUBLAYERS):
        state = stack.block(index, index + 1, state)
        tapes += state.tape
    loss = loss_of(stack.depth.readout(state))
    del state
    stack.gradients(loss)
    assert len(tapes) == SUBLAYERS - 1
    assert tape_bytes() == 0


def test_the_backward_pass_holds_one_state_of_the_streams_at_a_time() -> None:
    stack = Stack(mgr())
    held: list[int] = []
    state = stack.depth.open(stack.x)
    for index, site in enumerate(stack.depth.sites):
        h, state = site.read(state)
        output = stack.sublayer(index, h)
        output.register_hook(lambda grad: held.append(tape_bytes()))
        state = site.write(state, output)
    out = stack.depth.readout(state)
    del state
    loss_of(out).backward()
    one = 3 * 2 * 4 * DIM * 8
    assert max(held) == one
    assert tape_bytes() == 0
