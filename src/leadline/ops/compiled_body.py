"""Runs an operator's body as it is, or compiled by Inductor.

A body is a pure function of tensors and numbers, written so that one compiled loop over tokens does all of its work.
An autograd function calls it and decides what is saved. Each body is compiled once per structure (how many sources or
streams, which parts are there, dtypes) and for any number of tokens and any width: that takes a second or two, once a
process. A compiled body is called without Dynamo's guards, which cost several times more than the call itself where
tokens are few: what they would check is in the key under which the body is kept.

PyTorch has no public way to do this. The private functions it takes are listed in `PRIVATE`; where this version of
PyTorch lacks one of them, `leadline.ops.choice` takes `lean` and says so once.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import operator
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from leadline.ops.precision import FEW_NUMBERS

Body = Callable[..., Any]

_bodies: dict[Hashable, list[Compiled]] = {}
"""By form; several of one form where a body made assumptions of its own, as the number of streams it goes through."""
_seen: dict[Hashable, Compiled] = {}
"""The same by exact sizes: what a training run asks for again and again is found without looking at structure."""
MOST_SEEN = 4096
_tracing: list[list[Tensor]] = []
"""What the body that is being traced has put into `once`."""

PRIVATE = {
    "torch._guards": ("TracingContext", "tracing"),
    "torch._inductor.config": ("size_asserts", "cpp.threads"),
    "torch._inductor.compile_fx": ("compile_fx_inner",),
    "torch._inductor.decomposition": ("select_decomp_table",),
    "torch.fx.experimental.proxy_tensor": ("make_fx",),
    "torch.fx.experimental.symbolic_shapes": (
        "ShapeEnv.produce_guards_expression",
        "ShapeEnv.evaluate_guards_expression",
    ),
}
"""What compiling takes of PyTorch beside its public functions: modules and names in them."""


@functools.cache
def missing_in_torch() -> str | None:
    """The first of `PRIVATE` that this version of PyTorch lacks; None where all are there."""
    for module, names in PRIVATE.items():
        for name in names:
            try:
                operator.attrgetter(name)(importlib.import_module(module))
            except (ImportError, AttributeError):
                return f"{module}.{name}"
    return None


def compiled_bodies() -> int:
    """How many bodies this process has compiled."""
    return sum(map(len, _bodies.values()))


def once(*tensors: Tensor) -> None:
    """Has these computed once and kept, where a body is compiled: per-token scalars, before the loop over the row.

    Without it Inductor puts their arithmetic into that loop and repeats it for every few numbers of the row.
    """
    if _tracing:
        _tracing[-1] += tensors


def tracing() -> bool:
    """Whether a body is being traced, to be compiled."""
    return len(_tracing) > 0


def applied(compile_body: bool, function: Body, *arguments: Any) -> Any:
    """What a body returns, run as it is or compiled."""
    return run(function, *arguments) if compile_body else function(*arguments)


def run(function: Body, *arguments: Any) -> Any:
    """What the compiled form of `function` returns.

    Args:
        function: a body.
        arguments: tensors, None, numbers, and lists of these. Tensors get no gradients.

    Not inside `torch.compile`: there a body is called as it is, and the outer compiler sees through it.
    """
    tensors: list[Tensor] = []
    exact = (function, _exact(arguments, tensors))
    found = _seen.get(exact)
    if found is None:
        if any(tensor.numel() == 0 for tensor in tensors):
            return function(*arguments)
        form = (function, _few(tensors), _form(arguments, {}))
        found = next((one for one in _bodies.setdefault(form, []) if one.fits(tensors)), None)
        if found is None:
            found = Compiled(function, arguments)
            _bodies[form].append(found)
        if len(_seen) >= MOST_SEEN:
            _seen.clear()
        _seen[exact] = found
    return found(tensors)


def _exact(values: Any, tensors: list[Tensor]) -> Hashable:
    """Sizes, strides and dtypes of the tensors of a list, and everything else as it is; collects the tensors."""
    if set(map(type, values)) == {Tensor} and all(map(Tensor.is_contiguous, values)):
        shapes, dtypes = set(map(_shape_of, values)), set(map(_dtype_of, values))
        if len(shapes) == len(dtypes) == 1:
            tensors += values
            return len(values), *shapes, *dtypes
    found: list[Any] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
            found.append((value.shape, value.stride(), value.dtype))
        else:
            found.append(_exact(value, tensors) if isinstance(value, list | tuple) else value)
    return tuple(found)


_shape_of, _dtype_of = operator.attrgetter("shape"), operator.attrgetter("dtype")


def _form(value: Any, numbers: dict[int, int]) -> Hashable:
    """What the graph of a body depends on beside the tensors' values.

    Sizes and strides stand as which of them are equal: two that are equal are one symbol in the graph. 0 and 1
    stand for themselves, because broadcasting depends on them.
    """
    if isinstance(value, Tensor):
        extents = tuple(
            n if n in (0, 1) else numbers.setdefault(n, len(numbers) + 2) for n in (*value.shape, *value.stride())
        )
        return value.dtype, value.is_contiguous(), extents
    if isinstance(value, list | tuple):
        return tuple([_form(item, numbers) for item in value])
    return value


def _like(tensor: Tensor) -> Tensor:
    """No values, but the very sizes and strides: `empty_like` would lay an expanded tensor out anew."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _few(tensors: list[Tensor]) -> bool:
    """Whether a second thread would cost more than it takes over."""
    return all(tensor.numel() <= FEW_NUMBERS for tensor in tensors)


def _name_sizes(graph: fx.Graph) -> list[Any]:
    """Has a graph ask its inputs for their sizes and strides, and returns the inputs' fake tensors.

    Newer versions of Inductor (PyTorch 2.15) know those sizes alone that the graph asks for. Older ones know all.
    """
    inputs = graph.find_nodes(op="placeholder")
    with graph.inserting_before(inputs[-1].next):
        for node in inputs:
            fake = node.meta["val"]
            for ask, found in (
                (torch.ops.aten.sym_size.int, fake.shape),
                (torch.ops.aten.sym_stride.int, fake.stride()),
            ):
                for dim, value in enumerate(found):
                    if isinstance(value, torch.SymInt):
                        graph.call_function(ask, (node, dim)).meta["val"] = value
    return [node.meta["val"] for node in inputs]


class Compiled:
    """One compiled body.

    Args:
        function: what to compile.
        arguments: such as it will be called with; tensors in them give dtypes and which sizes are equal.
    """

    def __init__(self, function: Body, arguments: tuple[Any, ...]) -> None:
        from torch._guards import TracingContext, tracing
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx_inner
        from torch._inductor.decomposition import select_decomp_table
        from torch.fx.experimental.proxy_tensor import make_fx

        leaves, spec = pytree.tree_flatten(arguments)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

        def flat(*tensors: Tensor) -> list[Tensor]:
            filled = list(constants)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            _tracing.append([])
            try:
                results = function(*pytree.tree_unflatten(filled, spec))
            finally:
                kept = _tracing.pop()  # results that nobody takes: Inductor gives each a buffer of its own
            self.shape: list[int | None] | None = None
            if isinstance(results, Tensor):
                return [results, *kept]
            # Per result: a count of tensors for a list of them, -1 for a tensor, None for None.
            self.shape = [None if r is None else -1 if isinstance(r, Tensor) else len(r) for r in results]
            return [*(t for t in pytree.tree_leaves(results) if t is not None), *kept]

        with torch.no_grad(), torch.inference_mode(False):
            examples = [_like(leaves[place]) for place in places]
            graph = make_fx(flat, tracing_mode="symbolic", decomposition_table=select_decomp_table())(*examples)
            fakes = _name_sizes(graph.graph)
            options = {"size_asserts": False, "cpp.threads": 1 if _few(examples) else config.cpp.threads}
            with tracing(TracingContext(fakes[0].fake_mode)), config.patch(options):
                compiled = compile_fx_inner(graph, fakes)
            self.shapes = fakes[0].fake_mode.shape_env
            self.guards = self.shapes.produce_guards_expression(fakes, ignore_static=False)
        # Without what surrounds it, whose checks the key has made: that is most of the time of a call on a few tokens.
        self.call = getattr(compiled, "current_callable", None) or compiled

    def fits(self, tensors: list[Tensor]) -> bool:
        """Whether what tracing and compiling took for granted holds for the sizes of these tensors."""
        return self.guards is None or bool(self.shapes.evaluate_guards_expression(self.guards, tensors))

    def __call__(self, tensors: list[Tensor]) -> Any:
        """What the body returns for these tensors; empties the list."""
        flat = self.call(tensors)
        if self.shape is None:
            return flat[0]
        results = iter(flat)
        return [
            None if count is None else next(results) if count < 0 else list(itertools.islice(results, count))
            for count in self.shape
        ]
