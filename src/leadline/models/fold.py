"""A stack of any sublayers on a connection: for models that aren't Leadline's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leadline.connections.base import Depth, Site, name_of
from leadline.errors import UsageError


def fold(depth: Depth, x: Tensor, sublayers: Sequence[Callable[..., Any]], *args: Any, **kwargs: Any) -> Tensor:
    """Folds `sublayers` over depth: what the final norm and the head read.

    It replaces the loop `x = x + sublayer(x)` of a PreNorm model. Its norms stay inside the sublayers. The first call
    outside torch.compile warns, once, of a sublayer that adds its own residual.

    Args:
        depth: a connection, built for this width and number of sublayers.
        x: the embedding, (..., dim).
        sublayers: attention, MLP, attention, ..., such as an `nn.ModuleList`. Each takes (..., dim) and returns a
            tensor of that shape, without `x +`, or a tuple that begins with one. The rest of a tuple is dropped; a
            loop over `depth.sites`, with `state, *rest = site(state, sublayer)`, keeps it.
        *args: passed on to every sublayer, as `sublayer(h, *args, **kwargs)`.
        **kwargs: likewise.

    Returns:
        (..., dim), in the dtype that travels over depth.

    Raises:
        UsageError: the number of sublayers is not the one `depth` was built for, x has another width, or a sublayer
            returned neither a tensor nor a tuple that begins with one.
    """
    if len(sublayers) != len(depth.sites):
        raise UsageError(f"got {len(sublayers)} sublayers; this depth was built with sublayers={len(depth.sites)}")
    adding: list[str] = []
    look = not torch.compiler.is_compiling() and not depth.folded
    state = depth.open(x)
    for number, (site, sublayer) in enumerate(zip(cast(list[Site], list(depth.sites)), sublayers, strict=True)):
        if look and not _is_compiled(sublayer):
            sublayer = _watched(sublayer, f"sublayer {number} ({name_of(sublayer)})", adding)
        result = site(state, sublayer, *args, **kwargs)
        state = result[0] if type(result) is tuple else result  # a state is a NamedTuple
    if look:
        depth.folded = True
    if adding:
        warnings.warn(
            f"{adding[0]} adds its input to its output, and the connection does so too: the residual counts twice. "
            "Pass attention and MLP as two sublayers, each behind its norm and without `x +`. "
            "docs/own-model.md shows how.",
            stacklevel=2,
        )
    return depth.readout(state)


def _watched(sublayer: Callable[..., Any], name: str, adding: list[str]) -> Callable[..., Any]:
    """The sublayer; its name joins `adding` where what it returns is its input plus something."""

    def watched(h: Tensor, *args: Any, **kwargs: Any) -> Any:
        with _Sums(h) as sums:
            output = sublayer(h, *args, **kwargs)
        if sums.hold(output[0] if isinstance(output, tuple) and output else output):
            adding.append(name)
        return output

    watched.__name__ = name_of(sublayer)
    return watched


_SUMS = frozenset(("add", "add_", "__add__", "__iadd__", "__radd__"))
_SAME_VALUES = frozenset(("to", "float", "half", "bfloat16", "type_as", "clone", "contiguous", "view", "reshape"))


class _Sums(TorchFunctionMode):
    """Follows, while it is entered, which tensors are `x` plus something: by the additions made, not by values."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.held = [x]

    def hold(self, value: object) -> bool:
        return any(value is held for held in self.held)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        terms = args[:2] if name in _SUMS else args[:1] if name in _SAME_VALUES else ()
        if any(map(self.hold, terms)):
            self.held.append(result)
        return result


def _is_compiled(sublayer: Callable[..., Any]) -> bool:
    """Whether a part of it is: it would be compiled once for this call alone."""
    modules = sublayer.modules() if isinstance(sublayer, nn.Module) else ()
    return any(module._compiled_call_impl is not None or "_orig_mod" in module._modules for module in modules)
