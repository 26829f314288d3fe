"""One step of Multi-Gate Residuals (arXiv 2605.23259): flush the pending write, pool, make the next gates."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from leadline.choices import Backend
from leadline.errors import UsageError
from leadline.ops.choice import chosen
from leadline.ops.multi_gate.lean import multi_gate_step_lean
from leadline.ops.multi_gate.parts import Parameters, Pending
from leadline.ops.multi_gate.reference import multi_gate_step_reference
from leadline.ops.next_norm import NextNorm, normed
from leadline.ops.precision import no_autocast

__all__ = ["GateKind", "Step", "multi_gate_step"]

GateKind = Literal["competitive", "independent"]


class Step(NamedTuple):
    """What a step returns.

    Attributes:
        streams: (N, ..., D) after the pending write.
        read: h, (..., D).
        gates: β for the next write, (N, ...) in float32 or wider; None without a gate.
    """

    streams: Tensor
    read: Tensor
    gates: Tensor | None


def multi_gate_step(
    streams: Tensor,
    pending: tuple[Tensor, Tensor] | None,
    pool_query: Tensor | None,
    gate: tuple[Tensor, Tensor] | None,
    *,
    kind: GateKind,
    eps: float,
    norm: NextNorm | None = None,
    backend: Backend = "auto",
) -> Step:
    """Flush, read and gate in one operator.

        s_i ← s_i + β_i (F − s_i)                                       the pending write
        h = Σ_i softmax_i(w_α · rms(s_i) / √D) s_i                        AttnPool
        z_i = w_β · rms(s_i) / √D;  β = σ(z + b)  or  softmax([b, z])[1:]   independent, competitive

    Args:
        streams: s, (N, ..., D).
        pending: F, (..., D) in the streams' dtype, and its β, (N, ...); None where nothing waits.
        pool_query: w_α, (D,); None only where N = 1, and h is the stream.
        gate: w_β, (D,), and b, (1,); None makes no gates.
        kind: how scores become gates.
        eps: in `rms(x) = x / sqrt(mean x² + eps)`.
        norm: the step returns the norm of h in place of h. Backend compiled folds it into the step.
        backend: see `leadline.ops.choice`.

    Raises:
        UsageError: an unknown gate, several streams without a pool query, or a backend that can't run here.
    """
    if kind not in ("competitive", "independent"):
        raise UsageError(f"gate={kind!r} is not known; competitive and independent work")
    if pool_query is None and streams.shape[0] != 1:
        raise UsageError(f"{streams.shape[0]} streams need a pool query")
    implementation = chosen(backend, streams)
    write = None if pending is None else Pending(*pending)
    query, bias = gate or (None, None)
    parameters = Parameters(pool_query, query, bias, kind == "independent", eps)
    with no_autocast(streams):
        arguments = (streams, write, parameters)
        if implementation in ("lean", "compiled"):
            return Step(*multi_gate_step_lean(*arguments, norm, implementation == "compiled"))
        if implementation == "reference":
            step = Step(*multi_gate_step_reference(*arguments))
        else:
            from leadline.ops.multi_gate.triton import multi_gate_step_triton

            step = Step(*multi_gate_step_triton(*arguments))
        return step._replace(read=normed(step.read, norm))
