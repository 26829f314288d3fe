"""A step of Multi-Gate Residuals whose backward pass recomputes the streams instead of keeping them.

With S the streams before the flush, S' after it, F the pending output and β its gates,

    S'_i = S_i + β_i (F − S_i)        S_i = S'_i + β_i / (1 − β_i) (S'_i − F)

A step saves F, β and per-token scalars. S' reaches its backward pass through a `Slot`: whoever used S' later has its
backward pass first, recomputes S' and puts it there; then the step does the same for S. Each state of the streams has a
slot of its own, so streams never meet a step they don't belong to, however states branch. The chain begins at a step
that saves S whole. Errors grow by 1 / (1 − β) a step, so a step also saves the rows its caller names, and takes them in
place of what it recomputes. The forward pass and the gradients are those of the step that stores: lean, compiled or
triton, which this one calls with S and S'.

Source: arXiv 2605.23259 (inversion); which rows are kept, and how streams find their step, is ours.
Shapes: N streams, ... tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from leadline.choices import Backend
from leadline.errors import UsageError
from leadline.ops.body_math import gradient_like
from leadline.ops.choice import Implementation, chosen
from leadline.ops.multi_gate import compiled, lean
from leadline.ops.multi_gate.lean import flush
from leadline.ops.multi_gate.parts import Forward, Gradients, Parameters, Pending, Scalars, Upstream, pending_of
from leadline.ops.multi_gate.slots import InversionError, Slot
from leadline.ops.precision import no_autocast, wide

Check = Callable[[Tensor], None]
"""Takes the largest relative error seen in streams that were recomputed, a float32 or wider scalar."""


class Keep(NamedTuple):
    """What a step saves of the streams before it.

    Attributes:
        whole: all of them; `rows` then has no meaning.
        rows: (K,) int64, rows of the streams as (N · tokens, D); None for no row.
        apart: the same streams as N tensors (..., D) that are kept anyway, saved in their place; only without a
            pending write.
    """

    whole: bool = False
    rows: Tensor | None = None
    apart: tuple[Tensor, ...] = ()


def multi_gate_step_inverted(
    streams: Tensor,
    pending: tuple[Tensor, Tensor] | None,
    parameters: Parameters,
    *,
    before: Slot | None,
    keep: Keep,
    check: Check | None = None,
    hands_on: bool = True,
    backend: Backend = "auto",
) -> tuple[Tensor | None, Tensor, Tensor | None, Slot | None]:
    """As `leadline.ops.multi_gate_step`, with gradients by inversion.

    Args:
        before: the slot of `streams`; None where no step by inversion made them.
        keep: what to save of `streams`. Without a pending write there is nothing to invert: `whole` is needed.
        check: told how far the streams that were recomputed are from the true ones, where there is something to
            compare: in a step with `keep.apart`.
        hands_on: whether the streams after the write are wanted.
        backend: see `leadline.ops.choice`; "reference" means lean here, as its gradients are PyTorch's own.

    Returns:
        Streams after the write (None if they aren't wanted), h, β (None without a gate), and the slot of these streams
        (None if there is none).

    The backward pass runs once: a second one, and second derivatives, raise InversionError.

    Raises:
        UsageError: `keep` leaves nothing to find the streams by.
    """
    if not keep.whole and (pending is None or not hands_on):
        raise UsageError("a step with nothing to invert, or whose streams nobody takes over, keeps its streams whole")
    if before is not None:
        before.hand_over()
    chain = _Chain(before, check, whole=keep.whole, apart=keep.whole and len(keep.apart) > 0)
    *learned, independent, eps = parameters
    fixed = (chosen(backend, streams), independent, eps)
    tensors = (streams, *(pending or (None, None)), *learned)
    with no_autocast(streams):
        new, read, gates = _Step.apply(chain, keep, hands_on, fixed, *tensors)
    if not hands_on:
        return None, read, gates, None
    if new is None:
        return streams, read, gates, before
    # A step that saved all of S makes S' from it, and nobody else needs S'.
    chain.after = Slot(new, hold=new.requires_grad and not keep.whole)
    return new, read, gates, chain.after


def unflush(
    streams: Tensor, output: Tensor, beta: Tensor, rows: Tensor | None = None, values: Tensor | None = None
) -> Tensor:
    """S (N, ..., D) from S', in its dtype; `rows` of it, (K,), are `values` (K, D).

    For bfloat16 the rounding at the end is a gain: S was such a number, and for a small β mostly the nearest one.
    """
    x = streams.to(wide(streams.dtype))
    old = torch.addcmul(x, x - output.to(x.dtype), (beta / (1 - beta)).unsqueeze(-1)).to(streams.dtype)
    if rows is not None and values is not None:
        old.view(-1, old.shape[-1]).index_copy_(0, rows, values)
    return old


class _Chain:
    """A step's place among others: the slot before it, and, when the step is done, the slot of what it made.

    `whole` and `apart` say how it saves the streams before it: see `Keep`.
    """

    def __init__(self, before: Slot | None, check: Check | None, *, whole: bool, apart: bool) -> None:
        self.before, self.check, self.whole, self.apart = before, check, whole, apart
        self.after: Slot | None = None


_Fixed = tuple[Implementation, bool, float]
"""Which implementation, whether gates are independent, and eps."""


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, chain: _Chain, keep: Keep, hands_on: bool, fixed: _Fixed, *tensors: Any
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        implementation, independent, eps = fixed
        streams, output, beta, pool, gate, bias = tensors
        parameters = Parameters(pool, gate, bias, independent, eps)
        found, numbers = _forward(implementation, streams, pending_of(output, beta), parameters)
        kept: tuple[Tensor, ...] = ()
        if keep.whole:
            kept = tuple(part.detach() for part in keep.apart) or (streams,)
        elif keep.rows is not None:
            kept = (keep.rows, streams.reshape(-1, streams.shape[-1]).index_select(0, keep.rows))
        ctx.set_materialize_grads(False)
        ctx.chain, ctx.fixed, ctx.count = chain, fixed, len(numbers)
        ctx.save_for_backward(*tensors[1:], *numbers, *kept)
        return (found.streams if hands_on else None), found.read, found.scalars.gates

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.chain is None:
            raise InversionError(
                "memory='invert' lets the streams go in its backward pass, so a forward pass has one, with "
                "retain_graph too; add the losses up before it, or use memory='store'"
            )
        if torch.is_grad_enabled():
            raise InversionError(
                "memory='invert' has no second derivatives (create_graph=True); memory='store' with the backend "
                "'reference' has them"
            )
        chain, saved = ctx.chain, ctx.saved_tensors
        ctx.chain = None
        with no_autocast(next(tensor for tensor in saved if tensor is not None)):
            return None, None, None, None, *_backward(chain, ctx.fixed, ctx.count, saved, Upstream(*given))


def _forward(
    implementation: Implementation, streams: Tensor, pending: Pending | None, parameters: Parameters
) -> tuple[Forward, tuple[Tensor | None, ...]]:
    """What the step returns, and what `_gradients` takes of the implementation's own numbers."""
    if implementation == "triton":
        from leadline.ops.multi_gate.triton import forward

        found, stats = forward(streams, pending, parameters, keep=True)
        return found, (found.scalars.gates, stats)
    found = lean.forward(streams, pending, parameters, compile_bodies=implementation == "compiled")
    return found, found.scalars


def _backward(
    chain: _Chain, fixed: _Fixed, count: int, saved: Sequence[Any], given: Upstream
) -> tuple[Tensor | None, ...]:
    """The gradients of streams, output, β, pool query, gate query and bias."""
    implementation, independent, eps = fixed
    (output, beta, pool, gate, bias), numbers, kept = saved[:5], saved[5 : 5 + count], saved[5 + count :]
    pending, parameters = pending_of(output, beta), Parameters(pool, gate, bias, independent, eps)
    new, old, error = _known(chain, pending, kept)
    exact = old is not None
    found: Sequence[Tensor | None] = (None,) * 6
    used = any(grad is not None for grad in given)
    if used and old is None and not kept and implementation == "compiled":
        assert pending is not None
        old, found = compiled.backward_inverted(new, pending, parameters, Scalars(*numbers), given)
    else:
        if old is None:
            old = unflush(new, output, beta, *kept)
        if used:
            found = _gradients(implementation, old, new, pending, parameters, numbers, given)
    if chain.before is not None:
        error = _larger(error, chain.before.error)
        if chain.apart:
            chain.before.clear()
        else:
            chain.before.put(old, exact, error)
    if chain.check is not None and error is not None:
        chain.check(error)
    return tuple(map(gradient_like, found, (old, output, beta, pool, gate, bias)))


def _known(
    chain: _Chain, pending: Pending | None, kept: Sequence[Tensor]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """S'; S, unless it must be recomputed; and the largest error seen above. S' leaves its slot."""
    before, after = chain.before, chain.after
    error = None if after is None else after.error
    old: Tensor | None
    if chain.whole:
        old = torch.stack(tuple(kept)) if chain.apart else kept[0]
        new = old if pending is None else flush(old, *pending)
        compared = before if pending is None else after
        guess = None if compared is None else compared.recomputed()
        error = _larger(error, None if guess is None else _distance(guess, new))
    else:
        assert after is not None
        new, old = after.streams(), None if before is None else before.exact()
    if after is not None:
        after.clear()
    return new, old, error


def _gradients(
    implementation: Implementation,
    old: Tensor,
    new: Tensor,
    pending: Pending | None,
    parameters: Parameters,
    numbers: Sequence[Any],
    given: Upstream,
) -> Gradients:
    """The gradients of a step whose streams are all known."""
    if implementation == "triton":
        from leadline.ops.multi_gate.triton import backward

        gates, stats = numbers
        return backward(old, pending, parameters, gates, stats, given)
    if implementation == "compiled":
        return compiled.backward(old, pending, parameters, Scalars(*numbers), given)
    return lean.backward(old, None if pending is None else new, pending, parameters, Scalars(*numbers), given)


def _larger(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return a if b is None else b
    return torch.maximum(a, b)


def _distance(found: Tensor, true: Tensor) -> Tensor:
    dtype = wide(true.dtype)
    true = true.to(dtype)
    length = torch.linalg.vector_norm(true).clamp_min(torch.finfo(dtype).tiny)
    return torch.linalg.vector_norm(found.to(dtype) - true) / length
