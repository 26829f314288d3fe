"""Multi-Gate Residuals (MGR, arXiv 2605.23259): n gated streams, read by attention pooling.

With `F` a sublayer's output, `s_i` the live streams and `rms` without gain, at each site

    h    = Σ_i softmax_i(w_α · rms(s_i) / √D) s_i
    s_i ← (1 − β_i) s_i + β_i F(h),   β = σ(z + b)  or  softmax([b, z_1 .. z_n])[1:],   z_i = w_β · rms(s_i) / √D

β comes from the streams before the write, so it is known when h is read, and the next read flushes, pools and gates
in one operator. The first n − 1 sublayers append their raw outputs as streams; gating begins when n streams live.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from leadline.config import check_choices, check_numbers, kind
from leadline.connections import inversion
from leadline.connections.base import Connection, Readout, Site
from leadline.errors import UsageError
from leadline.ops import multi_gate_step
from leadline.ops.depth_attention import depth_attention_weights, read_sources
from leadline.ops.multi_gate import Step
from leadline.ops.multi_gate.parts import Parameters
from leadline.ops.next_norm import NextNorm, normed

BASE_BIAS = -3.0
BASE_DEPTH = 21


class MultiGateState(NamedTuple):
    """What travels.

    Attributes:
        live: the streams while fewer than n live, each (..., D); empty afterwards.
        streams: one tensor (n, ..., D) once n streams live; before that, empty.
        gates: β of the sublayer that was read last, one tensor (n, ...), float32 or wider; empty before a gated read.
        output: what that sublayer gave, one tensor (..., D), waiting to be written; else empty.
        tape: with memory="invert" and gradients, once n streams live: an opaque object that belongs to `streams`.
    """

    live: tuple[Tensor, ...]
    streams: tuple[Tensor, ...] = ()
    gates: tuple[Tensor, ...] = ()
    output: tuple[Tensor, ...] = ()
    tape: tuple[inversion.Tape, ...] = ()

    @property
    def pending(self) -> tuple[Tensor, Tensor] | None:
        """The write that waits: the output and its gates."""
        return (self.output[0], self.gates[0]) if self.output else None


class MultiGateSite(Site[MultiGateState]):
    """One sublayer's place among the streams.

    Parameters: `pool_query` (D) at all sites but the first, if n > 1; `gate_query` (D) and `gate_bias` (1) at sites
    that can see n streams.
    """

    takes_norm = True

    pool_query: nn.Parameter | None
    gate_query: nn.Parameter | None
    gate_bias: nn.Parameter | None

    def __init__(
        self, config: MultiGate, dim: int, *, pools: bool, gate_start: float | None, scale: float, **factory: Any
    ) -> None:
        super().__init__(scale)
        self.config = config
        self.dim = dim
        self.add_parameters(
            factory,
            pool_query=((dim,), 0.0) if pools else None,
            gate_query=None if gate_start is None else ((dim,), 0.0),
            gate_bias=None if gate_start is None else ((1,), gate_start),
        )

    def read(self, state: MultiGateState) -> tuple[Tensor, MultiGateState]:
        """AttnPool over the live streams, after the pending write; the gates of this sublayer's write with it."""
        return self._read(state)

    def read_normed(self, state: MultiGateState, norm: NextNorm) -> tuple[Tensor, MultiGateState]:
        """As `read`, with the norm folded into it."""
        return self._read(state, norm)

    def _read(self, state: MultiGateState, norm: NextNorm | None = None) -> tuple[Tensor, MultiGateState]:
        if not state.streams:
            return _pool_live(state.live, self.pool_query, self.config.eps, norm), state
        if self.gate_query is None or self.gate_bias is None:
            raise UsageError(
                f"a site without gates met {self.config.streams} streams; "
                f"the first {self.config.streams - 1} sites only append, and must come first and once"
            )
        step, tape = _step(self.config, state, self.pool_query, (self.gate_query, self.gate_bias), norm)
        gates = () if step.gates is None else (step.gates,)
        return step.read, MultiGateState((), (step.streams,), gates, tape=tape)

    def write(self, state: MultiGateState, output: Tensor) -> MultiGateState:
        """A new stream while fewer than n live; afterwards a gated write, which waits for the next read.

        Raises:
            UsageError: the state isn't one that a read returned, so there are no gates for this output.
        """
        if state.streams:
            if state.output or not state.gates:
                raise UsageError("a gated write takes the state that this site's read returned")
            return state._replace(output=(output.to(state.streams[0].dtype),))
        return _gathered(self.config, (*state.live, output.to(state.live[0].dtype)))

    @torch.no_grad()
    def inspect(self, state: MultiGateState) -> dict[str, Tensor]:
        """`weights` of the pool, `gates` where streams are gated, and the `streams`."""
        streams = _streams(state)
        shown = {"weights": _weights(streams, self.pool_query, self.config.eps), "streams": streams.float()}
        if state.streams and self.gate_query is not None and self.gate_bias is not None:
            gate = (self.gate_query, self.gate_bias)
            step = multi_gate_step(streams, None, self.pool_query, gate, kind=self.config.gate, eps=self.config.eps)
            if step.gates is not None:
                shown["gates"] = step.gates.movedim(0, -1).float()
        return shown


class MultiGateReadout(Readout[MultiGateState]):
    """AttnPool with its own query. Parameters: `pool_query` (D), if n > 1."""

    takes_norm = True

    pool_query: nn.Parameter | None

    def __init__(self, config: MultiGate, dim: int, *, scale: float, **factory: Any) -> None:
        super().__init__(scale)
        self.config = config
        self.add_parameters(factory, pool_query=((dim,), 0.0) if config.streams > 1 else None)

    def forward(self, state: MultiGateState) -> Tensor:
        """x (..., D) in the streams' dtype."""
        return self._read(state)

    def read_normed(self, state: MultiGateState, norm: NextNorm) -> Tensor:
        """As `forward`, with the norm folded into it."""
        return self._read(state, norm)

    def _read(self, state: MultiGateState, norm: NextNorm | None = None) -> Tensor:
        if not state.streams:
            return _pool_live(state.live, self.pool_query, self.config.eps, norm)
        return _step(self.config, state, self.pool_query, None, norm)[0].read

    @torch.no_grad()
    def inspect(self, state: MultiGateState) -> dict[str, Tensor]:
        """`weights` of the pool and the `streams`."""
        streams = _streams(state)
        return {"weights": _weights(streams, self.pool_query, self.config.eps), "streams": streams.float()}


@kind("multi-gate")
@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiGate(Connection[MultiGateState]):
    """Multi-Gate Residuals.

    Attributes:
        streams: n, at least 1.
        gate: "competitive" (streams compete with a forget mass for one write) or "independent" (a sigmoid each).
        gate_init: "paper" starts every β at the paper's target for the depth; "prenorm" [ours] starts as PreNorm with n
            distinct streams.
        memory: "store" keeps the streams after every write for the backward pass; "invert" recomputes them there, see
            below.
        eps: in the root mean square of a stream.
        invert_gate_limit: a row (one token of one stream) is stored where its own β exceeds it; between 0 and 1.
        invert_budget: a row is stored where its Σ −log(1 − β) since it was last stored exceeds it; more than 0.
        invert_anchor_every: all streams are stored after so many inverted sublayers in a row; at least 1.
        invert_capacity: all streams are stored where the rows to store are more than this share of all; 0 to 1, by
            default 0.5.

    `memory="invert"` keeps β and each sublayer's output, about one vector a token and sublayer in place of n + 1. An
    option that is None takes the dtype's own value. With these, gradients of 96 sublayers are this close to those of
    "store", by the norm of the whole gradient, whatever the gates:

    | streams | gate_limit | budget | anchor_every | relative error |
    |---|---|---|---|---|
    | float64 | 0.99 | 9 | 64 | 1e-9 |
    | float32 | 0.9 | 4 | 32 | 1e-5 |
    | float16 | 0.5 | 1 | 16 | 2e-2 |
    | bfloat16 | 0.5 | 0.7 | 8 | 5e-2 |

    A run whose streams come out worse warns once. A forward pass has one backward pass, with retain_graph too; a second
    one and second derivatives raise, and so does a backward pass that needs streams which nothing in it leads back to.
    torch.compile breaks its graph at every site, so fullgraph=True fails.
    Source: arXiv 2605.23259; what is stored is ours.
    """

    streams: int = 4
    gate: Literal["competitive", "independent"] = "competitive"
    gate_init: Literal["paper", "prenorm"] = "paper"
    memory: Literal["store", "invert"] = "store"
    eps: float = 1e-6
    invert_gate_limit: float | None = None
    invert_budget: float | None = None
    invert_anchor_every: int | None = None
    invert_capacity: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)
        check_numbers(self, positive=("streams",), not_negative=("eps",))
        options = [f.name for f in dataclasses.fields(self) if f.name.startswith("invert_")]
        given = [name for name in options if getattr(self, name) is not None]
        if given and self.memory == "store":
            raise UsageError(f"{given[0]}={getattr(self, given[0])} needs memory=invert; memory=store inverts nothing")
        limit, budget = self.invert_gate_limit, self.invert_budget
        if limit is not None and not 0 < limit < 1:
            raise UsageError(f"invert_gate_limit={limit} must lie between 0 and 1, such as 0.9")
        if budget is not None and not 0 < budget < math.inf:
            raise UsageError(f"invert_budget={budget} must be a finite number more than 0, such as 4.0")
        check_numbers(self, positive=("invert_anchor_every",))
        if self.invert_capacity is not None and not 0 <= self.invert_capacity <= 1:
            raise UsageError(f"invert_capacity={self.invert_capacity} must lie from 0 to 1, such as 0.5")

    def check(self, dim: int, sublayers: int) -> None:
        """Warns where no sublayer would be gated; raises UsageError where the paper's start does not exist."""
        if sublayers < self.streams:
            warnings.warn(
                f"streams={self.streams} needs at least {self.streams} sublayers to gate; this model has {sublayers}, "
                "so every output becomes a stream and no gate is used",
                stacklevel=3,
            )
        elif self.gate_init == "paper":
            paper_gate_bias(self.streams, self.gate, sublayers)

    def open(self, x: Tensor) -> MultiGateState:
        """One stream: the embedding x (..., D)."""
        return _gathered(self, (self.state_tensor(x),))

    def pack(self, state: MultiGateState) -> tuple[Tensor, ...]:
        """The live streams, each (..., D), after the pending write.

        With memory="invert" this side's tape ends here: nothing takes its streams over, so they stay in it.
        """
        return tuple(_streams(state).unbind(0))

    def unpack(self, tensors: Sequence[Tensor], site: Site | Readout) -> MultiGateState:
        """The inverse of `pack`."""
        return _gathered(self, tuple(tensors))

    def make_site(self, index: int, dim: int, sublayers: int, **factory: Any) -> MultiGateSite:
        """Site `index`; the first n − 1 have no gate."""
        if self.memory == "invert":
            inversion.outside_compiler()
        start = None
        if index >= self.streams - 1:
            prenorm = self.gate_init == "prenorm"
            bias, number = (prenorm_gate_bias, index) if prenorm else (paper_gate_bias, sublayers)
            start = bias(self.streams, self.gate, number)
        pools = index > 0 and self.streams > 1
        return MultiGateSite(self, dim, pools=pools, gate_start=start, scale=1.0 / (index + 1), **factory)

    def make_readout(self, dim: int, sublayers: int, **factory: Any) -> MultiGateReadout:
        """The last pool."""
        return MultiGateReadout(self, dim, scale=1.0 / (sublayers + 1), **factory)


def paper_gate_bias(streams: int, gate: str, sublayers: int) -> float:
    """The bias at which, with zero queries, `β = σ(−3) √(21 / L)` for L gated sublayers.

    Source: arXiv 2605.23259 (the competitive form); solved for each gate by us.

    Raises:
        UsageError: the target lies outside what the gate can give; the depths that work are named.
    """
    gated = sublayers - (streams - 1)
    target = math.sqrt(gated / BASE_DEPTH) * (math.exp(-BASE_BIAS) + 1)
    argument = target - (streams if gate == "competitive" else 1)
    if argument <= 0:
        floor = streams if gate == "competitive" else 1
        needed = math.floor(BASE_DEPTH * (floor / (math.exp(-BASE_BIAS) + 1)) ** 2) + 1 + streams - 1
        raise UsageError(
            f"streams={streams} with gate={gate} has no start at {sublayers} sublayers: its gates would need to be "
            f"more than 1/{floor}; at least {needed} sublayers work, or fewer streams, or gate_init=prenorm"
        )
    return math.log(argument) if gate == "competitive" else -math.log(argument)


def prenorm_gate_bias(streams: int, gate: str, index: int) -> float:
    """The bias at which, with zero queries, the write of sublayer `index` keeps the mean of all sources. [ours]"""
    sources = index + 1
    return -math.log(sources) if gate == "independent" else math.log(sources + 1 - streams)


def _inverts(config: MultiGate, streams: Tensor) -> bool:
    return config.memory == "invert" and torch.is_grad_enabled() and not streams.is_meta


def _gathered(config: MultiGate, live: tuple[Tensor, ...]) -> MultiGateState:
    """The state of these streams: apart while fewer than n live, and from then on in one tensor."""
    if len(live) < config.streams:
        return MultiGateState(live)
    streams = torch.stack(live)
    tape = (inversion.run_opened(streams, live),) if _inverts(config, streams) else ()
    return MultiGateState((), (streams,), tape=tape)


def _step(
    config: MultiGate,
    state: MultiGateState,
    pool_query: Tensor | None,
    gate: tuple[Tensor, Tensor] | None,
    norm: NextNorm | None,
) -> tuple[Step, tuple[inversion.Tape, ...]]:
    """A read of n streams, normed where there is a norm, with gates where there is a gate; and the tape of the streams
    after it."""
    streams: Tensor = state.streams[0]
    if not _inverts(config, streams):
        made = multi_gate_step(streams, state.pending, pool_query, gate, kind=config.gate, eps=config.eps, norm=norm)
        return made, ()
    query, bias = gate or (None, None)
    parameters = Parameters(pool_query, query, bias, config.gate == "independent", config.eps)
    before = state.tape[0] if state.tape else None
    found: tuple[Any, ...] = inversion.run_step(streams, state.pending, before, parameters, config)
    new, read, gates, tape = found
    return Step(new, normed(read, norm), gates), (tape,)


def _streams(state: MultiGateState) -> Tensor:
    """The live streams (k, ..., D) after the pending write."""
    if not state.streams:
        return torch.stack(state.live)
    streams: Tensor = state.streams[0]
    if state.pending is None:
        return streams
    output, gates = state.pending
    wide = streams.to(gates.dtype)
    return torch.lerp(wide, output.to(wide.dtype).expand_as(wide), gates.unsqueeze(-1)).to(streams.dtype)


def _pool_live(live: tuple[Tensor, ...], query: Tensor | None, eps: float, norm: NextNorm | None) -> Tensor:
    if query is None and len(live) == 1:
        return normed(live[0], norm)
    return read_sources(live, *_as_direction(query, len(live)), eps, norm=norm)[0]


def _weights(streams: Tensor, query: Tensor | None, eps: float) -> Tensor:
    """The pool's weights, (..., k) in float32."""
    if streams.shape[0] == 1:
        return torch.ones_like(streams[0, ..., :1]).float()
    weights = depth_attention_weights(tuple(streams.unbind(0)), *_as_direction(query, streams.shape[0]), eps)
    return weights.movedim(0, -1).float()


def _as_direction(query: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """AttnPool as a depth attention: the query over √D, and a gain of one."""
    if query is None:
        raise UsageError(f"the first site met {count} streams; it must come first")
    return query * query.shape[0] ** -0.5, torch.ones_like(query)
