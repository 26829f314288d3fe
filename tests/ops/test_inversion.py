"""The step whose backward pass works the streams out anew: its arithmetic, its slots, and what it refuses."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from leadline.errors import LeadlineError, UsageError
from leadline.ops import multi_gate_step
from leadline.ops.multi_gate.inversion import Keep, flush, multi_gate_step_inverted, unflush
from leadline.ops.multi_gate.parts import Parameters
from leadline.ops.multi_gate.slots import InversionError, Slot, tape_bytes

N, T, D = 3, 5, 7
EPS = 1e-6
KINDS = ("competitive", "independent")
WHOLE, NOTHING = Keep(whole=True), Keep()

each_kind = pytest.mark.parametrize("kind", KINDS)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def gates(*shape: int, seed: int = 0, most: float = 0.5) -> Tensor:
    return most * torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parameters(pool: Tensor | None, gate: tuple[Tensor, Tensor], kind: str = "competitive") -> Parameters:
    return Parameters(pool, *gate, kind == "independent", EPS)


class Chain:
    """A few steps, by inversion or not, from streams that are given; every output and gate is a leaf of its own."""

    def __init__(self, kind: str, steps: int = 4, n: int = N) -> None:
        self.kind, self.n = kind, n
        self.start = random(n, T, D, seed=1).requires_grad_()
        self.outputs = [random(T, D, seed=10 + i).requires_grad_() for i in range(steps)]
        self.gates = [gates(n, T, seed=20 + i).requires_grad_() for i in range(steps)]
        self.pool = [random(D, seed=30 + i).requires_grad_() for i in range(steps)]
        self.gate = [
            (random(D, seed=40 + i).requires_grad_(), random(1, seed=50 + i).requires_grad_()) for i in range(steps)
        ]
        self.leaves = [self.start, *self.outputs, *self.gates, *self.pool, *(t for pair in self.gate for t in pair)]

    def store(self) -> list[Tensor]:
        streams, found = self.start * 1.0, []
        for i in range(len(self.outputs)):
            step = multi_gate_step(
                streams, self._pending(i), self.pool[i], self.gate[i], kind=self.kind, eps=EPS, backend="reference"
            )
            streams = step.streams
            found += [step.read, step.gates]
        return [*found, streams]

    def invert(self, keeps: Sequence[Keep] | None = None) -> list[Tensor]:
        keeps = keeps or [NOTHING] * (len(self.outputs) - 1) + [WHOLE]
        streams, slot, found = self.start * 1.0, None, []
        for i, keep in enumerate(keeps):
            streams, read, beta, slot = multi_gate_step_inverted(
                streams, self._pending(i), parameters(self.pool[i], self.gate[i], self.kind), before=slot, keep=keep
            )
            found += [read, beta]
        return [*found, streams]

    def _pending(self, i: int) -> tuple[Tensor, Tensor]:
        return self.outputs[i], self.gates[i]

    def gradients(self, made: Sequence[Tensor]) -> list[Tensor]:
        loss = sum((random(*t.shape, seed=60 + i) * t).sum() for i, t in enumerate(made))
        assert isinstance(loss, Tensor)
        return list(torch.autograd.grad(loss, self.leaves, materialize_grads=True))


def test_unflush_undoes_flush() -> None:
    streams, output, beta = random(N, T, D), random(T, D, seed=1), gates(N, T, most=0.9)
    again = unflush(flush(streams, output, beta), output, beta, None, None)
    torch.testing.assert_close(again, streams, rtol=1e-13, atol=1e-13)


def test_stored_rows_come_back_to_the_bit_where_a_gate_is_one() -> None:
    streams, output, beta = random(N, T, D), random(T, D, seed=1), gates(N, T)
    beta[1, 3] = beta[2, 0] = 1.0
    rows = torch.tensor([1 * T + 3, 2 * T])
    values = streams.view(-1, D)[rows]
    again = unflush(flush(streams, output, beta), output, beta, rows, values)
    assert torch.equal(again.view(-1, D)[rows], values)
    torch.testing.assert_close(again, streams, rtol=1e-13, atol=1e-13)


def test_bfloat16_streams_mostly_come_back_to_the_bit_for_small_gates() -> None:
    streams = random(N, 200, D, dtype=torch.bfloat16)
    output, beta = random(200, D, seed=1, dtype=torch.bfloat16), torch.full((N, 200), 0.01)
    again = unflush(flush(streams, output, beta), output, beta, None, None)
    assert again.dtype == torch.bfloat16
    assert (again == streams).float().mean() > 0.95


@each_kind
def test_values_and_gradients_are_those_of_the_reference(kind: str) -> None:
    chain = Chain(kind)
    stored, inverted = chain.store(), chain.invert()
    torch.testing.assert_close(inverted, stored, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(chain.gradients(inverted), chain.gradients(stored), rtol=1e-10, atol=1e-10)


@each_kind
@pytest.mark.parametrize("way", ["whole", "rows", "every row", "mixed"])
def test_whatever_is_kept_the_gradients_are_the_same(kind: str, way: str) -> None:
    chain = Chain(kind)
    some = Keep(rows=torch.tensor([2, 7, 8, 14]))
    keeps = {
        "whole": [WHOLE] * 4,
        "rows": [some] * 4,
        "every row": [Keep(rows=torch.arange(N * T))] * 4,
        "mixed": [some, WHOLE, NOTHING, some],
    }[way]
    torch.testing.assert_close(
        chain.gradients(chain.invert(keeps)), chain.gradients(chain.store()), rtol=1e-10, atol=1e-10
    )


def test_kept_rows_are_used() -> None:
    """A gate of one leaves nothing of a stream: without its row the gradients are not finite."""
    for keep, finite in ((Keep(rows=torch.tensor([4])), True), (NOTHING, False)):
        chain = Chain("competitive")
        with torch.no_grad():
            chain.gates[2].view(-1)[4] = 1.0
        found = chain.gradients(chain.invert([NOTHING, NOTHING, keep, NOTHING]))
        assert all(torch.isfinite(g).all() for g in found) == finite
        if finite:
            torch.testing.assert_close(found, chain.gradients(chain.store()), rtol=1e-10, atol=1e-10)


def test_one_stream_without_a_pool() -> None:
    start, output = random(1, T, D).requires_grad_(), random(T, D, seed=1).requires_grad_()
    beta = gates(1, T, seed=2).requires_grad_()
    gate = (random(D, seed=3).requires_grad_(), random(1, seed=4).requires_grad_())
    leaves = [start, output, beta, *gate]
    results = []
    for inverts in (False, True):
        if inverts:
            made = multi_gate_step_inverted(start, (output, beta), parameters(None, gate), before=None, keep=NOTHING)[
                :3
            ]
        else:
            made = multi_gate_step(start, (output, beta), None, gate, kind="competitive", eps=EPS, backend="reference")
        loss = sum((random(*t.shape, seed=9) * t).sum() for t in made)
        results.append(torch.autograd.grad(loss, leaves))
    torch.testing.assert_close(results[1], results[0], rtol=1e-11, atol=1e-11)


@each_kind
@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_any_of_the_outputs_may_have_no_gradient(kind: str, used: Sequence[int]) -> None:
    chain = Chain(kind, steps=1)
    found = []
    for made in (chain.store(), chain.invert([NOTHING])):
        read, beta, streams = made
        found.append(chain.gradients([t for i, t in enumerate((streams, read, beta)) if i in used]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_stay_and_gates_are_wide(dtype: torch.dtype) -> None:
    streams, output = random(N, T, D, dtype=dtype).requires_grad_(), random(T, D, dtype=dtype).requires_grad_()
    beta = gates(N, T).float().requires_grad_()
    pool, gate = random(D).float().requires_grad_(), (random(D).float(), random(1).float())
    new, read, after, _ = multi_gate_step_inverted(
        streams, (output, beta), parameters(pool, gate), before=None, keep=NOTHING
    )
    assert new is not None
    assert read is not None
    assert after is not None
    assert (new.dtype, read.dtype, after.dtype) == (dtype, dtype, torch.float32)
    new.float().sum().add(read.float().sum()).backward()
    assert streams.grad is not None
    assert streams.grad.dtype == dtype
    assert output.grad is not None
    assert output.grad.dtype == dtype
    assert beta.grad is not None
    assert beta.grad.dtype == pool.dtype == torch.float32


def test_nothing_but_outputs_and_small_numbers_is_saved() -> None:
    """Of the streams only the anchor: the bytes are those of F and of numbers a token."""
    chain = Chain("competitive", steps=6)
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        made = chain.invert()
    large = [t for t in saved.values() if t.numel() == N * T * D]
    assert len(large) == 1  # the streams before the last step
    assert tape_bytes() == 0
    del made


def test_the_streams_after_a_last_step_are_held_until_somebody_takes_them() -> None:
    chain = Chain("competitive", steps=2)
    before = tape_bytes()
    made = chain.invert([NOTHING, NOTHING])
    assert tape_bytes() == before + N * T * D * 8  # the last streams, once
    torch.testing.assert_close(chain.gradients(made), chain.gradients(chain.store()), rtol=1e-10, atol=1e-10)
    assert tape_bytes() == before


def test_a_second_backward_pass_and_second_derivatives_raise() -> None:
    for options in ({"retain_graph": True}, {}):
        chain = Chain("competitive")
        loss = chain.invert()[-2].sum()
        torch.autograd.grad(loss, chain.start, **options)
        with pytest.raises(InversionError, match="memory='store'"):
            torch.autograd.grad(loss, chain.start)
    with pytest.raises(InversionError, match=r"create_graph=True.*memory='store'"):
        torch.autograd.grad(chain.invert()[-2].sum(), chain.start, create_graph=True)
    assert issubclass(InversionError, LeadlineError)
    assert issubclass(InversionError, RuntimeError)


def test_streams_that_nobody_works_out_raise() -> None:
    """The last step took the streams over, and its outputs are no part of the loss."""
    chain = Chain("competitive", steps=2)
    made = chain.invert()
    streams, loss = made[-1], made[0].sum()
    del made, streams
    gc.collect()
    with pytest.raises(InversionError, match="takes no part in this backward pass; memory='store' works"):
        loss.backward()


def test_a_slot_knows_its_streams() -> None:
    streams = random(N, T, D).requires_grad_() * 1.0
    slot = Slot(streams, hold=True)
    assert slot.belongs_to(streams)
    assert slot.belongs_to(streams.view_as(streams))
    assert not slot.belongs_to(streams.clone())
    assert not slot.belongs_to(streams.detach())
    assert not slot.belongs_to(streams[:2])
    slot.hand_over()
    assert slot.belongs_to(streams)
    with torch.no_grad():
        streams.mul_(2.0)
    with pytest.raises(InversionError, match="changed in place"):
        slot.belongs_to(streams)


def test_a_slot_whose_streams_are_gone_knows_none() -> None:
    streams = random(N, T, D).requires_grad_() * 1.0
    slot = Slot(streams, hold=True)
    slot.hand_over()
    del streams
    assert not slot.belongs_to(random(N, T, D).requires_grad_())
    with pytest.raises(InversionError):
        slot.streams()
    slot.put(random(N, T, D), exact=False, error=None)
    exact = random(N, T, D, seed=1)
    slot.put(exact, exact=True, error=None)
    slot.put(random(N, T, D, seed=2), exact=False, error=None)
    assert slot.streams() is exact


def test_a_step_must_be_able_to_find_its_streams() -> None:
    streams, output, beta = random(N, T, D), random(T, D), gates(N, T)
    pool, gate = random(D), (random(D), random(1))
    for pending, hands_on in ((None, True), ((output, beta), False)):
        with pytest.raises(UsageError, match="keeps its streams whole"):
            multi_gate_step_inverted(
                streams, pending, parameters(pool, gate), before=None, keep=NOTHING, hands_on=hands_on
            )


def test_nothing_stays_alive() -> None:
    gc.collect()
    gc.disable()
    try:
        chain = Chain("competitive")
        made = chain.invert()
        alive = [weakref.ref(t) for t in made]
        del made
        assert not any(ref() is not None for ref in alive)
        chain.gradients(chain.invert())
    finally:
        gc.enable()
    assert tape_bytes() == 0
