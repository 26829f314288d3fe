"""`ll.fold` over a user's own sublayers: arguments, and a warning where a sublayer adds its own residual."""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from connection_examples import EXAMPLES
from torch import Tensor, nn

import leadline as ll

DIM = 16


class Attention(nn.Module):
    """Behind its norm; `residual` makes it a block that adds itself."""

    def __init__(self, *, residual: str = "", dropout: float = 0.0, weights: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.qkv, self.output = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.dropout = nn.Dropout(dropout)
        self.residual, self.weights = residual, weights

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        query, key, value = self.qkv(self.norm(x)).unsqueeze(1).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None).squeeze(1)
        out = self.dropout(self.output(mixed))
        if self.residual == "x + f(x)":
            out = x + out
        elif self.residual == "f(x) + x":
            out = torch.add(out, x)
        elif self.residual == "x += f(x)":
            out = x.add_(out)
        elif self.residual == "in float32":
            out = (x.float() + out.float()).to(x.dtype).view(x.shape)
        return (out, None) if self.weights else out


class MLP(nn.Module):
    def __init__(self, *, residual: bool = False) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        out = self.down(F.gelu(self.up(self.norm(x))))
        return x + out if self.residual else out


class Block(nn.Module):
    """A whole PreNorm block, as it stands in everybody's model."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp = Attention(), MLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        return x + self.mlp(x)


def linear(weight: Tensor, norm: bool = False) -> nn.Module:
    layer = nn.Linear(DIM, DIM, bias=False)
    layer.weight.data = weight
    return nn.Sequential(nn.RMSNorm(DIM), layer) if norm else layer


def zeroed(module: Any) -> Any:
    output = module.output if isinstance(module, Attention) else module.down
    nn.init.zeros_(output.weight)
    nn.init.zeros_(output.bias)
    return module


ADDS: dict[str, Callable[[], Callable[..., Any]]] = {
    "block": Block,
    "x + f(x)": lambda: Attention(residual="x + f(x)"),
    "f(x) + x": lambda: Attention(residual="f(x) + x"),
    "x += f(x)": lambda: Attention(residual="x += f(x)"),
    "in float32": lambda: Attention(residual="in float32"),
    "with dropout": lambda: Attention(residual="x + f(x)", dropout=0.5),
    "a tuple": lambda: Attention(residual="x + f(x)", weights=True),
    "zero-initialised": lambda: zeroed(Attention(residual="x + f(x)")),
    "a function": lambda: lambda x: x + x.tanh(),
    "large": lambda: lambda x: x + 100 * torch.randn_like(x),
}
ORDINARY: dict[str, Callable[[], Callable[..., Any]]] = {
    "attention": Attention,
    "mlp": MLP,
    "attention with dropout": lambda: Attention(dropout=0.5),
    "attention with weights": lambda: Attention(weights=True),
    "zero-initialised attention": lambda: zeroed(Attention()),
    "zero-initialised mlp": lambda: zeroed(MLP()),
    "identity matrix": lambda: linear(torch.eye(DIM)),
    "nearly the identity": lambda: linear(torch.eye(DIM) + 1e-3 * torch.randn(DIM, DIM)),
    "nearly the identity behind a norm": lambda: linear(torch.eye(DIM) + 1e-3 * torch.randn(DIM, DIM), norm=True),
    "adds positions, then transforms": lambda: lambda x: torch.tanh(x + 1.0),
    "a sum of two branches": lambda: lambda x: torch.tanh(x) + torch.sin(x),
}
CONTEXTS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def stack(last: Callable[..., Any]) -> tuple[ll.Depth, list[Callable[..., Any]]]:
    """Five ordinary sublayers and `last`. What a sublayer may not change in place in other connections, it may here."""
    return ll.Additive().build(DIM, 6), [Attention(), MLP(), Attention(), MLP(), Attention(), last]


@contextlib.contextmanager
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*counts twice")
        yield


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("make", ADDS.values(), ids=ADDS)
def test_a_sublayer_that_adds_its_own_residual_is_told(make: Any, context: Any) -> None:
    depth, sublayers = stack(make())
    with context(), pytest.warns(UserWarning, match=r"sublayer 5 \(.*the residual counts twice.*own-model") as found:
        ll.fold(depth, torch.randn(2, 5, DIM), sublayers)
    assert [warning.filename for warning in found] == [__file__]
    with context(), no_warning():
        ll.fold(depth, torch.randn(2, 5, DIM), sublayers)


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("make", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_sublayers_are_not(make: Any, context: Any) -> None:
    depth, sublayers = stack(make())
    with context(), no_warning():
        ll.fold(depth, torch.randn(2, 5, DIM), sublayers)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_connection_warns_once_a_depth(name: str) -> None:
    depth = EXAMPLES[name].build(DIM, 6)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            ll.fold(depth, torch.randn(2, 5, DIM), [Block() for _ in range(6)])
    assert len(found) == 1
    assert "sublayer 0 (Block)" in str(found[0].message)
    with pytest.warns(UserWarning, match="counts twice"):
        ll.fold(EXAMPLES[name].build(DIM, 6), torch.randn(2, 5, DIM), [Block() for _ in range(6)])


def test_the_watched_call_computes_the_same_and_has_gradients() -> None:
    depth, sublayers = stack(MLP())
    x = torch.randn(2, 5, DIM, requires_grad=True)
    first = ll.fold(depth, x, sublayers)
    assert depth.folded
    assert torch.equal(ll.fold(depth, x, sublayers), first)
    first.sum().backward()
    assert x.grad is not None


def test_later_calls_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    depth, sublayers = stack(MLP())
    ll.fold(depth, torch.randn(2, 5, DIM), sublayers)
    monkeypatch.setattr(sys.modules[ll.fold.__module__], "_watched", None)
    ll.fold(depth, torch.randn(2, 5, DIM), sublayers)
    with pytest.raises(TypeError, match="NoneType"):
        ll.fold(stack(MLP())[0], torch.randn(2, 5, DIM), sublayers)


def test_a_call_that_fails_leaves_the_look_to_the_next() -> None:
    depth, sublayers = stack(Block())
    with pytest.raises(RuntimeError):
        ll.fold(depth, torch.randn(2, 5, DIM), [*sublayers[:5], nn.Linear(3, 3)])
    with pytest.warns(UserWarning, match="counts twice"):
        ll.fold(depth, torch.randn(2, 5, DIM), sublayers)


@pytest.mark.parametrize("last", [MLP, Block])
def test_compiled_whole_there_is_no_look_and_no_graph_break(last: Any) -> None:
    depth, sublayers = stack(last())
    modules = nn.ModuleList(sublayers)
    x = torch.randn(2, 5, DIM)
    torch._dynamo.reset()
    with no_warning():
        found = torch.compile(lambda x: ll.fold(depth, x, modules), fullgraph=True, backend="aot_eager")(x)
    assert not depth.folded
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(found, ll.fold(depth, x, modules))


@pytest.mark.parametrize("way", ["torch.compile(module)", "module.compile()", "a part of it"])
def test_compiled_sublayers_compile_once(way: str) -> None:
    graphs = 0

    def backend(module: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return module.forward

    torch._dynamo.reset()
    sublayer: Any = Block()
    if way == "torch.compile(module)":
        sublayer = torch.compile(sublayer, backend=backend)
    elif way == "module.compile()":
        sublayer.compile(backend=backend)
    else:
        sublayer.mlp.compile(backend=backend)
    depth, x = ll.Additive().build(DIM, 1), torch.randn(2, 5, DIM)
    with no_warning():
        for _ in range(3):
            ll.fold(depth, x, [sublayer])
    assert graphs == 1


def test_a_copy_of_a_depth_is_looked_at_like_its_original() -> None:
    depth, sublayers = stack(MLP())
    assert not copy.deepcopy(depth).folded
    ll.fold(depth, torch.randn(2, 5, DIM), sublayers)
    assert copy.deepcopy(depth).folded


def test_arguments_go_to_every_sublayer_and_the_rest_of_a_tuple_is_dropped() -> None:
    x, mask = torch.randn(2, 5, DIM), torch.eye(5, dtype=torch.bool)
    attentions = [Attention(weights=True), Attention()]
    for args, kwargs in (((mask,), {}), ((), {"mask": mask})):
        found = ll.fold(ll.Additive().build(DIM, 2), x, attentions, *args, **kwargs)
        expected = x
        for attention in attentions:
            out = attention(expected, mask)
            expected = expected + (out[0] if isinstance(out, tuple) else out)
        assert torch.equal(found, expected)


def test_the_wrong_number_of_sublayers() -> None:
    with pytest.raises(ll.UsageError, match="got 1 sublayers; this depth was built with sublayers=2"):
        ll.fold(ll.Additive().build(DIM, 2), torch.randn(2, 5, DIM), [MLP()])


def test_an_output_that_is_no_tensor() -> None:
    def broken(h: Tensor) -> dict[str, Tensor]:
        return {"out": h}

    with pytest.raises(ll.UsageError, match="broken returned dict"):
        ll.fold(ll.Additive().build(DIM, 1), torch.randn(2, 5, DIM), [broken])
