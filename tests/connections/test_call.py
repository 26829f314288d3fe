"""A site as a call, and the norm that fits what it reads: `state = site(state, sublayer, *args, **kwargs)`."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from connection_examples import EXAMPLES
from torch import Tensor, nn

from leadline.connections import CONNECTIONS, Additive, AttentionResiduals, Depth, HyperConnections, MultiGate, State
from leadline.errors import UsageError
from leadline.stacks.sites import Watcher, watch

DIM, SUBLAYERS = 8, 6

every = pytest.mark.parametrize("name", EXAMPLES)


def moved(name: str) -> Depth:
    depth = EXAMPLES[name].build(DIM, SUBLAYERS)
    with torch.no_grad():
        for p in depth.parameters():
            p += 0.3 * torch.randn(p.shape)
    return depth


@every
def test_a_call_is_read_sublayer_write(name: str) -> None:
    depth, x = moved(name), torch.randn(2, 5, DIM)
    sublayers = [nn.Linear(DIM, DIM) for _ in range(SUBLAYERS)]
    called = written = depth.open(x)
    for site, sublayer in zip(depth.sites, sublayers, strict=True):
        called = site(called, sublayer)
        h, written = site.read(written)
        written = site.write(written, sublayer(h))
    assert torch.equal(depth.readout(called), depth.readout(written))


def test_arguments_are_passed_on_and_a_tuple_comes_back() -> None:
    seen: list[Any] = []

    def attention(h: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, str, None]:
        seen.append((args, kwargs))
        return 2 * h, "weights", None

    depth, x = Additive().build(DIM, 1), torch.randn(2, 5, DIM)
    # The names of a sublayer's own arguments are free.
    result = depth.sites[0](depth.open(x), attention, "mask", state="mine", sublayer=1, cache="kv")
    state, weights, nothing = result
    assert seen == [(("mask",), {"state": "mine", "sublayer": 1, "cache": "kv"})]
    assert (weights, nothing, type(result)) == ("weights", None, tuple)
    assert torch.equal(depth.readout(state), 3 * x)


def test_a_tuple_of_one_stays_a_tuple() -> None:
    depth = Additive().build(DIM, 1)
    (state,) = depth.sites[0](depth.open(torch.ones(1, DIM)), lambda h: (h,))
    assert torch.equal(depth.readout(state), 2 * torch.ones(1, DIM))


@pytest.mark.parametrize("output", [None, {"hidden": torch.ones(1)}, [torch.ones(1)], (), (None, torch.ones(1))])
def test_what_is_no_output_is_named(output: Any) -> None:
    def attend(h: Tensor) -> Any:
        return output

    depth = Additive().build(DIM, 1)
    with pytest.raises(UsageError, match=rf"attend returned {type(output).__name__}; .* a tuple that begins with one"):
        depth.sites[0](depth.open(torch.ones(1, DIM)), attend)


class NanochatAttention(nn.Module):
    """The arguments of nanochat's attention: `attn(norm(x), cos_sin, kv_cache)`."""

    def __init__(self) -> None:
        super().__init__()
        self.c_proj = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, cos_sin: tuple[Tensor, Tensor], kv_cache: list[Tensor] | None) -> Tensor:
        cos, sin = cos_sin
        if kv_cache is not None:
            kv_cache.append(x)
        return self.c_proj(x * cos + x.roll(1, -1) * sin)


def test_nanochats_attention_fits() -> None:
    attn, cos_sin, cache = NanochatAttention(), (torch.rand(5, DIM), torch.rand(5, DIM)), []
    depth, x = Additive().build(DIM, 1), torch.randn(2, 5, DIM)

    def norm(x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],))

    state = depth.sites[0](depth.open(x), lambda h, *args: attn(norm(h), *args), cos_sin, cache)
    assert torch.equal(depth.readout(state), x + attn(norm(x), cos_sin, None))
    assert torch.equal(cache[0], norm(x))


def test_calls_are_watched() -> None:
    class Count(Watcher):
        reads = writes = 0

        def on_read(self, *_: Any) -> None:
            self.reads += 1

        def on_write(self, *_: Any) -> None:
            self.writes += 1

    depth, count = moved("mgr-competitive"), Count()
    with watch(depth, count):
        state = depth.open(torch.randn(3, DIM))
        for site in depth.sites:
            state = site(state, torch.tanh)
    assert count.reads == count.writes == SUBLAYERS


def test_calls_compile_whole() -> None:
    depth, layers = moved("mgr-competitive"), nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(SUBLAYERS))

    def run(x: Tensor, mask: Tensor) -> Tensor:
        state = depth.open(x)
        for site, layer in zip(depth.sites, layers, strict=True):
            state, _ = site(state, lambda h, mask, layer=layer: (layer(h) * mask, mask), mask=mask)
        return depth.readout(state)

    x, mask = torch.randn(2, 5, DIM), torch.rand(5, 1)
    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, mask), run(x, mask))


@every
def test_a_state_is_what_its_type_says(name: str) -> None:
    """`ll.State`: a NamedTuple of tensors and tuples, with documented fields."""
    state: State = moved(name).open(torch.randn(3, DIM))
    assert isinstance(state, tuple)
    assert len(state) == len(state._fields)
    assert list(state._asdict()) == list(state._fields)
    described = type(state).__doc__ or ""
    assert all(f"{field}:" in described or f"{field}, " in described for field in state._fields)


# site.norm


class NanoGPTLayerNorm(nn.Module):
    """nanoGPT's, whose eps is a number in its code."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(dim))
        self.bias = nn.Parameter(torch.rand(dim))

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class LlamaRMSNorm(nn.Module):
    """transformers', whose eps is called variance_epsilon."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(dim))
        self.variance_epsilon = 1e-2

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


NORMS = {
    "LayerNorm": lambda: nn.LayerNorm(DIM, eps=1e-2),
    "RMSNorm": lambda: nn.RMSNorm(DIM, eps=1e-2),
    "RMSNorm without eps": lambda: nn.RMSNorm(DIM),
    "nanoGPT": lambda: NanoGPTLayerNorm(DIM),
    "Llama": lambda: LlamaRMSNorm(DIM),
}
SITES = {
    "mean of three": AttentionResiduals().build(DIM, 2).sites[1],
    "readout of four streams": HyperConnections().build(DIM, 2).readout,
    "residual": Additive().build(DIM, 2).sites[1],
}


@pytest.mark.parametrize("make", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("place", SITES.values(), ids=SITES)
def test_a_norm_of_a_read_is_the_norm_of_the_residual_stream(make: Any, place: Any) -> None:
    """x · scale is what is read where the residual stream is x; small x, so that eps counts."""
    norm = make().double()
    before, keys = vars(norm).copy(), list(norm.state_dict())
    scaled = place.norm(norm)
    x = 0.05 * torch.randn(4, DIM, dtype=torch.float64)
    torch.testing.assert_close(scaled(x * place.scale), norm(x), rtol=1e-12, atol=1e-14)
    assert type(scaled) is type(norm)
    assert vars(norm) == before, "the user's norm changed"
    assert not norm._forward_pre_hooks
    assert list(scaled.state_dict()) == keys


@pytest.mark.parametrize("make", NORMS.values(), ids=NORMS)
def test_a_scaled_norm_has_the_parameters_of_its_original(make: Any) -> None:
    """Trained, loaded or moved in either, they stay one."""
    norm = make()
    scaled = SITES["mean of three"].norm(norm)
    assert [id(p) for p in scaled.parameters()] == [id(p) for p in norm.parameters()]
    norm.load_state_dict({key: torch.full_like(value, 3.0) for key, value in norm.state_dict().items()})
    assert all((p == 3.0).all() for p in scaled.parameters())
    norm.to_empty(device="meta")
    assert all(p.is_meta for p in scaled.parameters())


@pytest.mark.parametrize("make", NORMS.values(), ids=NORMS)
def test_a_scaled_norm_is_copied_pickled_and_compiled(make: Any) -> None:
    scaled, x = SITES["mean of three"].norm(make()), torch.randn(3, DIM)
    torch._dynamo.reset()
    compiled = torch.compile(copy.deepcopy(scaled), fullgraph=True, backend="aot_eager")
    for other in (copy.deepcopy(scaled), pickle.loads(pickle.dumps(scaled)), compiled):
        torch.testing.assert_close(other(x), scaled(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_number_is_the_eps_of_an_rmsnorm_without_a_gain(dtype: torch.dtype) -> None:
    site = SITES["mean of three"]
    norm = site.norm(1e-2)
    assert not list(norm.parameters())
    for dim in (DIM, 3):
        x = (0.05 * torch.randn(4, dim)).to(dtype)
        assert norm(x).dtype == dtype
        torch.testing.assert_close(norm(x), F.rms_norm(x, (dim,), eps=1e-2 * site.scale**2))


@pytest.mark.parametrize("wrong", [-1e-6, float("nan"), "layernorm", None, F.layer_norm])
def test_what_is_no_norm_is_named(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"should be a module, such as nn\.LayerNorm"):
        SITES["residual"].norm(wrong)


@pytest.mark.parametrize("kind", sorted(CONNECTIONS))
def test_every_site_and_readout_has_it(kind: str) -> None:
    depth = CONNECTIONS[kind]().build(DIM, 24)
    for place in (*depth.sites, depth.readout):
        assert place.norm(nn.LayerNorm(DIM, eps=1e-3)).eps == pytest.approx(1e-3 * place.scale**2)


def test_multi_gate_scales_by_its_place() -> None:
    depth = MultiGate(gate_init="prenorm").build(DIM, 5)
    found = [place.norm(nn.LayerNorm(DIM)).eps / 1e-5 for place in (*depth.sites, depth.readout)]
    assert found == pytest.approx([1 / k**2 for k in range(1, 7)])
