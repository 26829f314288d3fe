"""The examples: few lines change, every connection trains, and trained weights give the same logits at the start."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import leadline as ll
from leadline.connections import CONNECTIONS, Additive, AttentionResiduals, Connection, HyperConnections, MultiGate

EXAMPLES = Path(__file__).parent.parent / "examples"
EXAMPLE = EXAMPLES / "nanogpt.py"
SHAPE = {"vocab_size": 256, "dim": 16, "blocks": 3, "heads": 2, "context": 64}


SAME_START = {
    "additive": Additive(),
    "mgr": MultiGate(gate_init="prenorm"),
    "mgr-independent": MultiGate(gate_init="prenorm", gate="independent"),
    "attnres": AttentionResiduals(),
    "attnres-block": AttentionResiduals(block_size=2),
    "hc": HyperConnections(),
}
"""Connections that start as the plain residual stream."""

same_start = pytest.mark.parametrize("connection", SAME_START.values(), ids=SAME_START)


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_example", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def nanogpt() -> ModuleType:
    return loaded("nanogpt")


@pytest.fixture(scope="module")
def nanogpt_block() -> ModuleType:
    return loaded("nanogpt_block")


@pytest.fixture(scope="module")
def llama_layer() -> ModuleType:
    pytest.importorskip("transformers")
    return loaded("llama_layer")


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


# nanoGPT's blocks


def trained(nanogpt_block: ModuleType, text: torch.Tensor) -> Any:
    """A few steps at a high rate, so that every weight has moved off its start; in float64."""
    torch.manual_seed(0)
    config = nanogpt_block.GPTConfig(n_layer=3, n_head=2, n_embd=16, block_size=32)
    model = nanogpt_block.GPT(config).double()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for start in range(5):
        model(text[None, start : start + 32], text[None, start + 1 : start + 33])[1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    return model


@same_start
def test_trained_nanogpt_weights_give_the_same_logits(
    nanogpt_block: ModuleType, text: torch.Tensor, connection: Connection
) -> None:
    before = trained(nanogpt_block, text)
    after = nanogpt_block.GPT(before.config, connection).double()
    after.load_state_dict(before.state_dict(), strict=False)
    tokens = text[None, :32]
    with torch.no_grad():
        # Biases of gates are float32 numbers.
        torch.testing.assert_close(after(tokens)[0], before(tokens)[0], rtol=1e-7, atol=1e-8)
        assert before(tokens)[0].std() > 0.1
    assert set(before.state_dict()) <= set(after.state_dict())


@same_start
def test_it_trains_on_from_there(nanogpt_block: ModuleType, text: torch.Tensor, connection: Connection) -> None:
    before = trained(nanogpt_block, text).float()
    after = nanogpt_block.start_from(before, connection)
    start = {name: p.detach().clone() for name, p in after.named_parameters()}
    losses = nanogpt_block.train(after, text, steps=3, batch_size=2)
    assert all(map(math.isfinite, losses))
    moved = {name for name, p in after.named_parameters() if not torch.equal(p, start[name])}
    assert {name for name in start if "transformer" in name} <= moved
    assert connection == Additive() or any("_site." in name for name in moved)


def test_one_block_is_the_block(nanogpt_block: ModuleType) -> None:
    """`DepthBlock` with the plain residual stream computes `Block`, to the bit."""
    config = nanogpt_block.GPTConfig()
    depth = Additive().build(config.n_embd, 2)
    before, after = nanogpt_block.Block(config), nanogpt_block.DepthBlock(config, *depth.sites)
    after.load_state_dict(before.state_dict())
    x = torch.randn(2, 10, config.n_embd)
    assert torch.equal(depth.readout(after(depth.open(x))), before(x))


def test_param_groups_of_nanogpt_with_hyper_connections(nanogpt_block: ModuleType) -> None:
    model = nanogpt_block.GPT(nanogpt_block.GPTConfig(n_layer=2), HyperConnections())
    decayed, plain = ll.param_groups(model, weight_decay=0.3)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)
    names = {id(p): name for name, p in model.named_parameters()}
    found = [names[id(p)] for p in decayed["params"]]
    assert found == [
        f"transformer.h.{block}.{name}.weight"
        for block in range(2)
        for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    ]
    rest = {names[id(p)] for p in plain["params"]}
    matrices = {"attn_site.res", "mlp_site.w_res", "wte", "wpe"}
    assert all(any(matrix in name for name in rest) for matrix in matrices)
    assert len(found) + len(rest) == len(names) == sum(len(group["params"]) for group in (decayed, plain))


# transformers' Llama


def large_llama(llama_layer: ModuleType, dtype: torch.dtype = torch.float64) -> Any:
    """Large weights, norms off one, and an eps that counts, so that any wrong number shows in the logits."""
    torch.manual_seed(0)
    model = llama_layer.small_llama().to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            module.variance_epsilon = 0.05
    return model


@same_start
def test_trained_llama_weights_give_the_same_logits(llama_layer: ModuleType, connection: Connection) -> None:
    before = large_llama(llama_layer)
    after = llama_layer.with_depth(before, connection)
    tokens = torch.randint(3, 256, (2, 12))
    mask = torch.ones_like(tokens)
    mask[0, :4] = 0
    for options in ({}, {"attention_mask": mask}):
        with torch.no_grad():
            expected, found = before(tokens, **options).logits, after(tokens, **options).logits
        assert expected.std() > 0.5
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)  # LlamaRMSNorm computes in float32
    with torch.no_grad():
        assert not torch.allclose(before(tokens).logits, expected), "the mask did nothing"
    assert set(before.state_dict()) <= set(after.state_dict())


@same_start
def test_llamas_cache_works(llama_layer: ModuleType, connection: Connection) -> None:
    """Every step's logits against those of the whole text, off the connection's start, with left padding."""
    model = llama_layer.with_depth(large_llama(llama_layer), connection)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "_site." in name or "readout." in name:
                p.add_(0.3 * torch.randn_like(p))
    tokens = torch.randint(3, 256, (2, 10))
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    cached: dict[str, Any] = {}
    with torch.no_grad():
        whole = model(tokens, attention_mask=mask).logits
        for begin, end in ((0, 6), (6, 7), (7, 10)):
            out = model(tokens[:, begin:end], attention_mask=mask[:, :end], use_cache=True, **cached)
            name = "cache" if out.get("cache") is not None else "past_key_values"
            cached = {name: out[name]}
            visible = mask[:, begin:end].bool()
            torch.testing.assert_close(out.logits[visible], whole[:, begin:end][visible], rtol=1e-9, atol=1e-9)
    assert cached[name].get_seq_length() == 10


def test_putting_depth_in_leaves_the_users_model_as_it_is(llama_layer: ModuleType) -> None:
    before = large_llama(llama_layer)
    tokens = torch.randint(3, 256, (1, 5))
    with torch.no_grad():
        logits = before(tokens).logits
        llama_layer.with_depth(before, MultiGate(gate_init="prenorm"))
        assert torch.equal(before(tokens).logits, logits)
    assert type(before.model.layers[0]).__name__ == "LlamaDecoderLayer"


def test_folding_whole_layers_of_llama_warns(llama_layer: ModuleType) -> None:
    model = large_llama(llama_layer, torch.float32).model
    x, places = torch.randn(2, 5, 64), torch.arange(5)[None]
    depth = Additive().build(64, len(model.layers))
    with torch.no_grad(), pytest.warns(UserWarning, match=r"sublayer 0 \(LlamaDecoderLayer\) adds its input"):
        ll.fold(depth, x, model.layers, position_embeddings=model.rotary_emb(x, places))


@pytest.mark.parametrize("name", ["nanogpt", "nanogpt_block", "llama_layer"])
def test_examples_run(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "llama_layer":
        pytest.importorskip("transformers")
    example = loaded(name)
    if name != "llama_layer":
        train = example.train
        monkeypatch.setattr(example, "train", lambda model, text, steps: train(model, text, steps=2, batch_size=2))
    example.main()
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == (3 if name == "nanogpt_block" else 2)
    assert "False" not in printed


def body_lines(source: str, node: ast.ClassDef) -> list[str]:
    """The lines of a class after its docstring."""
    return source.splitlines()[node.body[1].lineno - 1 : node.end_lineno]
