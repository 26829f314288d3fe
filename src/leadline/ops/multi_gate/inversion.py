"""A step of Multi-Gate Residuals whose backward pass works the streams out anew instead of keeping them.

With S the streams before the flush, S' after it, F the pending output and β its gates,

    S'_i = S_i + β_i (F − S_i)        S_i = S'_i + β_i / (1 − β_i) (S'_i − F)

A step saves F, β and a few numbers a token. S' reaches its backward pass through a `Slot`: whoever used S' later has
its backward pass first, works S' out and puts it there; then the step does the same for S. Each state of the streams
has a slot of its own, so streams never meet a step they don't belong to, however states branch. The chain begins at a
step that saves S whole. Errors grow by 1 / (1 − β) a step, so a step also saves the rows its caller names, and takes
them in place of what it works out. The gradients are those of `leadline.ops.multi_gate.lean`.

Source: arXiv 2605.23259 (inversion); which rows are kept, and how streams find their step, is ours.
Shapes: N streams, ... tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from leadline.errors import UsageError
from leadline.ops.multi_gate.reference import gates_from
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


class Wanted(NamedTuple):
    """What a step makes: the streams after the write, and what is read from them."""

    streams: bool = True
    read: bool = True


EVERYTHING = Wanted()


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
    wanted: Wanted = EVERYTHING,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Slot | None]:
    """As `leadline.ops.multi_gate_step`, with gradients by inversion.

    Args:
        before: the slot of `streams`; None where no step by inversion made them.
        keep: what to save of `streams`. Without a pending write there is nothing to invert: `whole` is needed.
        check: told how far the streams that were worked out are from the true ones, where there is something to
            compare: in a step with `keep.apart`.
        wanted: what to make.

    Returns:
        Streams after the write, h and β, each None if it isn't wanted; and the slot of these streams, if there is one.

    The backward pass runs once: a second one, and second derivatives, raise InversionError.

    Raises:
        UsageError: `keep` leaves nothing to find the streams by.
    """
    if not keep.whole and (pending is None or not wanted.streams):
        raise UsageError("a step with nothing to invert, or whose streams nobody takes over, keeps its streams whole")
    output, beta = pending if pending is not None else (None, None)
    query, bias = gate if gate is not None else (None, None)
    if before is not None:
        before.hand_over()
    after = _Later()
    with no_autocast(streams):
        new, read, gates = _Step.apply(
            streams, output, beta, pool_query, query, bias, kind, eps, before, after, keep, check, wanted
        )
    if not wanted.streams:
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


def unflush(streams: Tensor, output: Tensor, beta: Tensor, rows: Tensor | None, values: Tensor | None) -> Tensor:
    """S (N, ..., D) from S', in its dtype; `rows` of it, (K,), are `values` (K, D).

    For bfloat16 the rounding at the end is a gain: S was such a number, and for a small β mostly the nearest one.
    """
    x = streams.to(wide(streams.dtype))
    odds = beta / (1 - beta)
    if rows is not None:
        odds = odds.flatten().index_fill(0, rows, 0.0).view(beta.shape)
    old = torch.addcmul(x, x - output.to(x.dtype), odds.unsqueeze(-1)).to(streams.dtype)
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
        kind: str,
        eps: float,
        before: Slot | None,
        after: _Later,
        keep: Keep,
        check: Check | None,
        wanted: Wanted,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        new = streams if output is None or beta is None else flush(streams, output, beta)
        read, gates, root, score = None, None, None, None
        if wanted.read:
            read, gates, root, score = _read(new, pool_query, gate_query, gate_bias, kind, eps)
        kept: tuple[Tensor, ...] = ()
        if keep.whole:
            kept = tuple(part.detach() for part in keep.apart) or (streams,)
        elif keep.rows is not None:
            kept = (keep.rows, streams.reshape(-1, streams.shape[-1]).index_select(0, keep.rows))
        ctx.set_materialize_grads(False)
        ctx.before, ctx.after, ctx.check, ctx.used = before, after, check, False
        ctx.whole, ctx.apart = keep.whole, keep.whole and len(keep.apart) > 0
        ctx.independent = kind == "independent"
        ctx.save_for_backward(output, beta, pool_query, gate_query, gate_bias, gates, root, score, *kept)
        return (new if wanted.streams and output is not None else None), read, gates

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
            return (*_backward(ctx, saved, (dstreams, dread, dgates)), *(None,) * 7)


def _backward(
    ctx: Any, saved: Sequence[Any], given: tuple[Tensor | None, Tensor | None, Tensor | None]
) -> tuple[Tensor | None, ...]:
    """The gradients of streams, output, β, pool query, gate query and bias."""
    output, beta, pool_query, gate_query, gate_bias, gates, root, score, *kept = saved
    new, old = _streams_again(ctx, output, beta, kept)
    if all(g is None for g in given):
        return (None,) * 6
    total, dpool, dgate, dbias = _gradients(new, root, score, pool_query, gate_query, gates, *given, ctx.independent)
    doutput, dbeta = None, None
    if output is not None and beta is not None:
        total, doutput, dbeta = _write_gradients(total, old, output, beta)
    if gate_bias is not None and dbias is not None:
        dbias = dbias.to(gate_bias.dtype).reshape(gate_bias.shape)
    return total.to(new.dtype), doutput, dbeta, dpool, dgate, dbias


def _streams_again(ctx: Any, output: Tensor | None, beta: Tensor | None, kept: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The streams after the step and before it. Those before are put where the step before finds them."""
    before, after = ctx.before, ctx.after.slot
    ctx.before = ctx.after = None
    error = None if after is None else after.error
    if not ctx.whole:
        new = after.streams()
        old = None if before is None else before.exact()
        exact = old is not None
        if old is None:
            assert output is not None
            assert beta is not None
            old = unflush(new, output, beta, *(kept or (None, None)))
    else:
        exact = True
        old = torch.stack(kept) if ctx.apart else kept[0]
        new = old if output is None or beta is None else flush(old, output, beta)
        compared = before if output is None else after
        guess = None if compared is None else compared.worked_out()
        error = _larger(error, None if guess is None else _distance(guess, new))
    if after is not None:
        after.clear()
    if before is not None:
        error = _larger(error, before.error)
        if ctx.apart or not ctx.needs_input_grad[0]:
            before.clear()
        else:
            before.put(old, exact, error)
    if ctx.check is not None and error is not None:
        ctx.check(error)
    return new, old


def _larger(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return a if b is None else b
    return torch.maximum(a, b)


def _distance(found: Tensor, true: Tensor) -> Tensor:
    dtype = wide(true.dtype)
    true = true.to(dtype)
    length = torch.linalg.vector_norm(true).clamp_min(torch.finfo(dtype).tiny)
    return torch.linalg.vector_norm(found.to(dtype) - true) / length


def _read(
    streams: Tensor,
    pool_query: Tensor | None,
    gate_query: Tensor | None,
    gate_bias: Tensor | None,
    kind: str,
    eps: float,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """h and β; roots (N, ...) and scores (queries, N, ...)."""
    x = streams.to(wide(streams.dtype))
    dim = x.shape[-1]
    root = (torch.linalg.vector_norm(x, dim=-1).square() / dim + eps).rsqrt()
    queries = [query.to(x.dtype) for query in (pool_query, gate_query) if query is not None]
    score = root.new_empty((0, *root.shape))
    if queries:
        products = torch.mm(torch.stack(queries), x.reshape(-1, dim).t())
        score = products.view(len(queries), *root.shape).mul_(root * dim**-0.5)
    read = streams[0].clone() if pool_query is None else _weighted(x, score[0].softmax(dim=0)).to(streams.dtype)
    return read, None if gate_bias is None else gates_from(score[-1], gate_bias, kind), root, score


def _weighted(x: Tensor, weight: Tensor) -> Tensor:
    """`Σ_i weight_i x_i` for x (N, ..., D) and weight (N, ...)."""
    total = x[0] * weight[0].unsqueeze(-1)
    for i in range(1, x.shape[0]):
        total.addcmul_(x[i], weight[i].unsqueeze(-1))
    return total


def _gradients(
    streams: Tensor,
    root: Tensor | None,
    score: Tensor | None,
    pool_query: Tensor | None,
    gate_query: Tensor | None,
    gates: Tensor | None,
    dstreams: Tensor | None,
    dread: Tensor | None,
    dgates: Tensor | None,
    independent: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Of the streams read, in float32 or wider; of both queries and of the bias, (1,)."""
    dtype = wide(streams.dtype)
    x, dim = streams.to(dtype), streams.shape[-1]
    total = None if dstreams is None else dstreams.to(dtype)
    dscores: list[Tensor] = []
    dbias = None
    if pool_query is None and dread is not None:
        total = dread.to(dtype).unsqueeze(0) if total is None else total + dread.to(dtype)
    if pool_query is not None and score is not None:
        weight = score[0].softmax(dim=0)
        if dread is None:
            dscores.append(torch.zeros_like(weight))
        else:
            do = dread.to(dtype)
            products = (x * do).sum(dim=-1)
            dscores.append(weight * (products - (weight * products).sum(dim=0)))
            share, do = weight.unsqueeze(-1), do.expand_as(x)
            total = do * share if total is None else torch.addcmul(total, do, share)
    if gate_query is not None and gates is not None:
        dz, dbias = _gate_gradients(gates, dgates, independent)
        dscores.append(dz)
    total = torch.zeros_like(x) if total is None else total
    if not dscores or root is None or score is None:
        return total, None, None, None
    dscore = torch.stack(dscores)
    queries = [query for query in (pool_query, gate_query) if query is not None]
    along = (dscore * (root * dim**-0.5)).flatten(start_dim=1)
    back = (dscore * score).sum(dim=0).mul_(root.square()).div_(-dim)
    directions = torch.stack([query.to(dtype) for query in queries])
    total = torch.addmm(total.reshape(-1, dim), along.t(), directions).view(x.shape).addcmul_(x, back.unsqueeze(-1))
    found = [g.to(q.dtype) for g, q in zip(torch.mm(along, x.reshape(-1, dim)).unbind(0), queries, strict=True)]
    dpool = found.pop(0) if pool_query is not None else None
    return total, dpool, found.pop(0) if gate_query is not None else None, dbias


def _gate_gradients(gates: Tensor, dgates: Tensor | None, independent: bool) -> tuple[Tensor, Tensor]:
    """Of the gates' scores, (N, ...), and of the bias, (1,)."""
    if dgates is None:
        return torch.zeros_like(gates), gates.new_zeros(1)
    if independent:
        dz = dgates * gates * (1 - gates)
        return dz, dz.sum().reshape(1)
    pull = (gates * dgates).sum(dim=0)
    return gates * (dgates - pull), -((1 - gates.sum(dim=0)) * pull).sum().reshape(1)


def _write_gradients(total: Tensor, old: Tensor, output: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of S, F and β, from the whole gradient at S'."""
    dbeta = (output.to(total.dtype) - old.to(total.dtype)).mul_(total).sum(dim=-1)
    doutput = _weighted(total, beta).to(output.dtype)
    return torch.addcmul(total, total, beta.unsqueeze(-1), value=-1.0), doutput, dbeta
