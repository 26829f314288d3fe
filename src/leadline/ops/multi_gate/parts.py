"""What a step of Multi-Gate Residuals takes and returns, grouped. Shapes: S streams, ... tokens, D width."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Parameters(NamedTuple):
    """How streams are pooled and gates made.

    Attributes:
        pool_query: w_α, (D,); None where one stream is read as it is.
        gate_query, gate_bias: w_β, (D,), and b, (1,); None where no gates are made.
        independent: whether gates are; else they compete.
        eps: in the root mean square.
    """

    pool_query: Tensor | None
    gate_query: Tensor | None
    gate_bias: Tensor | None
    independent: bool
    eps: float


class Pending(NamedTuple):
    """A write that waits: the output (..., D) and its gates β (S, ...)."""

    output: Tensor
    beta: Tensor


class Scalars(NamedTuple):
    """The per-token scalars that a backward pass takes, (S, ...) or (S, N).

    Attributes:
        gates: made for the next write.
        rstd: the inverse RMS of each stream after the pending write.
        pool_score, gate_score: of each stream.
        norm_rstd: the inverse RMS (N) of a read that was normed.
    """

    gates: Tensor | None
    rstd: Tensor
    pool_score: Tensor | None
    gate_score: Tensor | None
    norm_rstd: Tensor | None = None


class Forward(NamedTuple):
    """What a forward pass returns: the streams (None where nothing was flushed), the read, and per-token scalars."""

    streams: Tensor | None
    read: Tensor
    scalars: Scalars


class Upstream(NamedTuple):
    """The gradients of what a step returned: streams (S, ..., D), read (..., D), gates (S, ...)."""

    streams: Tensor | None
    read: Tensor | None
    gates: Tensor | None


class Gradients(NamedTuple):
    """The gradients of what a step took."""

    streams: Tensor
    output: Tensor | None
    beta: Tensor | None
    pool_query: Tensor | None
    gate_query: Tensor | None
    gate_bias: Tensor | None
    norm_gain: Tensor | None = None


def pending_of(output: Tensor | None, beta: Tensor | None) -> Pending | None:
    """A write as an autograd function takes it, apart; None where nothing waits."""
    return None if output is None or beta is None else Pending(output, beta)
