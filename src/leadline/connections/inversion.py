"""`MultiGate(memory="invert")`: what of the streams is stored, so that the backward pass can recompute the rest.

Going back by one sublayer multiplies the error of a stream's row (one token of one stream) by 1 / (1 − β). Stored are

- the rows whose own β exceeds `gate_limit`, or whose Σ −log(1 − β) since they were last stored exceeds `budget`;
- all streams (an anchor), where such rows are more than a share `capacity` of all, where `anchor_every` sublayers in a
  row were inverted, in the first gated read (the embedding and outputs that are kept anyway), at every readout and hop.

A row of one stream is the unit because gates differ between streams: where one stream takes a write whole, a
competitive gate leaves the others nearly as they were.

A `Tape` travels with the state and belongs to its streams. The streams that are recomputed at the first gated read are
compared with the true ones; an error beyond the dtype's tolerance is a warning, once.

On a GPU the number of rows to store is computed when the gates are made and is on its way to the host while the
sublayer runs; the next step waits for it before it is launched. The comparison waits once in a backward pass.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from leadline.ops.multi_gate.inversion import Keep, multi_gate_step_inverted
from leadline.ops.multi_gate.parts import Parameters
from leadline.ops.multi_gate.slots import InversionError, Slot, tape_bytes

__all__ = ["DEFAULTS", "InversionError", "Limits", "Tape", "limits_for", "tape_bytes"]


class Limits(NamedTuple):
    """When streams are stored, and how far they may drift.

    Attributes:
        gate_limit: a row is stored where its own β exceeds it.
        budget: a row is stored where its Σ −log(1 − β) since it was last stored exceeds it.
        anchor_every: at most so many sublayers are inverted in a row.
        capacity: where more than this share of all rows is to be stored, all are.
        tolerance: the relative error of streams beyond which a run warns.
    """

    gate_limit: float
    budget: float
    anchor_every: int
    capacity: float
    tolerance: float


DEFAULTS: dict[torch.dtype, Limits] = {
    torch.float64: Limits(0.99, 9.0, 64, 0.5, 1e-10),
    torch.float32: Limits(0.9, 4.0, 32, 0.5, 1e-4),
    torch.float16: Limits(0.5, 1.0, 16, 0.5, 1e-2),
    torch.bfloat16: Limits(0.5, 0.7, 8, 0.5, 5e-2),
}
"""By the dtype that travels; [ours], from the errors in docs/multi-gate-residuals.md."""


def limits_for(dtype: torch.dtype, config: Any) -> Limits:
    """The limits that a `MultiGate` gives, and the dtype's own where one is None."""
    own = DEFAULTS.get(dtype, DEFAULTS[torch.bfloat16])
    given = {name: getattr(config, f"invert_{name}", None) for name in own._fields}
    return own._replace(**{name: value for name, value in given.items() if value is not None})


class Tape:
    """What a state carries of inversion. Nothing in it changes once it is made, but its slot.

    Attributes:
        slot: where the backward pass finds the state's streams.
        apart: the same streams one by one, as they were gathered, until the first gated read.
        spent: Σ −log(1 − β) of every row since it was last stored, (N, ...); None for zeros.
        inverted: how many sublayers were inverted in a row up to here.
        due: what the write that the gates belong to will need.
    """

    __slots__ = ("apart", "due", "inverted", "slot", "spent")

    def __init__(
        self,
        slot: Slot | None,
        *,
        apart: tuple[Tensor, ...] = (),
        spent: Tensor | None = None,
        inverted: int = 0,
        due: Due | None = None,
    ) -> None:
        self.slot, self.apart, self.spent, self.inverted, self.due = slot, apart, spent, inverted, due


class Due:
    """For gates β: what every row's sum becomes, which rows are to be stored, and how many.

    Attributes:
        gates: β (N, ...).
        sums: Σ −log(1 − β) with this β, (N, ...).
        over: which rows are beyond a limit, (N, ...).
    """

    __slots__ = ("_count", "_event", "gates", "over", "sums")

    @torch.no_grad()
    def __init__(self, gates: Tensor, spent: Tensor | None, limits: Limits) -> None:
        self.gates = gates
        self.sums = torch.log1p(-gates).neg_()
        if spent is not None:
            self.sums += spent
        self.over = (self.sums > limits.budget).logical_or_(gates > limits.gate_limit)
        self._count = self.over.sum()
        self._event: torch.cuda.Event | None = None
        if self.over.is_cuda:
            here = torch.empty((), dtype=self._count.dtype, pin_memory=True)
            self._count = here.copy_(self._count, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def count(self) -> int:
        """How many rows are to be stored."""
        if self._event is not None:
            self._event.synchronize()
        return int(self._count)

    def rows(self, count: int) -> Tensor:
        """Their numbers among (N · tokens), (count,) int64."""
        over = self.over.flatten()
        if over.is_cpu:
            return over.nonzero().squeeze(1)
        # Without waiting for the device, as the count is known.
        return over.to(torch.uint8).argsort(descending=True, stable=True)[:count]


def opened(streams: Tensor, apart: tuple[Tensor, ...]) -> Tape:
    """The tape of streams that were gathered just now."""
    return Tape(Slot(streams, hold=False), apart=apart)


def step(
    streams: Tensor,
    pending: tuple[Tensor, Tensor] | None,
    tape: Tape | None,
    parameters: Parameters,
    config: Any,
) -> tuple[Tensor | None, Tensor, Tensor | None, Tape | None]:
    """Streams, read and gates as of `leadline.ops.multi_gate_step`, and the tape of these streams.

    Without a gate the step ends the tape: it stores the streams and returns none.

    Raises:
        InversionError: streams that were changed in place.
    """
    limits, gated = limits_for(streams.dtype, config), parameters.gate_query is not None
    if tape is None or tape.slot is None or not tape.slot.belongs_to(streams):
        tape = opened(streams, ())
    check, sums = None, None
    if pending is None:
        keep = Keep(whole=True, apart=tape.apart)
        check = functools.partial(_check, limits.tolerance, streams.dtype) if tape.apart else None
    else:
        keep, sums = _kept(pending[1], tape, limits, ends=not gated)
    new, read, gates, slot = multi_gate_step_inverted(
        streams, pending, parameters, before=tape.slot, keep=keep, check=check, hands_on=gated
    )
    if new is None or slot is None:
        return new, read, gates, None
    inverted = 0 if keep.whole else tape.inverted + 1
    due = None if gates is None else Due(gates.detach(), sums, limits)
    return new, read, gates, Tape(slot, spent=sums, inverted=inverted, due=due)


def _kept(gates: Tensor, tape: Tape, limits: Limits, ends: bool) -> tuple[Keep, Tensor | None]:
    """What to save of the streams before a write with these gates, and every row's sum afterwards."""
    if ends or tape.inverted >= limits.anchor_every:
        return Keep(whole=True), None
    due = tape.due
    if due is None or due.gates.data_ptr() != gates.data_ptr():
        due = Due(gates.detach(), tape.spent, limits)
    count = due.count()
    if count > limits.capacity * due.over.numel():
        return Keep(whole=True), None
    if count == 0:
        return Keep(), due.sums
    return Keep(rows=due.rows(count)), due.sums.masked_fill(due.over, 0.0)


_WARNED: set[torch.dtype] = set()


def _check(tolerance: float, dtype: torch.dtype, error: Tensor) -> None:
    """Warns, once for each dtype, of streams that came out worse than they are meant to."""
    found = float(error)
    if found <= tolerance or dtype in _WARNED:
        return
    _WARNED.add(dtype)
    warnings.warn(
        f"memory='invert' lost accuracy: streams recomputed in the backward pass are off by {found:.1e} of their size, "
        f"beyond the {tolerance:.0e} that {str(dtype).removeprefix('torch.')} streams are meant for; a smaller "
        "invert_budget, invert_gate_limit or invert_anchor_every stores more of them, and memory='store' all",
        stacklevel=1,
    )


_OUTSIDE: dict[str, Callable[..., Any]] = {}


def outside_compiler() -> None:
    """Lets `run_step` and `run_opened` leave code that torch.compile traces, as a tape is not part of a graph.

    For stacks that invert only: it imports torch's compiler, which takes a second or two.
    """
    if not _OUTSIDE:
        reason = "memory='invert' works outside compiled code; memory='store' compiles whole (fullgraph=True)"
        _OUTSIDE["step"] = torch.compiler.disable(step, reason=reason)
        _OUTSIDE["opened"] = torch.compiler.disable(opened, reason=reason)


def run_step(*args: Any) -> tuple[Tensor | None, Tensor, Tensor | None, Tape | None]:
    """`step`, never compiled."""
    result: tuple[Tensor | None, Tensor, Tensor | None, Tape | None] = _OUTSIDE.get("step", step)(*args)
    return result


def run_opened(streams: Tensor, apart: tuple[Tensor, ...]) -> Tape:
    """`opened`, never compiled."""
    tape: Tape = _OUTSIDE.get("opened", opened)(streams, apart)
    return tape
