"""A step of Multi-Gate Residuals whose backward pass works the streams out anew instead of keeping them.

With S the streams before the flush, S' after it, F the pending output and β its gates,

    S'_i = S_i + β_i (F − S_i)        S_i = S'_i + β_i / (1 − β_i) (S'_i − F)

A step saves F, β and a few numbers a token. S' reaches its backward pass through a `Slot`: whoever used S' later has
its backward pass first, works S' out and puts it there; then the step does the same for S. Each state of the streams
has a slot of its own, so streams never meet a step they don't belong to, however states branch. The chain begins at a
step that saves S whole. Errors grow by 1 / (1 − β) a step, so a step also saves the rows its caller names, and takes
them in place of what it works out. The forward pass and the gradients are those of the step that stores: lean,
compiled or triton, to which this one hands S and S'.

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
from leadline.ops.bodies import run
from leadline.ops.choice import Implementation, chosen
from leadline.ops.multi_gate import compiled, lean
from leadline.ops.multi_gate.slots import InversionError, Slot
from leadline.ops.precision import no_autocast, wide

Check = Callable[[Tensor], None]
"""Takes the largest relative error seen in streams that were worked out, a float32 or wider scalar."""


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
    pool_query: Tensor | None,
    gate: tuple[Tensor, Tensor] | None,
    kind: str,
    eps: float,
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
        check: told how far the streams that were worked out are from the true ones, where there is something to
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
    output, beta = pending if pending is not None else (None, None)
    query, bias = gate if gate is not None else (None, None)
    if before is not None:
        before.hand_over()
    after = _Later()
    with no_autocast(streams):
        new, read, gates = _Step.apply(
            streams,
            output,
            beta,
            pool_query,
            query,
            bias,
            kind == "independent",
            eps,
            before,
            after,
            keep,
            check,
            hands_on,
            chosen(backend, streams),
        )
    if not hands_on:
        return None, read, gates, None
    if new is None:
        return streams, read, gates, before
    # A step that saved all of S works S' out from it, and nobody else needs S'.
    after.slot = Slot(new, hold=new.requires_grad and not keep.whole)
    return new, read, gates, after.slot


def flush(streams: Tensor, output: Tensor, beta: Tensor) -> Tensor:
    """S' (N, ..., D) in S's dtype; worked out in float32 or wider and rounded once."""
    x = streams.to(wide(streams.dtype))
    return torch.lerp(x, output.to(x.dtype).unsqueeze(0).expand_as(x), beta.unsqueeze(-1)).to(streams.dtype)


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


class _Later:
    """The slot of what a step makes; it comes to be when the step is done."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot: Slot | None = None


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        streams: Tensor,
        output: Tensor | None,
        beta: Tensor | None,
        pool_query: Tensor | None,
        gate_query: Tensor | None,
        gate_bias: Tensor | None,
        independent: bool,
        eps: float,
        before: Slot | None,
        after: _Later,
        keep: Keep,
        check: Check | None,
        hands_on: bool,
        implementation: Implementation,
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        parts = (streams, output, beta, pool_query, gate_query, gate_bias, independent, eps)
        new, read, gates, numbers = _forward(implementation, *parts)
        kept: tuple[Tensor, ...] = ()
        if keep.whole:
            kept = tuple(part.detach() for part in keep.apart) or (streams,)
        elif keep.rows is not None:
            kept = (keep.rows, streams.reshape(-1, streams.shape[-1]).index_select(0, keep.rows))
        ctx.set_materialize_grads(False)
        ctx.before, ctx.after, ctx.check, ctx.used = before, after, check, False
        ctx.whole, ctx.apart = keep.whole, keep.whole and len(keep.apart) > 0
        ctx.independent, ctx.implementation, ctx.numbers = independent, implementation, len(numbers)
        ctx.save_for_backward(output, beta, pool_query, gate_query, gate_bias, gates, *numbers, *kept)
        return (new if hands_on else None), read, gates

    @staticmethod
    def backward(
        ctx: Any, dstreams: Tensor | None, dread: Tensor | None, dgates: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        if ctx.used:
            raise InversionError(
                "memory='invert' lets the streams go in its backward pass, so a forward pass has one, with "
                "retain_graph too; add the losses up before it, or use memory='store'"
            )
        if torch.is_grad_enabled():
            raise InversionError(
                "memory='invert' has no second derivatives (create_graph=True); memory='store' with the backend "
                "'reference' has them"
            )
        ctx.used = True
        saved = ctx.saved_tensors
        with no_autocast(next(tensor for tensor in saved if tensor is not None)):
            return (*_backward(ctx, saved, (dstreams, dread, dgates)), *(None,) * 8)


def _forward(
    implementation: Implementation,
    streams: Tensor,
    output: Tensor | None,
    beta: Tensor | None,
    pool_query: Tensor | None,
    gate_query: Tensor | None,
    gate_bias: Tensor | None,
    independent: bool,
    eps: float,
) -> tuple[Tensor | None, Tensor, Tensor | None, tuple[Tensor | None, ...]]:
    """S' (None where nothing was flushed), h, β, and what `_gradients` needs of the implementation's own numbers."""
    parts = (streams, output, beta, pool_query, gate_query, gate_bias, independent, eps)
    if implementation == "triton":
        from leadline.ops.multi_gate.triton import step

        new, read, gates, stats = step(*parts, keep=True)
        return (None if output is None else new), read, (None if gate_query is None else gates), (stats,)
    found = lean.forward(*parts, implementation == "compiled")
    return found.streams, found.read, found.gates, (found.root, found.pool_score, found.gate_score)


Given = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Upstream gradients of S', h and β."""


def _backward(ctx: Any, saved: Sequence[Any], given: Given) -> tuple[Tensor | None, ...]:
    """The gradients of streams, output, β, pool query, gate query and bias."""
    output, beta, pool_query, gate_query, gate_bias, gates = saved[:6]
    numbers, kept = saved[6 : 6 + ctx.numbers], saved[6 + ctx.numbers :]
    before, after = ctx.before, ctx.after.slot
    ctx.before = ctx.after = None
    new, old, error = _known(ctx, before, after, output, beta, kept)
    exact = old is not None
    parts = (output, beta, pool_query, gate_query, gates, *numbers)
    found: Sequence[Tensor | None] = (None,) * 6
    if all(grad is None for grad in given):
        old = unflush(new, output, beta, *kept) if old is None else old
    elif old is None and not kept and ctx.implementation == "compiled":
        old, *found = _compiled_gradients(new, parts, given, ctx.independent)
    else:
        old = unflush(new, output, beta, *kept) if old is None else old
        found = _gradients(ctx.implementation, old, new, parts, given, ctx.independent)
    if before is not None:
        error = _larger(error, before.error)
        if ctx.apart:
            before.clear()
        else:
            before.put(old, exact, error)
    if ctx.check is not None and error is not None:
        ctx.check(error)
    leaves = (old, output, beta, pool_query, gate_query, gate_bias)
    return tuple(_like(grad, leaf) for grad, leaf in zip(found, leaves, strict=True))


def _like(grad: Tensor | None, leaf: Tensor | None) -> Tensor | None:
    """A missing gradient of something that is there is zero."""
    if leaf is None:
        return None
    return torch.zeros_like(leaf) if grad is None else grad.to(leaf.dtype).reshape(leaf.shape)


def _known(
    ctx: Any,
    before: Slot | None,
    after: Slot | None,
    output: Tensor | None,
    beta: Tensor | None,
    kept: Sequence[Tensor],
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """S'; S, unless it must be worked out; and the largest error seen above. S' leaves its slot."""
    error = None if after is None else after.error
    old: Tensor | None
    if ctx.whole:
        old = torch.stack(tuple(kept)) if ctx.apart else kept[0]
        new = old if output is None or beta is None else flush(old, output, beta)
        compared = before if output is None else after
        guess = None if compared is None else compared.worked_out()
        error = _larger(error, None if guess is None else _distance(guess, new))
    else:
        assert after is not None
        new, old = after.streams(), None if before is None else before.exact()
    if after is not None:
        after.clear()
    return new, old, error


def _gradients(
    implementation: Implementation, old: Tensor, new: Tensor, parts: Sequence[Any], given: Given, independent: bool
) -> Sequence[Tensor | None]:
    """The gradients of a step whose streams are all known."""
    output, beta, pool_query, gate_query, gates, *numbers = parts
    if implementation == "triton":
        from leadline.ops.multi_gate.triton import step_gradients

        found = step_gradients(old, output, beta, pool_query, gate_query, gates, *numbers, *given, independent)
        return [None if grad.numel() == 0 and old.numel() > 0 else grad for grad in found]
    flat = (*_flat(old, None if output is None else new, parts, given), independent)
    if implementation == "compiled":
        return compiled.backward(flat[0], *flat[2:])[:-1]
    return lean.plain_backward(*flat)


def _compiled_gradients(new: Tensor, parts: Sequence[Any], given: Given, independent: bool) -> Sequence[Any]:
    """S and the gradients, in one compiled loop over tokens."""
    _, *flat = _flat(new, new, parts, given)
    rows = new.reshape(new.shape[0], -1, new.shape[-1]).unbind(0)
    old, *found = run(_unflush_body, rows, *flat[1:], independent)
    return old.view(new.shape), *compiled.summed(found)


def _unflush_body(new: Sequence[Tensor], output: Tensor, beta: Tensor, *parts: Any) -> tuple[Tensor | None, ...]:
    dtype = torch.promote_types(new[0].dtype, torch.float32)
    odds, wide_output = beta / (1 - beta), output.to(dtype)
    rows = [row.to(dtype) for row in new]
    old = [(row + o.unsqueeze(-1) * (row - wide_output)).to(new[0].dtype) for row, o in zip(rows, odds, strict=True)]
    *head, dstreams, dread, dgates, independent = parts
    given = (None if dstreams is None else dstreams.unbind(0), dread, dgates)
    gradients: Callable[..., tuple[Tensor | None, ...]] = compiled.backward_body
    return torch.stack(old), *gradients(old, new, output, beta, *head, *given, independent)


def _flat(old: Tensor, new: Tensor | None, parts: Sequence[Any], given: Given) -> tuple[Any, ...]:
    """All arguments of a backward body, with the tokens in one dimension."""
    count, dim = old.shape[0], old.shape[-1]
    output, beta, pool_query, gate_query, gates, *numbers = parts
    dstreams, dread, dgates = given

    def rows(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.reshape(count, -1, dim)

    def row(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.reshape(-1, dim)

    def scalars(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.reshape(count, -1)

    queries = (pool_query, gate_query)
    upstream = (rows(dstreams), row(dread), scalars(dgates))
    return rows(old), rows(new), row(output), scalars(beta), *queries, scalars(gates), *numbers, *upstream


def _larger(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return a if b is None else b
    return torch.maximum(a, b)


def _distance(found: Tensor, true: Tensor) -> Tensor:
    dtype = wide(true.dtype)
    true = true.to(dtype)
    length = torch.linalg.vector_norm(true).clamp_min(torch.finfo(dtype).tiny)
    return torch.linalg.vector_norm(found.to(dtype) - true) / length
