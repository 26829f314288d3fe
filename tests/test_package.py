"""`import leadline as ll`: quick, and every part within reach in a fresh process."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import leadline as ll
from leadline.designs import resolve


def fresh(code: str) -> str:
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_nothing_heavy_is_imported() -> None:
    assert fresh("import leadline, sys; print('torch' in sys.modules, 'numpy' in sys.modules)") == "False False"


PARTS_ALONE = """
import os, sys, torch, numpy, scipy, tokenizers  # once, not once a part
import leadline as ll
for path in {paths}:
    child = os.fork()
    if not child:
        part = ll
        for name in path.split("."):
            part = getattr(part, name)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(path)
"""


def test_every_part_is_an_attribute_before_any_other_is_imported() -> None:
    inside = ["ops.use_backend", "probes.record", "training.GradientShare", "hub.open_model", "data.DataSet"]
    parts = [part.name for part in pkgutil.iter_modules(ll.__path__) if part.name in ll.__all__]
    assert len(parts) == 13
    fresh(PARTS_ALONE.format(paths=[*parts, *inside, "MultiGate", "design", "fold", "param_groups", "State"]))


def test_only_public_names_are_listed_and_all_are_there() -> None:
    assert dir(ll) == sorted(ll.__all__)
    assert all(getattr(ll, name) is not None for name in ll.__all__)
    assert all(name == "__version__" or not name.startswith("_") for name in dir(ll))
    assert "resolve" not in dir(ll)


def test_a_design() -> None:
    assert ll.design("mgr + bhyt") == resolve("mgr + bhyt")


def test_the_old_name_of_design_warns_at_every_use() -> None:
    for _ in range(2):
        with pytest.warns(DeprecationWarning, match=r"leadline\.resolve is now leadline\.design") as found:
            assert ll.resolve("mgr").name == ll.design("mgr").name
        assert [warning.filename for warning in found] == [__file__]


SOURCE = Path(ll.__file__).parent


def module_name(path: Path) -> str:
    return ".".join(("leadline", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def imported(path: Path, modules: frozenset[str]) -> Iterator[str]:
    """The modules of Leadline that a file imports anywhere but for type checkers; what a package re-exports is its."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            names = [f"{node.module}.{name.name}" for name in node.names]
            yield from (name if name in modules else node.module for name in names)
        pending += ast.iter_child_nodes(node)


def test_no_module_imports_itself_through_others() -> None:
    paths = {module_name(path): path for path in SOURCE.rglob("*.py")}
    modules = frozenset(paths)
    graph = {name: set(imported(path, modules)) - {name, "leadline"} for name, path in paths.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names them
    assert "leadline.designs" in graph["leadline.training.resolve"]
