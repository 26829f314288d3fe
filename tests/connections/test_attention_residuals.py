"""Attention Residuals: golden values, blocks and their boundaries, the start, and what goes wrong in other code."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from leadline.connections import AttentionResiduals, Depth
from leadline.errors import UsageError
from leadline.ops import Backend, use_backend
from stacks import DIM, check_golden, fold, golden_cases, inputs, moved

CASES = golden_cases("attention_residuals")
EPS = 1e-6

both = pytest.mark.parametrize("backend", ["reference", "lean"])


def written_out(
    depth: Depth, x: Tensor, layers: Tensor, size: int, skip: Collection[int] = ()
) -> tuple[Tensor, list[Tensor]]:
    """The paper's equations without a state: every read gathers its sources from the outputs that exist so far."""
    outputs: dict[int, Tensor] = {}

    def sources() -> list[Tensor]:
        blocks: dict[int, Tensor] = {}
        for index, output in outputs.items():
            blocks[index // size] = blocks.get(index // size, 0.0) + output
        return [x, *blocks.values()]

    def read(part: Any) -> Tensor:
        values = sources()
        if len(values) == 1:
            return values[0]
        keys = [v / (v.square().mean(-1, keepdim=True) + EPS).sqrt() * part.key_gain for v in values]
        weights = torch.stack([(part.query * key).sum(-1).exp() for key in keys])
        weights = weights / weights.sum(0)
        return sum((w.unsqueeze(-1) * v for w, v in zip(weights, values, strict=True)), torch.zeros_like(x))

    reads = []
    for index, (site, layer) in enumerate(zip(depth.sites, layers, strict=True)):
        if index not in skip:
            reads.append(read(site))
            outputs[index] = torch.tanh(reads[-1] @ layer)
    return read(depth.readout), reads


def sources_seen(connection: AttentionResiduals, sublayers: int, skip: Collection[int] = ()) -> list[int]:
    """How many sources each read sees, the readout last."""
    depth = connection.build(DIM, sublayers)
    state, seen = depth.open(torch.ones(DIM)), []
    for index, site in enumerate(depth.sites):
        if index in skip:
            continue
        seen.append(site.inspect(state)["weights"].shape[-1])
        h, state = site.read(state)
        state = site.write(state, h)
    return [*seen, depth.readout.inspect(state)["weights"].shape[-1]]


@both
@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_golden(case: dict[str, Any], backend: Backend) -> None:
    config = case["config"]
    check_golden(case, AttentionResiduals(block_size=config["block_size"], eps=config["eps"]), backend)


@both
@pytest.mark.parametrize(
    "skip", [(), (0,), (2,), (3,), (2, 3, 4), (3, 4, 5), (0, 1, 2), (5, 6, 7), (1, 3, 5), range(8)]
)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 20])
def test_the_equations_with_any_block_size_and_anything_skipped(
    size: int, skip: Collection[int], backend: Backend
) -> None:
    """A skipped boundary loses nothing, an empty block adds no source, a remainder is a shorter block."""
    x, layers = inputs(8)
    depth = moved(AttentionResiduals(block_size=size), 8)
    with use_backend(backend):
        found, reads = fold(depth, x, layers, skip)
    truth, true_reads = written_out(depth, x, layers, size, skip)
    torch.testing.assert_close(found, truth, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(reads, true_reads, rtol=1e-11, atol=1e-11)


def test_blocks_of_one_are_full_bit_for_bit() -> None:
    x, layers = inputs(9)
    results = []
    for connection in (AttentionResiduals(), AttentionResiduals(block_size=1)):
        depth = moved(connection, 9)
        inside = x.detach().requires_grad_()
        out, reads = fold(depth, inside, layers)
        results.append([out, *reads, *torch.autograd.grad(out.square().sum(), [inside, *depth.parameters()])])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_one_block_keeps_the_embedding_apart_and_sums_the_rest() -> None:
    x, layers = inputs(5)
    depth = moved(AttentionResiduals(block_size=5), 5)
    state = depth.open(x)
    outputs = []
    for site, layer in zip(depth.sites, layers, strict=True):
        h, state = site.read(state)
        outputs.append(torch.tanh(h @ layer))
        state = site.write(state, outputs[-1])
    assert len(state.sources) == 2
    assert torch.equal(state.sources[0], x)
    torch.testing.assert_close(state.sources[1], sum(outputs, torch.zeros_like(x)), rtol=1e-12, atol=1e-12)


def test_the_first_block_is_whole_and_a_boundary_is_read_once() -> None:
    """Layers count from 0, and at a boundary the finished sum is in the bank only: neither twice nor beside zeros."""
    assert sources_seen(AttentionResiduals(block_size=3), 8) == [1, 2, 2, 2, 3, 3, 3, 4, 4]
    assert sources_seen(AttentionResiduals(block_size=2), 4) == [1, 2, 2, 3, 3]
    assert sources_seen(AttentionResiduals(), 4) == [1, 2, 3, 4, 5]
    assert sources_seen(AttentionResiduals(block_size=3), 8, skip={3, 4, 5}) == [1, 2, 2, 2, 3, 3]
    assert sources_seen(AttentionResiduals(block_size=3), 8, skip={2, 3}) == [1, 2, 2, 3, 3, 4, 4]
    assert [s.block for s in AttentionResiduals(block_size=3).build(DIM, 8).sites] == [0, 0, 0, 1, 1, 1, 2, 2]
    x, layers = inputs(4)
    depth = AttentionResiduals(block_size=2).build(DIM, 4, dtype=torch.float64)
    state, outputs = depth.open(x), []
    for site, layer in list(zip(depth.sites, layers, strict=True))[:2]:
        h, state = site.read(state)
        outputs.append(torch.tanh(h @ layer))
        state = site.write(state, outputs[-1])
    h, state = depth.sites[2].read(state)
    torch.testing.assert_close(h, (x + outputs[0] + outputs[1]) / 2, rtol=1e-14, atol=1e-14)
    assert state.partial == ()


@pytest.mark.parametrize("size", [None, 3])
def test_more_than_32_sources_are_all_read_and_all_learn(size: int | None) -> None:
    sublayers = 40 * (size or 1)
    x, layers = inputs(sublayers)
    depth = moved(AttentionResiduals(block_size=size), sublayers)
    with torch.no_grad():
        depth.readout.query.zero_()
    state, outputs = depth.open(x.requires_grad_()), []
    for site, layer in zip(depth.sites, layers, strict=True):
        h, state = site.read(state)
        outputs.append(torch.tanh(h @ layer))
        state = site.write(state, outputs[-1])
    out = depth.readout(state)
    torch.testing.assert_close(out, (x + sum(outputs, torch.zeros_like(x))) / 41, rtol=1e-12, atol=1e-12)
    learning = [p for key, p in depth.named_parameters() if key != "readout.key_gain"]  # its query is zero here
    gradients = torch.autograd.grad(out.square().sum(), [x, *learning])
    assert all(torch.isfinite(g).all() and g.any() for g in gradients)


def test_queries_start_at_exactly_zero_and_gains_at_one() -> None:
    depth = AttentionResiduals(block_size=2).build(DIM, 5)
    assert not list(depth.sites[0].parameters())
    for part in (*list(depth.sites)[1:], depth.readout):
        assert torch.equal(part.query, torch.zeros(DIM))
        assert torch.equal(part.key_gain, torch.ones(DIM))


def test_scales_are_one_over_the_sources() -> None:
    def scales(connection: AttentionResiduals, sublayers: int = 7) -> list[float]:
        depth = connection.build(DIM, sublayers)
        return [1 / part.scale for part in (*depth.sites, depth.readout)]

    assert scales(AttentionResiduals()) == pytest.approx([1, 2, 3, 4, 5, 6, 7, 8])
    assert scales(AttentionResiduals(block_size=3)) == pytest.approx([1, 2, 2, 2, 3, 3, 3, 4])
    assert scales(AttentionResiduals(window=2)) == pytest.approx([1, 2, 3, 3, 3, 3, 3, 3])
    assert scales(AttentionResiduals(weights="sigmoid")) == pytest.approx([1, 2, 2, 2, 2, 2, 2, 2])


@settings(max_examples=25)
@given(
    sublayers=st.integers(0, 12),
    size=st.integers(1, 13),
    seed=st.integers(0, 99),
    backend=st.sampled_from(["reference", "lean"]),
)
def test_zero_queries_equal_prenorm(sublayers: int, size: int, seed: int, backend: Backend) -> None:
    """Exactly, with `eps · scale²` in the norms that read, even for an eps of 0.1."""
    x, layers = inputs(sublayers, seed)
    depth = AttentionResiduals(block_size=size).build(DIM, sublayers, dtype=torch.float64)

    def normed(x: Tensor, scale: float) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 0.1 * scale**2)

    with use_backend(backend):
        state, stream = depth.open(x), x
        for site, layer in zip(depth.sites, layers, strict=True):
            h, state = site.read(state)
            state = site.write(state, torch.tanh(normed(h, site.scale) @ layer))
            stream = stream + torch.tanh(normed(stream, 1.0) @ layer)
        out = depth.readout(state)
    torch.testing.assert_close(normed(out, depth.readout.scale), normed(stream, 1.0), rtol=1e-12, atol=1e-12)


@both
def test_a_read_of_one_source_gives_its_query_a_gradient_of_exactly_zero(backend: Backend) -> None:
    """Where everything before is skipped, a site with a query reads the embedding alone."""
    x, layers = inputs(4)
    depth = moved(AttentionResiduals(), 4)
    with use_backend(backend):
        out, reads = fold(depth, x, layers, skip={0, 1})
        assert torch.equal(reads[0], x)
        query, gain = torch.autograd.grad(out.square().sum(), [depth.sites[2].query, depth.sites[2].key_gain])
    assert not query.any()
    assert not gain.any()


def test_the_readout_reads_the_last_output_and_has_its_own_query() -> None:
    """A last hidden state taken before the readout would miss both."""
    x, layers = inputs(4)
    depth = moved(AttentionResiduals(block_size=3), 4)
    state = depth.open(x)
    for site, layer in zip(depth.sites, layers, strict=True):
        h, state = site.read(state)
        output = torch.tanh(h @ layer).detach().requires_grad_()
        state = site.write(state, output)
    out = depth.readout(state)
    gradients = torch.autograd.grad(out.square().sum(), [output, depth.readout.query, depth.readout.key_gain])
    assert all(g.any() for g in gradients)


def test_a_finished_block_keeps_its_values_and_its_memory() -> None:
    """No buffer is used again for the next block's sum."""
    x, layers = inputs(6)
    depth = moved(AttentionResiduals(block_size=2), 6)
    with torch.no_grad():
        state, seen = depth.open(x), {}
        for site, layer in zip(depth.sites, layers, strict=True):
            h, state = site.read(state)
            state = site.write(state, torch.tanh(h @ layer))
            for index, source in enumerate(state.bank):
                assert torch.equal(seen.setdefault(index, source.clone()), source)
        pointers = {source.data_ptr() for source in state.sources}
    assert len(pointers) == len(state.sources) == 4


@pytest.mark.parametrize("size", [None, 2])
def test_what_backward_keeps_grows_linearly_with_depth(size: int | None) -> None:
    """A stacked copy for each read would make it quadratic."""

    def kept_by(sublayers: int) -> int:
        depth = AttentionResiduals(block_size=size).build(64, sublayers)
        storages: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            state = depth.open(torch.randn(128, 64, requires_grad=True))
            for site in depth.sites:
                h, state = site.read(state)
                state = site.write(state, h * 0.5)
            depth.readout(state)
        return sum(storage.nbytes() // (128 * 64 * 4) for storage in storages.values())

    assert kept_by(32) <= 2 * kept_by(16) + 2


def test_recomputation_is_not_bypassed_and_the_bank_stays_narrow() -> None:
    depth = AttentionResiduals(block_size=2, state_dtype="bfloat16").build(DIM, 4)
    x, layers = inputs(4)
    calls = 0

    def block(first: int, state: Any) -> Any:
        nonlocal calls
        calls += 1
        for index in (first, first + 1):
            h, state = depth.sites[index].read(state)
            state = depth.sites[index].write(state, torch.tanh(h.float() @ layers[index].float()))
        return state

    state = depth.open(x.float().requires_grad_())
    for first in (0, 2):
        state = checkpoint(block, first, state, use_reentrant=False)
    assert all(source.dtype == torch.bfloat16 for source in state.sources)
    assert all(root.dtype == torch.float32 for root in state.source_roots)
    depth.readout(state).float().sum().backward()
    assert calls == 4


def test_a_root_is_worked_out_once_for_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counted(source: Tensor, eps: float) -> Tensor:
        nonlocal calls
        calls += 1
        return (source.square().mean(-1) + eps).rsqrt()

    for module in ("leadline.connections.attention_residuals", "leadline.ops.depth_attention.reference"):
        monkeypatch.setattr(sys.modules[module], "source_root", counted)
    x, layers = inputs(6)
    fold(moved(AttentionResiduals(), 6), x, layers)
    assert calls == 7


def test_a_state_is_tensors_and_tuples_of_them() -> None:
    depth = AttentionResiduals(block_size=2).build(DIM, 4)
    state = depth.open(torch.ones(3, DIM))
    for site in depth.sites:
        h, state = site.read(state)
        for value in (*state, *(site.write(state, h))):
            assert isinstance(value, Tensor) or all(isinstance(t, Tensor) for t in value)
        state = site.write(state, h)


def ablated(depth: Depth, x: Tensor, layers: Tensor, config: AttentionResiduals) -> Tensor:
    """The ablations, read by read, from lists."""
    sources = [x]

    def read(part: Any) -> Tensor:
        window = sources if config.window is None else [sources[0], *sources[1:][-config.window :]]
        if len(window) == 1:
            return window[0]
        v = torch.stack(window)
        if config.weights == "static":
            weights = part.query[: len(window)].softmax(0).reshape(-1, *[1] * (v.dim() - 1))
            return (weights * v).sum(0)
        keys = v / (v.square().mean(-1, keepdim=True) + EPS).sqrt() * part.key_gain if config.key_norm else v
        scores = keys @ part.query
        weights = scores.sigmoid() if config.weights == "sigmoid" else scores.softmax(0)
        return (weights.unsqueeze(-1) * v).sum(0)

    for site, layer in zip(depth.sites, layers, strict=True):
        sources.append(torch.tanh(read(site) @ layer))
    return read(depth.readout)


@both
@pytest.mark.parametrize(
    "config",
    [
        AttentionResiduals(key_norm=False),
        AttentionResiduals(weights="sigmoid"),
        AttentionResiduals(weights="sigmoid", key_norm=False),
        AttentionResiduals(weights="static"),
        AttentionResiduals(window=1),
        AttentionResiduals(window=3),
        AttentionResiduals(window=2, weights="static"),
        AttentionResiduals(window=100),
    ],
    ids=lambda c: f"{c.weights}-{c.key_norm}-{c.window}",
)
def test_ablations(config: AttentionResiduals, backend: Backend) -> None:
    x, layers = inputs(6)
    depth = moved(config, 6)
    with use_backend(backend):
        found = fold(depth, x.requires_grad_(), layers)[0]
    truth = ablated(depth, x, layers, config)
    torch.testing.assert_close(found, truth, rtol=1e-11, atol=1e-11)
    wanted = [x, *depth.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), wanted),
        torch.autograd.grad(truth.square().sum(), wanted),
        rtol=1e-10,
        atol=1e-10,
    )


def test_packing_says_whether_there_is_a_partial_sum_and_of_which_block() -> None:
    x, _ = inputs(4)
    depth = moved(AttentionResiduals(block_size=2), 4)
    state = depth.open(x)
    assert [tuple(t.shape) for t in depth.pack(state)] == [(2, 3, DIM), (0, 0, 0)]
    for site, shape in zip(depth.sites, [(0, 1, 0), (0, 1, 0), (0, 1, 1), (0, 1, 1)], strict=True):
        h, state = site.read(state)
        state = site.write(state, h)
        packed = depth.pack(state)
        assert packed[-1].shape == shape
        again = depth.unpack(packed, site)
        assert again.block == state.block
        pairs = [
            *zip(again.sources, state.sources, strict=True),
            *zip(again.source_roots, state.source_roots, strict=True),
        ]
        assert all(torch.equal(a, b) for a, b in pairs)


def test_wrong_options_are_errors() -> None:
    for options, words in (
        ({"block_size": 0}, "block_size=0 must be at least 1"),
        ({"weights": "max"}, "weights='max' is not known; softmax, sigmoid and static work"),
        ({"window": 0}, "window=0 must be at least 1"),
        ({"eps": -1.0}, "eps=-1.0 must not be negative"),
    ):
        with pytest.raises(UsageError, match=words):
            AttentionResiduals(**options)


def test_sites_out_of_place_are_errors() -> None:
    depth = AttentionResiduals().build(DIM, 3)
    h, state = depth.sites[0].read(depth.open(torch.ones(DIM)))
    with pytest.raises(UsageError, match="the first site must come first"):
        depth.sites[0].read(depth.sites[1].write(state, h))
    static = AttentionResiduals(weights="static").build(DIM, 3)
    _, state = static.sites[0].read(static.open(torch.ones(DIM)))
    for site in static.sites:
        state = site.write(state, h)
    with pytest.raises(UsageError, match="static weights for 2 sources met 4"):
        static.sites[1].read(state)


def test_the_python_on_its_page_runs() -> None:
    page = Path(__file__).parents[2] / "docs" / "attention-residuals.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, str(page), "exec"), names)
    assert len(names["depth"].sites) == 24


def test_static_weights_have_one_number_for_each_source_that_a_read_sees() -> None:
    depth = AttentionResiduals(weights="static", window=2).build(DIM, 6)
    assert [0 if site.query is None else len(site.query) for site in depth.sites] == [0, 2, 3, 3, 3, 3]
    assert len(depth.readout.query) == 3
    x, layers = inputs(6)
    final, _ = fold(depth.double(), x, layers)
    final.sum().backward()
    assert all(p.grad is not None for p in depth.parameters())


def prefetching(depth: Depth, x: Tensor, layers: Tensor, ahead: int, skip: Collection[int] = ()) -> Tensor:
    """The fold, where every `ahead`-th site is preceded by a prefetch for it and the ones after it."""
    state = depth.open(x)
    for index, (site, layer) in enumerate(zip(depth.sites, layers, strict=True)):
        if index % ahead == 0:
            state = depth.prefetch(state, list(depth.sites)[index : index + ahead])
        if index in skip:
            state = site.skip(state)
            continue
        h, state = site.read(state)
        state = site.write(state, torch.tanh(h @ layer))
    return depth.readout(state)


@both
@pytest.mark.parametrize("skip", [(), (2, 3), (0,)])
@pytest.mark.parametrize("ahead", [1, 3, 4, 8])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_prefetch_never_changes_a_result(size: int, ahead: int, skip: Collection[int], backend: Backend) -> None:
    x, layers = inputs(8)
    depth = moved(AttentionResiduals(block_size=size), 8)
    parameters = [x.requires_grad_(), *depth.parameters()]
    with use_backend(backend):
        found = prefetching(depth, x, layers, ahead, skip)
        truth, _ = fold(depth, x, layers, skip)
        torch.testing.assert_close(found, truth, rtol=1e-11, atol=1e-11)
        grads = [torch.autograd.grad(y.sin().sum(), parameters, allow_unused=True) for y in (found, truth)]
        for a, b in zip(*grads, strict=True):
            if a is not None and b is not None:
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
            else:
                assert b is None
                assert a is None or not a.any()
        with torch.no_grad():
            torch.testing.assert_close(prefetching(depth, x, layers, ahead, skip), truth, rtol=1e-11, atol=1e-11)


def test_a_prefetched_site_reads_once_from_what_was_prefetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sites given don't read the bank again; a site that wasn't given does."""
    x, layers = inputs(4)
    depth = moved(AttentionResiduals(block_size=4), 4)
    state = depth.open(x)
    reads = []
    monkeypatch.setattr(
        "leadline.connections.attention_residuals.read_sources",
        lambda sources, *_, **__: (reads.append(len(sources)), (sources[0], tuple(sources)))[1],
    )
    state = depth.prefetch(state, list(depth.sites)[:3])
    for site, layer in zip(depth.sites, layers, strict=True):
        h, state = site.read(state)
        state = site.write(state, torch.tanh(h @ layer))
    assert reads == [2]
    assert not state.ahead


@pytest.mark.parametrize("options", [{"window": 2}, {"key_norm": False}, {"weights": "sigmoid"}])
def test_ablations_are_not_prefetched(options: dict[str, Any]) -> None:
    depth = moved(AttentionResiduals(**options), 4)
    state = depth.open(inputs(4)[0])
    assert depth.prefetch(state, list(depth.sites)) is state
