"""The operators that are measured alone: inputs, the work on a backend, and the names of what comes out.

T tokens, N sources or streams, D width. A case makes its inputs in any dtype, so that the same code is timed in float32
and checked in float64.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from leadline.choices import Backend
from leadline.connections import (
    AttentionResiduals,
    Connection,
    HyperConnections,
    ManifoldHyperConnections,
    StreamsState,
)
from leadline.connections.base import Site
from leadline.ops import bounded_tanh, bounded_tanh_reuse, depth_attention, multi_gate_step, use_backend

EPS = 1e-6
KAPPA = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the inputs are.

    Attributes:
        tokens, dim: T and D.
        count: N, sources or streams.
    """

    tokens: int = 1024
    dim: int = 512
    count: int = 4


@dataclasses.dataclass(frozen=True)
class Maker:
    """Random inputs that are the same in every dtype, up to rounding."""

    sizes: Sizes
    dtype: torch.dtype
    device: torch.device
    generator: torch.Generator = dataclasses.field(default_factory=lambda: torch.Generator().manual_seed(0))

    def tensor(self, *shape: int, scale: float = 1.0, shift: float = 0.0, wide: bool = False) -> Tensor:
        """Normal numbers, a leaf that wants a gradient; `wide` is for parameters and coefficients."""
        values = torch.randn(shape, generator=self.generator, dtype=torch.float64) * scale + shift
        dtype = torch.promote_types(self.dtype, torch.float32) if wide else self.dtype
        return values.to(self.device, dtype).requires_grad_()

    def site(self, connection: Connection, index: int = 1) -> Site:
        """A site of a stack, its parameters moved off their start."""
        wide = torch.promote_types(self.dtype, torch.float32)
        site = connection.build(self.sizes.dim, 4 * index + 4, device=self.device, dtype=wide).sites[index]
        assert isinstance(site, Site)
        with torch.no_grad():
            for parameter in site.parameters():
                noise = torch.randn(parameter.shape, generator=self.generator, dtype=torch.float64)
                parameter.add_((0.05 * noise).to(parameter))
        return site


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """What an operator gets.

    Attributes:
        tensors: by name; each is a leaf, and its gradient is checked.
        modules: by name; so are their parameters.
        values: whatever needs no gradient.
    """

    tensors: dict[str, Tensor]
    modules: dict[str, nn.Module] = dataclasses.field(default_factory=dict)
    values: dict[str, Any] = dataclasses.field(default_factory=dict)

    def leaves(self) -> dict[str, Tensor]:
        """All tensors that get gradients, the parameters of modules among them."""
        found = dict(self.tensors)
        for name, module in self.modules.items():
            found.update({f"{name} {key}": parameter for key, parameter in module.named_parameters()})
        return found

    def widened(self) -> Inputs:
        """The same numbers in float64."""
        return Inputs(
            tensors={key: tensor.detach().double().requires_grad_() for key, tensor in self.tensors.items()},
            modules={key: copy.deepcopy(module).double() for key, module in self.modules.items()},
            values={
                key: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
                for key, value in self.values.items()
            },
        )

    def several(self, name: str) -> list[Tensor]:
        """`name0`, `name1`, … in order."""
        return [tensor for key, tensor in self.tensors.items() if key.rstrip("0123456789") == name]


Work = Callable[[Inputs, Backend], Sequence[Tensor]]


@dataclasses.dataclass(frozen=True)
class Case:
    """An operator.

    Attributes:
        name: as the table shows it.
        summary: what one turn does.
        make: the inputs.
        work: the outputs on a backend.
        rows: the fewest rows of D numbers per token that forward and backward together must read and write, for N.
        two_phase: the same work in two phases, where it has them.
    """

    name: str
    summary: str
    make: Callable[[Maker], Inputs]
    work: Work
    rows: Callable[[int], int]
    two_phase: Work | None = None


def _attention_inputs(m: Maker) -> Inputs:
    sources = {f"source{i}": m.tensor(m.sizes.tokens, m.sizes.dim) for i in range(m.sizes.count)}
    query = m.tensor(m.sizes.dim, scale=m.sizes.dim**-0.5, wide=True)
    gain = m.tensor(m.sizes.dim, scale=0.1, shift=1.0, wide=True)
    return Inputs(tensors={**sources, "query": query, "gain": gain})


def _attention(i: Inputs, backend: Backend) -> Sequence[Tensor]:
    return [depth_attention(i.several("source"), i.tensors["query"], i.tensors["gain"], EPS, backend=backend)]


BLOCK = 4
"""Sublayers of the block that the two-phase case reads for."""


def _block_inputs(m: Maker) -> Inputs:
    connection = AttentionResiduals(block_size=BLOCK)
    finished = m.sizes.count - 1
    depth = connection.build(m.sizes.dim, BLOCK * (finished + 1), device=m.device, dtype=m.tensor(1, wide=True).dtype)
    sites = [cast(Site, depth.sites[finished * BLOCK + place]) for place in range(BLOCK)]
    with torch.no_grad():
        for site in sites:
            for parameter in site.parameters():
                parameter.add_(m.tensor(*parameter.shape, scale=m.sizes.dim**-0.5, wide=True))
    rows = {f"source{i}": m.tensor(m.sizes.tokens, m.sizes.dim) for i in range(m.sizes.count)}
    outputs = {f"output{i}": m.tensor(m.sizes.tokens, m.sizes.dim) for i in range(BLOCK)}
    return Inputs(
        tensors={**rows, **outputs},
        modules={f"site{place}": site for place, site in enumerate(sites)},
        values={"depth": depth, "block": finished},
    )


def _block(i: Inputs, backend: Backend, two_phase: bool = False) -> Sequence[Tensor]:
    depth, sites, sources = i.values["depth"], cast(list[Site], list(i.modules.values())), i.several("source")
    note = sources[0].new_empty((0, 0, i.values["block"]))
    reads = []
    with use_backend(backend):
        state = depth.unpack((*sources, note), sites[0])
        if two_phase:
            state = depth.prefetch(state, sites)
        for site, output in zip(sites, i.several("output"), strict=True):
            h, state = site.read(state)
            reads.append(h)
            state = site.write(state, output)
        return [*reads, *depth.pack(state)[: len(sources) + 1]]


def _gate_inputs(m: Maker) -> Inputs:
    n, tokens, dim = m.sizes.count, m.sizes.tokens, m.sizes.dim
    beta = torch.rand((n, tokens), generator=m.generator, dtype=torch.float64).mul_(0.2)
    wide = torch.promote_types(m.dtype, torch.float32)
    return Inputs(
        tensors={
            "streams": m.tensor(n, tokens, dim),
            "output": m.tensor(tokens, dim),
            "beta": beta.to(m.device, wide).requires_grad_(),
            "pool query": m.tensor(dim, wide=True),
            "gate query": m.tensor(dim, wide=True),
            "bias": m.tensor(1, wide=True),
        }
    )


def _gate(i: Inputs, backend: Backend) -> Sequence[Tensor]:
    t = i.tensors
    pending, gate = (t["output"], t["beta"]), (t["gate query"], t["bias"])
    step = multi_gate_step(t["streams"], pending, t["pool query"], gate, kind="competitive", eps=EPS, backend=backend)
    return [value for value in step if value is not None]


def _streams_inputs(connection: Callable[[int], Connection]) -> Callable[[Maker], Inputs]:
    def make(m: Maker) -> Inputs:
        streams = m.tensor(m.sizes.tokens, m.sizes.count, m.sizes.dim)
        output = m.tensor(m.sizes.tokens, m.sizes.dim)
        site = m.site(connection(m.sizes.count))
        return Inputs(tensors={"streams": streams, "output": output}, modules={"site": site})

    return make


def _streams_rows(n: int) -> int:
    """Read: streams; h. Write: streams, output; streams. Backward the same rows and their gradients."""
    return (n + 1) + (2 * n + 1) + (3 * n + 2) + (3 * n + 1)


def _streams(i: Inputs, backend: Backend) -> Sequence[Tensor]:
    site = cast(Site, i.modules["site"])
    with use_backend(backend):
        h, state = site.read(StreamsState(i.tensors["streams"]))
        state = site.write(state, i.tensors["output"])
    return [h, state.streams]


def _tanh_inputs(m: Maker) -> Inputs:
    tokens, dim = m.sizes.tokens, m.sizes.dim
    return Inputs(
        tensors={
            "first": m.tensor(tokens, dim),
            "second": m.tensor(tokens, dim),
            "gain": m.tensor(dim, scale=0.1, shift=1.0, wide=True),
            "second gain": m.tensor(dim, scale=0.1, shift=1.0, wide=True),
            "lam": m.tensor(1, scale=0.1, shift=2.0, wide=True),
            "second lam": m.tensor(1, scale=0.1, shift=1.0, wide=True),
        },
        values={"c": torch.full((1,), 0.3, device=m.device, dtype=torch.promote_types(m.dtype, torch.float32))},
    )


def _tanh(i: Inputs, backend: Backend) -> Sequence[Tensor]:
    t = i.tensors
    y, moment = bounded_tanh(t["first"], t["gain"], t["lam"], KAPPA, EPS, backend=backend)
    first, second = t["lam"].detach(), (t["second"], t["second gain"], t["second lam"])
    return [y, bounded_tanh_reuse(*second, first, KAPPA, moment, i.values["c"], EPS, backend=backend)]


_ALL = (
    # Forward: the sources; the mix. Backward: the sources, the mix and its gradient; theirs.
    Case("depth attention", "one read of N sources", _attention_inputs, _attention, rows=lambda n: 3 * n + 3),
    # Forward: bank, outputs; mixes. Backward: bank, outputs, gradients of mixes; of bank and outputs.
    Case("block of reads", f"the {BLOCK} reads and writes of a Block AttnRes block over a bank of N sources",
         _block_inputs, _block, rows=lambda n: 3 * n + 5 * BLOCK,
         two_phase=lambda i, backend: _block(i, backend, two_phase=True)),
    # Forward: streams, output; streams, read. Backward: streams, output, both gradients; those of what came in.
    Case("multi-gate step", "flush, read and gate N streams", _gate_inputs, _gate, rows=lambda n: 5 * n + 5),
    Case("hc step", "read, mix and write N streams",
         _streams_inputs(lambda n: HyperConnections(streams=n)), _streams, _streams_rows),
    Case("mhc step", "read, mix (20 Sinkhorn steps) and write N streams",
         _streams_inputs(lambda n: ManifoldHyperConnections(streams=n, mixing="sinkhorn")), _streams, _streams_rows),
    Case("mhc-lite step", "read, mix (all permutations) and write N streams",
         _streams_inputs(lambda n: ManifoldHyperConnections(streams=n, mixing="birkhoff")), _streams, _streams_rows),
    # Twice: x; y. x, the gradient of y; that of x.
    Case("bounded tanh", "both sites of a block", _tanh_inputs, _tanh, rows=lambda n: 10),
)  # fmt: skip

CASES: dict[str, Case] = {case.name: case for case in _ALL}
"""By name."""
