"""Runs an operator's body as it is, or compiled by Inductor.

A body is a pure function of tensors and numbers, written so that one compiled loop over tokens does all of its work.
An autograd function calls it and decides what is saved. Each body is compiled once per structure (how many sources or
streams, which parts are there) and for any number of tokens: compiling takes seconds, once a process.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable
from typing import Any

import torch

Body = Callable[..., Any]


def body(function: Body, compiled: bool, *structure: Hashable) -> Body:
    """`function`, or its compiled form for this structure.

    Inside `torch.compile` it is always the function itself: the outer compiler sees through it.

    Args:
        function: pure; called without gradients.
        compiled: whether to compile.
        structure: whatever changes the body's graph beside numbers of tokens: counts, flags, dtypes, widths.
    """
    if not compiled or torch.compiler.is_compiling():
        return function
    return _compiled(function, structure)


def forget() -> None:
    """Drops what was compiled, after `torch._dynamo.reset`."""
    _compiled.cache_clear()


@functools.cache
def _compiled(function: Body, structure: tuple[Hashable, ...]) -> Body:
    """A copy with code of its own, so that no structure counts against another's recompile limit."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{abs(hash(structure)):x}")
    own = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    own.__kwdefaults__ = function.__kwdefaults__
    return torch.compile(own, dynamic=True, fullgraph=True)
