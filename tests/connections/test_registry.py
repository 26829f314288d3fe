"""What holds for every connection: the fold over depth, its dtypes, removal, compilation, recomputation, storage."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import shutil
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
import torch
from compiled import IN_MODELS
from connection_examples import EXAMPLES
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from leadline.config import from_dict, to_dict
from leadline.connections import (
    CONNECTIONS,
    Additive,
    AttentionResiduals,
    Connection,
    Depth,
    HyperConnections,
    ManifoldHyperConnections,
    MultiGate,
    State,
)
from leadline.errors import UsageError

DIM = 7
SUBLAYERS = 6
PRENORM_STARTS = (
    *("additive", "attnres", "attnres-block", "mgr-competitive", "mgr-independent"),
    *("hc", "hc-one-stream", "hc-two-streams"),
)

every = pytest.mark.parametrize("name", EXAMPLES)


def made(connection: Connection, sublayers: int = SUBLAYERS, *, noise: float = 0.3, **factory: Any) -> Depth:
    """A stack whose parameters are moved off their start, so that every path carries a gradient."""
    depth = connection.build(DIM, sublayers, **factory)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in depth.parameters():
            p += noise * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)
    return depth


def embedding(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)


@every
@pytest.mark.parametrize("shape", [(2, 5, DIM + 1), (2, 5, DIM - 1), (2, 5, 1), (1,), ()], ids=str)
def test_another_width_is_refused_at_once(name: str, shape: tuple[int, ...]) -> None:
    depth = EXAMPLES[name].build(DIM, SUBLAYERS)
    with pytest.raises(UsageError, match=rf"has another width than dim={DIM}, which this was built for"):
        depth.open(torch.zeros(shape))


WEIGHTS = 0.4 * torch.randn(48, DIM, DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
"""The sublayers are `F_l(h) = tanh(h W_l)`."""


def run(
    depth: Depth, x: Tensor, skip: Collection[int] = (), hop: Callable[[int, State], State] | None = None
) -> Tensor:
    """The fold; `hop` may exchange the state before a site."""
    state = depth.open(x)
    for index, site in enumerate(depth.sites):
        state = state if hop is None else hop(index, state)
        if index in skip:
            state = site.skip(state)
            continue
        h, state = site.read(state)
        assert h.shape == x.shape
        state = site.write(state, torch.tanh(h @ WEIGHTS[index].to(h.dtype)))
    return depth.readout(state if hop is None else hop(len(depth.sites), state))


def gradients(depth: Depth, x: Tensor, loss_of: Callable[[Tensor], Tensor]) -> list[Tensor]:
    x = x.detach().requires_grad_()
    loss = loss_of(x).double().square().sum()
    inputs = [x, *depth.parameters()]
    return list(torch.autograd.grad(loss, inputs, allow_unused=False))


def tensors_of(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_of(item)


def test_every_kind_has_an_example() -> None:
    assert {type(c) for c in EXAMPLES.values()} == set(CONNECTIONS.values())
    assert all(c.kind == kind for kind, c in CONNECTIONS.items())


@every
def test_forward_and_backward_are_finite_and_reach_every_parameter(name: str) -> None:
    depth = made(EXAMPLES[name])
    x = embedding(2, 5, dtype=torch.float32)
    assert torch.isfinite(run(depth, x)).all()
    for (key, _), grad in zip(
        [("x", x), *depth.named_parameters()], gradients(depth, x, lambda x: run(depth, x)), strict=True
    ):
        assert torch.isfinite(grad).all(), key


@every
def test_start_is_finite_in_a_deep_stack(name: str) -> None:
    depth = EXAMPLES[name].build(DIM, 48)
    x = embedding(1, 3, dtype=torch.float32)
    assert torch.isfinite(run(depth, x)).all()
    assert all(torch.isfinite(g).all() for g in gradients(depth, x, lambda x: run(depth, x)))


@every
@pytest.mark.parametrize("way", ["input", "state_dtype", "autocast"])
def test_bfloat16(name: str, way: str) -> None:
    connection = EXAMPLES[name]
    if way == "state_dtype":
        connection = dataclasses.replace(connection, state_dtype="bfloat16")
    depth = made(connection)
    x = embedding(2, 5, dtype=torch.bfloat16 if way == "input" else torch.float32).requires_grad_()
    travels = torch.float32 if way == "autocast" else torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=way == "autocast"):
        state = depth.open(x)
        for site, weight in zip(depth.sites, WEIGHTS, strict=False):
            h, state = site.read(state)
            assert h.dtype == travels
            state = site.write(state, torch.tanh(h.to(torch.bfloat16) @ weight.to(torch.bfloat16)))
            wide = [t for t in tensors_of(state) if t.dtype != travels and t.shape[-1:] == (DIM,)]
            assert not wide, "the state was promoted"
        out = depth.readout(state)
    assert out.dtype == travels
    out.float().square().sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    for key, p in depth.named_parameters():
        assert p.grad is not None, key
        assert p.grad.dtype == p.dtype == torch.float32
        assert torch.isfinite(p.grad).all(), key
    exact = run(made(EXAMPLES[name]).double(), embedding(2, 5))
    assert (out.double() - exact).norm() < 0.1 * exact.norm()


@every
def test_meta_construction_then_reset_equals_construction(name: str) -> None:
    built = EXAMPLES[name].build(DIM, SUBLAYERS)
    depth = EXAMPLES[name].build(DIM, SUBLAYERS, device="meta")
    assert all(p.is_meta for p in depth.parameters())
    depth = depth.to_empty(device="cpu")
    with torch.no_grad():
        for t in (*depth.parameters(), *depth.buffers()):
            t.fill_(math.nan)
    for part in (*depth.sites, depth.readout):
        part.reset_parameters()
    assert all(torch.equal(a, b) for a, b in zip(depth.state_dict().values(), built.state_dict().values(), strict=True))
    x = embedding(2, 3, dtype=torch.float32)
    assert torch.equal(run(depth, x), run(built, x))


@every
def test_meta_construction_then_a_loaded_state_equals_the_original(name: str) -> None:
    original = made(EXAMPLES[name])
    depth = EXAMPLES[name].build(DIM, SUBLAYERS, device="meta").to_empty(device="cpu")
    depth.load_state_dict(original.state_dict())
    x = embedding(2, 3, dtype=torch.float32)
    assert torch.equal(run(depth, x), run(original, x))


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in IN_MODELS])
def test_compiles_without_graph_breaks(name: str) -> None:
    """The others are compiled as parts of models, in tests/models/test_compile.py."""
    connection = EXAMPLES[name]
    if name == "mgr-invert":
        pytest.skip("inversion hands streams from one backward pass to the next, which no graph holds")
    if isinstance(connection, ManifoldHyperConnections):
        connection = dataclasses.replace(connection, sinkhorn_iterations=3)
    depth = made(connection, 4)
    x = embedding(1, 3)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: run(depth, x), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x.requires_grad_()), run(depth, x), rtol=1e-12, atol=1e-12)
    expected = gradients(depth, x, lambda x: run(depth, x))
    torch.testing.assert_close(gradients(depth, x, compiled), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["attnres-block", "hc-two-streams"])
def test_compiles_with_inductor(name: str) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    depth = made(EXAMPLES[name], 3)
    x = embedding(1, 3, dtype=torch.float32)
    torch._dynamo.reset()
    backend = "inductor" if compiler else "aot_eager"  # Inductor needs a C++ compiler; without one its graph is checked
    compiled = torch.compile(lambda x: run(depth, x), fullgraph=True, backend=backend)
    expected = gradients(depth, x, lambda x: run(depth, x))
    torch.testing.assert_close(gradients(depth, x, compiled), expected, rtol=1e-3, atol=1e-4)


@every
def test_recomputed_blocks_have_equal_gradients(name: str) -> None:
    depth = made(EXAMPLES[name])
    x = embedding(2, 5)

    def block(first: int, state: State) -> State:
        for index in (first, first + 1):
            h, state = depth.sites[index].read(state)
            state = depth.sites[index].write(state, torch.tanh(h @ WEIGHTS[index]))
        return state

    def recomputed(x: Tensor) -> Tensor:
        state = depth.open(x)
        for first in range(0, SUBLAYERS, 2):
            state = checkpoint(block, first, state, use_reentrant=False)
        return depth.readout(state)

    expected = gradients(depth, x, lambda x: run(depth, x))
    torch.testing.assert_close(gradients(depth, x, recomputed), expected, rtol=1e-12, atol=1e-12)


def names_of(connection: Connection, sublayers: int) -> set[str]:
    """DESIGN's table of parameter names."""
    at_sites: dict[int, list[str]] = {site: [] for site in range(sublayers)}
    readout: list[str] = []
    match connection:
        case Additive():
            for site, names in at_sites.items():
                blocks = connection.post_norm_blocks
                if connection.post_norm != "none" and (blocks is None or site < 2 * blocks):
                    names += ["norm_gain"] + ["norm_bias"] * (connection.post_norm == "layernorm")
                names += ["branch_gain"] * (connection.branch != "none")
        case AttentionResiduals(weights="static"):
            return set()
        case AttentionResiduals():
            readout = ["query", *(["key_gain"] if connection.key_norm else [])]
            for site in range(1, sublayers):
                at_sites[site] += readout
        case MultiGate():
            readout = ["pool_query"] * (connection.streams > 1)
            for site, names in at_sites.items():
                names += ["pool_query"] * (site >= 1 and connection.streams > 1)
                names += ["gate_query", "gate_bias"] * (site >= connection.streams - 1)
        case HyperConnections():
            for names in at_sites.values():
                names += ["pre", "res", "post", "w_pre", "w_res", "w_post", "s_pre", "s_res", "s_post"]
        case ManifoldHyperConnections():
            for names in at_sites.values():
                names += [f"{kind}_{part}" for kind in ("phi", "b", "a") for part in ("pre", "post", "res")]
    keys = {f"sites.{site}.{name}" for site, names in at_sites.items() for name in names}
    return keys | {f"readout.{name}" for name in readout}


@every
def test_state_dict_has_the_names_of_the_contract_and_comes_back(name: str) -> None:
    depth = made(EXAMPLES[name])
    state = depth.state_dict()
    expected = names_of(EXAMPLES[name], SUBLAYERS)
    if expected or name == "additive":
        assert set(state) == expected
    other = EXAMPLES[name].build(DIM, SUBLAYERS)
    other.load_state_dict(state)
    x = embedding(2, 3, dtype=torch.float32)
    assert torch.equal(run(other, x), run(depth, x))


@every
def test_parameters_are_float32_and_scalars_have_one_element_in_one_dimension(name: str) -> None:
    for key, p in EXAMPLES[name].build(DIM, SUBLAYERS).named_parameters():
        assert p.dtype == torch.float32, key
        assert p.dim() >= 1, key
    wide = EXAMPLES[name].build(DIM, SUBLAYERS, dtype=torch.float64)
    assert all(p.dtype == torch.float64 for p in wide.parameters())


@every
def test_skipping_a_sublayer_leaves_the_state_and_equals_passing_it_by(name: str) -> None:
    depth = made(EXAMPLES[name])
    x = embedding(2, 5)
    whole = run(depth, x)
    for removed in range(SUBLAYERS):
        state = depth.open(x)
        for index, site in enumerate(depth.sites):
            if index == removed:
                kept = site.skip(state)
                pairs = zip(tensors_of(kept), tensors_of(state), strict=True)
                assert all(a is b or torch.equal(a, b) for a, b in pairs)
                continue
            h, state = site.read(state)
            state = site.write(state, torch.tanh(h @ WEIGHTS[index]))
        passed_by = depth.readout(state)
        assert torch.equal(run(depth, x, skip={removed}), passed_by)
        assert not torch.allclose(passed_by, whole)


@every
def test_skipping_blocks_or_everything_works_and_has_gradients(name: str) -> None:
    depth = made(EXAMPLES[name])
    x = embedding(2, 5)
    for skip in ({0, 1}, {2, 3}, {2, 3, 4}, {4, 5}, {1, 3, 5}, set(range(SUBLAYERS))):
        inside = x.detach().requires_grad_()
        out = run(depth, inside, skip=skip)
        (grad,) = torch.autograd.grad(out.square().sum(), inside)
        assert torch.isfinite(out).all()
        assert torch.isfinite(grad).all()
    ratio = run(depth, x, skip=range(SUBLAYERS)) / x
    torch.testing.assert_close(ratio, ratio[..., :1].expand_as(ratio))  # nothing but the embedding is left


@every
def test_readout_works_after_any_site(name: str) -> None:
    depth = made(EXAMPLES[name])
    x = embedding(2, 5)
    state = depth.open(x)
    assert depth.readout(state).shape == x.shape
    for site, weight in zip(depth.sites, WEIGHTS, strict=False):
        h, state = site.read(state)
        state = site.write(state, torch.tanh(h @ weight))
        out = depth.readout(state)
        assert out.shape == x.shape
        assert torch.isfinite(out).all()


@every
@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (1, 1), (), (3,), (2, 1, 3)])
def test_any_leading_shape(name: str, shape: tuple[int, ...]) -> None:
    depth = made(EXAMPLES[name])
    x = embedding(*shape)
    out = run(depth, x)
    assert out.shape == x.shape
    assert torch.isfinite(out).all()
    assert all(torch.isfinite(g).all() for g in gradients(depth, x, lambda x: run(depth, x)))
    flat = run(depth, x.reshape(-1, DIM)).reshape(x.shape)
    torch.testing.assert_close(out, flat, rtol=1e-12, atol=1e-12)


@every
def test_a_strided_embedding_gives_the_same(name: str) -> None:
    depth = made(EXAMPLES[name])
    x = embedding(2, 5)
    strided = x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert not strided.is_contiguous()
    torch.testing.assert_close(run(depth, strided), run(depth, x), rtol=1e-12, atol=1e-12)


@every
@pytest.mark.parametrize("skip", [(), (0,), (2, 3), (1, 4, 5), range(SUBLAYERS)])
def test_packing_at_every_site_changes_nothing(name: str, skip: Collection[int]) -> None:
    depth = made(EXAMPLES[name])
    x = embedding(2, 5)
    places = [*depth.sites, depth.readout]

    def hop(index: int, state: State) -> State:
        packed = depth.pack(state)
        assert isinstance(packed, tuple)
        assert all(isinstance(t, Tensor) for t in packed)
        return depth.unpack([t.clone() for t in packed], places[index])

    torch.testing.assert_close(run(depth, x, skip, hop), run(depth, x, skip), rtol=1e-12, atol=1e-12)
    expected = gradients(depth, x, lambda x: run(depth, x)) if not skip else None
    if expected is not None:
        found = gradients(depth, x, lambda x: run(depth, x, skip, hop))
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "name", [name for name, example in EXAMPLES.items() if type(example).prefetch is not Connection.prefetch]
)
def test_prefetch_never_changes_a_result(name: str) -> None:
    """Of those that prefetch; for the others it is the state as it was."""
    depth = made(EXAMPLES[name])
    x = embedding(2, 5)

    def hop(index: int, state: State) -> State:
        return depth.prefetch(state, list(depth.sites)[index : index + 3])

    for skip in ((), (1, 2)):
        torch.testing.assert_close(run(depth, x, skip, hop), run(depth, x, skip), rtol=1e-12, atol=1e-12)


def test_who_does_not_prefetch_leaves_the_state() -> None:
    depth = made(EXAMPLES["hc"])
    state = depth.open(embedding(2, 5))
    assert depth.prefetch(state, list(depth.sites)[:3]) is state


@every
def test_configuration_goes_through_json(name: str) -> None:
    connection = EXAMPLES[name]
    data = json.loads(json.dumps(to_dict(connection)))
    assert data["kind"] == connection.kind
    assert from_dict(Connection, data) == connection
    with pytest.raises(UsageError, match="unknown key 'stream_count'"):
        from_dict(Connection, {**data, "stream_count": 2})
    with pytest.raises(dataclasses.FrozenInstanceError):
        connection.state_dtype = "bfloat16"


def test_wrong_names_and_sizes_are_errors() -> None:
    with pytest.raises(UsageError, match="Did you mean multi-gate"):
        from_dict(Connection, {"kind": "multigate"})
    for connection in EXAMPLES.values():
        with pytest.raises(UsageError, match="state_dtype"):
            dataclasses.replace(connection, state_dtype="float12")
        with pytest.raises(UsageError, match="dim=0"):
            connection.build(0, SUBLAYERS)


def normed(x: Tensor, scale: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-2 * scale**2)


@pytest.mark.parametrize("name", PRENORM_STARTS)
@pytest.mark.parametrize("sublayers", [SUBLAYERS, 11])
def test_start_equals_prenorm(name: str, sublayers: int) -> None:
    """With `eps · scale²` in the norm that reads, even for an eps as large as 0.01."""
    depth = EXAMPLES[name].build(DIM, sublayers, dtype=torch.float64)
    x = embedding(2, 5)
    state, stream = depth.open(x), x
    for site, weight in zip(depth.sites, WEIGHTS, strict=False):
        h, state = site.read(state)
        torch.testing.assert_close(normed(h, site.scale), normed(stream, 1.0), rtol=1e-12, atol=1e-12)
        state = site.write(state, torch.tanh(normed(h, site.scale) @ weight))
        stream = stream + torch.tanh(normed(stream, 1.0) @ weight)
    out = depth.readout(state)
    torch.testing.assert_close(normed(out, depth.readout.scale), normed(stream, 1.0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(out, stream * depth.readout.scale, rtol=1e-12, atol=1e-12)


@every
@pytest.mark.parametrize("training", [True, False])
def test_sites_never_mutate_a_state(name: str, training: bool) -> None:
    depth = made(EXAMPLES[name])
    x = embedding(2, 5)
    with torch.set_grad_enabled(training):
        state = depth.open(x)
        for site, weight in zip(depth.sites, WEIGHTS, strict=False):
            before, copies = list(tensors_of(state)), [t.clone() for t in tensors_of(state)]
            h, after = site.read(state)
            read, read_copies = list(tensors_of(after)), [t.clone() for t in tensors_of(after)]
            output = torch.tanh(h @ weight)
            h_copy, output_copy = h.clone(), output.clone()
            written = site.write(after, output)
            site.skip(state), site.inspect(state), depth.readout(state), depth.readout(written), depth.pack(written)
            again, _ = site.read(state)
            for tensor, value in zip(
                (*before, *read, h, output), (*copies, *read_copies, h_copy, output_copy), strict=True
            ):
                assert torch.equal(tensor, value)
            assert torch.equal(again, h)
            state = written


@every
def test_two_runs_are_equal_to_the_bit(name: str) -> None:
    depth = made(EXAMPLES[name])
    x = embedding(3, 17, dtype=torch.float32)
    first, second = (gradients(depth, x, lambda x: run(depth, x)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@every
def test_inference_equals_training(name: str) -> None:
    depth = made(EXAMPLES[name])
    x = embedding(2, 5)
    expected = run(depth, x)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            torch.testing.assert_close(run(depth, x), expected.detach(), rtol=1e-12, atol=1e-12)


@every
def test_deepcopy_is_equal_and_apart(name: str) -> None:
    depth = made(EXAMPLES[name])
    x = embedding(2, 5)
    twin = copy.deepcopy(depth)
    expected = run(depth, x)
    assert torch.equal(run(twin, x), expected)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert torch.equal(run(depth, x), expected)


@every
def test_no_state_crosses_tokens(name: str) -> None:
    depth = made(EXAMPLES[name])
    x = embedding(2, 5)
    changed = x.clone()
    changed[1, 2] += 3.0
    a, b = run(depth, x), run(depth, changed)
    same = torch.ones(2, 5, dtype=torch.bool)
    same[1, 2] = False
    torch.testing.assert_close(a[same], b[same], rtol=1e-13, atol=1e-13)
    assert not torch.allclose(a[1, 2], b[1, 2])


@every
def test_inspect_shows_detached_floats_under_known_names(name: str) -> None:
    depth = made(EXAMPLES[name])
    x = embedding(2, 5, dtype=torch.bfloat16).requires_grad_()
    state = depth.open(x)
    for site in (*depth.sites, depth.readout):
        shown = site.inspect(state)
        assert set(shown) <= {"weights", "gates", "mixing", "streams"}
        for tensor in shown.values():
            assert not tensor.requires_grad
            assert tensor.dtype in (torch.float32, torch.float64)
        for key in shown.keys() & {"weights", "gates"}:
            assert shown[key].shape[:-1] == (2, 5)
        if site is not depth.readout:
            h, state = site.read(state)
            state = site.write(state, torch.tanh(h))
