"""Backend "compiled" in tests: traced as for the compiler and run by PyTorch, or compiled for good.

Compiling takes seconds a body, and nothing of Leadline is in it. So every case is traced, with the keys, guards and
graphs of the backend, and one of each operator is compiled, or all of them where LEADLINE_COMPILE=1.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from torch import Tensor, fx

from leadline.ops import compiled_body
from leadline.ops.choice import why_not

IN_MODELS = (
    "additive",
    "post-ln",
    "attnres",
    "attnres-block",
    "mgr-competitive",
    "mgr-independent",
    "hc",
    "mhc",
    "mhc-lite",
)
"""Which connections are compiled in whole models; the others are compiled as connections alone."""

reason = why_not("compiled", "cpu")
needs_compiler = pytest.mark.skipif(reason is not None, reason=str(reason))
COMPILE_ALL = os.environ.get("LEADLINE_COMPILE") == "1"


def each_backend(*names: str, cases: Iterable[Any] = (), compiled: Iterable[Any] = ()) -> pytest.MarkDecorator:
    """Parametrizes a test over `backend`, a fixture, and `case` where there are any.

    Args:
        names: of reference, lean and traced.
        cases: for each of these.
        compiled: the cases that are compiled, all where LEADLINE_COMPILE=1; without cases one is compiled.
    """
    cases = list(cases)
    if not cases:
        last = pytest.param("compiled", marks=needs_compiler)
        return pytest.mark.parametrize("backend", [*names, last], indirect=True)
    rows = [pytest.param(name, case, id=f"{name}-{_id(case)}") for name in names for case in cases]
    chosen = cases if COMPILE_ALL else list(compiled)
    rows += [pytest.param("compiled", case, id=f"compiled-{_id(case)}", marks=needs_compiler) for case in chosen]
    return pytest.mark.parametrize(("backend", "case"), rows, indirect=["backend"])


def _id(case: Any) -> str:
    return "-".join(map(str, case)) if isinstance(case, tuple) else str(getattr(case, "kind", case))


@pytest.fixture(name="backend")
def backend_fixture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend by its name; "traced" is "compiled", with bodies that are traced and not compiled."""
    traced = request.param == "traced"
    if traced:
        trace_bodies(monkeypatch)
    return "compiled" if traced else request.param


def trace_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends PyTorch runs the graphs of bodies as they are."""

    def uncompiled(graph: fx.GraphModule, fakes: list[Any]) -> Any:
        def call(tensors: list[Tensor]) -> Any:
            found = graph(*tensors)
            tensors.clear()
            return found

        return call

    for name in ("_bodies", "_seen"):  # others are found there that were compiled, and must be again
        monkeypatch.setattr(compiled_body, name, {})
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", uncompiled)
