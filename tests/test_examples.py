"""The example of a model of one's own: three lines change, and every connection trains."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch

from leadline.connections import CONNECTIONS, Additive

EXAMPLE = Path(__file__).parent.parent / "examples" / "nanogpt.py"
SHAPE = {"vocab_size": 256, "dim": 16, "blocks": 3, "heads": 2, "context": 64}


@pytest.fixture(scope="module")
def nanogpt() -> ModuleType:
    spec = importlib.util.spec_from_file_location("nanogpt_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def text() -> torch.Tensor:
    return torch.tensor(list(EXAMPLE.read_bytes()))


def test_prenorm_trains(nanogpt: ModuleType, text: torch.Tensor) -> None:
    losses = nanogpt.train(nanogpt.GPT(**SHAPE), text, steps=2, batch_size=2)
    assert all(map(math.isfinite, losses))


@pytest.mark.parametrize("kind", sorted(CONNECTIONS))
def test_every_connection_trains_in_the_users_model(nanogpt: ModuleType, text: torch.Tensor, kind: str) -> None:
    model = nanogpt.GPTWithDepth(**SHAPE)
    model.depth = CONNECTIONS[kind]().build(SHAPE["dim"], 2 * SHAPE["blocks"])
    before = [p.detach().clone() for p in model.parameters()]
    losses = nanogpt.train(model, text, steps=2, batch_size=2)
    assert all(map(math.isfinite, losses))
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_additive_is_the_users_prenorm(nanogpt: ModuleType, text: torch.Tensor) -> None:
    torch.manual_seed(0)
    plain = nanogpt.GPT(**SHAPE)
    folded = nanogpt.GPTWithDepth(**SHAPE)
    folded.depth = Additive().build(SHAPE["dim"], 2 * SHAPE["blocks"])
    folded.load_state_dict(plain.state_dict())
    tokens = text[:32].unsqueeze(0)
    assert torch.equal(plain(tokens), folded(tokens))


def test_only_the_marked_lines_change() -> None:
    source = EXAMPLE.read_text(encoding="utf-8")
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    before, after = (body_lines(source, classes[name]) for name in ("GPT", "GPTWithDepth"))
    new = [line[2:] for line in difflib.ndiff(before, after) if line.startswith("+ ")]
    marked = [line for line in source.splitlines() if "# changed line" in line]
    assert len(marked) == 3
    assert new == marked[1:]


def body_lines(source: str, node: ast.ClassDef) -> list[str]:
    """The lines of a class after its docstring."""
    return source.splitlines()[node.body[1].lineno - 1 : node.end_lineno]
