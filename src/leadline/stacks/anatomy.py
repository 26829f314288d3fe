"""What a block of somebody else's model is made of, found by structure and by one forward pass on a few tokens.

A block has children. Attention is the child that mixes tokens: it takes a mask or a cache, or has projections to
queries, keys and values. The MLP is the other children with matrices. Which module's output joins the residual stream,
and times what, is found by numbers: `after = before + f_a a + f_m m`, where a and m can be the output of the child, of
a norm or a dropout behind it, or of the last matrix inside it. [ours]

Shapes: B batch, T time, D width.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leadline.errors import UsageError

MIXING_ARGUMENTS = frozenset(
    {
        "attention_mask",
        "past_key_values",
        "past_key_value",
        "layer_past",
        "cache",
        "cache_params",
        "position_embeddings",
    }
)
"""Arguments that modules take which mix tokens, and no others."""

PROJECTIONS = frozenset(
    {"q_proj", "c_attn", "query_key_value", "qkv_proj", "qkv", "Wqkv", "query", "q_lin", "wq", "in_proj_weight"}
)
"""What projections to queries are called, for attention that takes nothing but the hidden states."""

ROUNDINGS = 8
"""Additions in a block that a sum may be off by, in units of the dtype's precision."""


class Join(NamedTuple):
    """A module whose output joins the stream.

    Attributes:
        module: the module.
        factor: what the block multiplies its output by; 1 in most models.
        overwritten: whether the block adds to that output in place, so that whoever keeps it needs a copy.
    """

    module: nn.Module
    factor: float
    overwritten: bool


class Sublayer(NamedTuple):
    """One sublayer of a block.

    Attributes:
        name: "attention" or "mlp".
        parts: the block's children that it alone consists of, by name: itself, its norms.
        joins: what of it joins the stream: one module, or several that are summed (shared experts).
        norm: what stands before it; None where nothing does.
    """

    name: str
    parts: tuple[str, ...]
    joins: tuple[Join, ...]
    norm: nn.Module | None


class Anatomy(NamedTuple):
    """What a block is made of.

    Attributes:
        sublayers: in the order in which they run.
        additive: whether the block leaves its input plus its sublayers' outputs.
        width: D.
        returns: how many things the block returns in a tuple; None where it returns the tensor itself.
        overwrites: whether the block adds to its input in place, so that whoever keeps it needs a copy.
    """

    sublayers: tuple[Sublayer, ...]
    additive: bool
    width: int
    returns: int | None
    overwrites: bool = False

    def wrapped(self, hidden: Tensor) -> Any:
        """`hidden` as the block would return it."""
        return hidden if self.returns is None else (hidden, *(None,) * (self.returns - 1))


def is_attention(module: nn.Module) -> bool:
    """Whether a module, or something in it, mixes tokens."""
    for part in module.modules():
        names = {name for name, _ in part.named_children()} | {name for name, _ in part.named_parameters(recurse=False)}
        if names & PROJECTIONS or MIXING_ARGUMENTS & inspect.signature(part.forward).parameters.keys():
            return True
    return False


def has_matrices(module: nn.Module) -> bool:
    """Whether something in it is more than a vector."""
    return any(parameter.dim() >= 2 for parameter in module.parameters())


def first_tensor(value: Any) -> Tensor | None:
    """A tensor, or the first in a tuple or list."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (tuple, list)):
        return next((item for item in value if isinstance(item, Tensor)), None)
    return None


def hidden_of(args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """The hidden states among a block's arguments: the first tensor, by position or by name.

    Raises:
        UsageError: there is none.
    """
    for value in (*args, kwargs.get("hidden_states"), *kwargs.values()):
        if isinstance(value, Tensor):
            return value
    raise UsageError(
        "what goes from block to block in this model is not a tensor, so it can't be measured as a stack of blocks; "
        "`leadline.probes.record` and `removal` measure models that read and write through Leadline's sites"
    )


class _Call(NamedTuple):
    """A module of a block was called: where its input and output lie, and what the output was, (B, T, D)."""

    path: str
    module: nn.Module
    takes: int | None
    output: Tensor
    value: Tensor | None

    @property
    def returns(self) -> int:
        return self.output.data_ptr()

    @property
    def overwritten(self) -> bool:
        return self.value is not None and not torch.equal(self.output.view(self.value.shape), self.value)


class Trace:
    """Records the calls inside one block at a time, and reports the block's anatomy when it ends, if it has one."""

    def __init__(self, block: nn.Module, ended: Callable[[Anatomy | None], None]) -> None:
        self.block = block
        self.ended = ended
        self._calls: list[_Call] = []
        self._input: Tensor | None = None
        self._before: Tensor | None = None
        self._alive: list[Tensor] = []

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Hooks into the block until the context ends."""
        with contextlib.ExitStack() as stack:
            for path, module in self.block.named_modules():
                if path:
                    hook = module.register_forward_hook(self._on_call(path), with_kwargs=True)
                    stack.callback(hook.remove)
            stack.callback(self.block.register_forward_pre_hook(self._on_start, with_kwargs=True).remove)
            stack.callback(self.block.register_forward_hook(self._on_end).remove)
            yield

    def _on_start(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self._input = hidden_of(args, kwargs)
        self._before = self._input.clone()

    def _on_call(self, path: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            before, given = self._before, first_tensor(output)
            taken = first_tensor([*args, kwargs.get("hidden_states"), *kwargs.values()])
            if before is None or given is None:
                return
            # Kept, so that no other tensor comes to lie where one of these lay.
            self._alive += [] if taken is None else [taken]
            fits = given.numel() == before.numel() and given.shape[-1] == before.shape[-1]
            value = given.detach().clone().reshape(before.shape) if fits else None
            takes = None if taken is None else taken.data_ptr()
            self._calls.append(_Call(path, module, takes, given, value))

        return hook

    def _on_end(self, module: nn.Module, args: Any, output: Any) -> None:
        after, anatomy = first_tensor(output), None
        if self._input is not None and self._before is not None and after is not None:
            returns = None if isinstance(output, Tensor) else len(output)
            found = _anatomy(self.block, self._calls, self._before, after, returns)
            anatomy = found._replace(overwrites=not torch.equal(self._input, self._before))
        self.ended(anatomy)
        self._input, self._before, self._calls, self._alive = None, None, [], []


def _anatomy(block: nn.Module, calls: list[_Call], before: Tensor, after: Tensor, returns: int | None) -> Anatomy:
    children = [call for call in calls if "." not in call.path]
    times = Counter(call.module for call in children)
    groups: dict[str, list[_Call]] = {}
    plain: list[_Call] = []
    for call in children:
        if is_attention(call.module):
            groups.setdefault("attention", []).append(call)
        elif has_matrices(call.module):
            groups.setdefault("mlp", []).append(call)
        elif times[call.module] == 1:  # a dropout that serves both sublayers belongs to neither
            plain.append(call)
    norms = {name: _norm_before(group[0], plain) for name, group in groups.items()}
    behind = [call for call in plain if call not in norms.values()]
    ends = [(name, end, _behind(end, behind)) for name, group in groups.items() for end in _ends(group)]
    chosen, factors, additive = _fit(before, after, [_candidates(end, chain, calls) for _, end, chain in ends])
    if chosen is None:
        chosen, factors = [(chain or [end])[-1] for _, end, chain in ends], [1.0] * len(ends)
    joins = [
        (name, Join(call.module, factor, call.overwritten))
        for (name, *_), call, factor in zip(ends, chosen, factors, strict=True)
    ]
    sublayers = []
    for name, group in groups.items():
        norm = norms[name]
        own = [norm] if norm is not None and list(norms.values()).count(norm) == 1 else []
        chains = [call for owner, _, chain in ends if owner == name for call in chain]
        parts = tuple(dict.fromkeys(call.path for call in [*own, *group, *chains]))
        joining = tuple(join for owner, join in joins if owner == name)
        sublayers.append(Sublayer(name, parts, joining, None if norm is None else norm.module))
    return Anatomy(tuple(sublayers), additive, before.shape[-1], returns)


def _ends(group: list[_Call]) -> list[_Call]:
    """Of a sublayer's children those that return hidden states: not the first matrix of an MLP without a module."""
    return [call for call in group if call.value is not None] or group[-1:]


def _norm_before(first: _Call, plain: list[_Call]) -> _Call | None:
    """The last module without matrices whose output is what a sublayer takes."""
    found = [call for call in plain if call.returns == first.takes != call.takes]
    return found[-1] if found else None


def _behind(last: _Call, plain: list[_Call]) -> list[_Call]:
    """The modules without matrices that take a sublayer's output, one after the other."""
    chain: list[_Call] = []
    given = last.returns
    for call in plain:
        if call.takes is not None and call.takes == given:
            chain.append(call)
            given = call.returns
    return chain


def _candidates(end: _Call, chain: list[_Call], calls: list[_Call]) -> list[_Call]:
    """What could join the stream, the likeliest first: what stands last, then what lies inside."""
    inside = [
        call
        for call in calls
        if call.path.startswith(f"{end.path}.")
        and any(parameter.dim() >= 2 for parameter in call.module.parameters(recurse=False))
    ]
    return [call for call in [*reversed(chain), end, *reversed(inside)] if call.value is not None]


def _fit(before: Tensor, after: Tensor, candidates: list[list[_Call]]) -> tuple[list[_Call] | None, list[float], bool]:
    """The candidates whose weighted sum is `after - before`, their weights, and whether there is such a sum."""
    if not candidates or not all(candidates) or before.shape != after.shape:
        return None, [], False
    start, end = (tensor.cpu().double().flatten() for tensor in (before, after))
    if not bool((end - start).isfinite().all()):  # nothing can be fitted to it
        return None, [], False
    rounding = ROUNDINGS * torch.finfo(after.dtype).eps
    best: tuple[float, float, list[_Call], list[float]] | None = None
    for chosen in itertools.product(*candidates):
        values = [call.value.cpu().double().flatten() for call in chosen if call.value is not None]
        error, factors = _weights(end - start, torch.stack(values, dim=1))
        if best is None or not math.isfinite(best[0]) or error < 0.9 * best[0]:
            size = float(start.norm() + end.norm() + sum(value.norm() for value in values))
            best = (error, size, list(chosen), factors)
    assert best is not None
    error, size, found, factors = best
    return (found, factors, True) if error <= rounding * size else (None, [], False)


def _weights(change: Tensor, columns: Tensor) -> tuple[float, list[float]]:
    """How near weighted columns (N, K) come to `change` (N), and the weights: ones where others are no better."""
    ones = float((change - columns.sum(dim=1)).norm())
    if not math.isfinite(ones):  # a candidate that overflows is none
        return ones, [1.0] * columns.shape[1]
    weights = torch.linalg.lstsq(columns, change.unsqueeze(1)).solution.squeeze(1)
    error = float((change - columns @ weights).norm())
    if ones <= 2 * error + 1e-7 * float(change.norm() + columns.norm()):
        return ones, [1.0] * columns.shape[1]
    return error, [float(weight) for weight in weights]
