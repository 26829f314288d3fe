"""A stack on `MultiGate(memory="invert")` for its tests, and the comparison with `memory="store"`."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Collection
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leadline.connections import Depth, MultiGate, State
from leadline.connections.inversion import tape_bytes

DIM, SUBLAYERS = 8, 9
Gate = Literal["competitive", "independent"]
GATES: tuple[Gate, ...] = ("competitive", "independent")


def mgr(memory: Literal["store", "invert"] = "invert", gate: Gate = "competitive", **options: Any) -> MultiGate:
    return MultiGate(**{"streams": 3, "gate": gate, "gate_init": "prenorm", "memory": memory, **options})


class Stack(nn.Module):
    """Sublayers `tanh(dropout(rms(h)) @ W)` on a connection; everything is away from its start."""

    def __init__(
        self, connection: MultiGate, sublayers: int = SUBLAYERS, dtype: torch.dtype = torch.float64, **options: Any
    ) -> None:
        super().__init__()
        dim = options.get("dim", DIM)
        self.depth: Depth = connection.build(dim, sublayers, dtype=torch.promote_types(dtype, torch.float32))
        generator = torch.Generator().manual_seed(1)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        with torch.no_grad():
            for name, p in self.depth.named_parameters():
                if name.endswith("bias") and "beta" in options:
                    p.fill_(bias_for(options["beta"], connection))
                else:
                    p += options.get("noise", 0.5) * random(*p.shape)
        self.weights = nn.Parameter((random(sublayers, dim, dim) * dim**-0.5).to(dtype))
        self.dropout = nn.Dropout(options.get("dropout", 0.0))
        self.x = random(2, options.get("time", 4), dim).to(dtype).requires_grad_()

    def sublayer(self, index: int, h: Tensor) -> Tensor:
        unit = nn.functional.rms_norm(h, h.shape[-1:])
        return torch.tanh(self.dropout(unit) @ self.weights[index].to(h.dtype))

    def block(self, first: int, last: int, state: State, skip: Collection[int] = ()) -> State:
        for index in range(first, last):
            site = self.depth.sites[index]
            if index in skip:
                state = site.skip(state)
                continue
            h, state = site.read(state)
            state = site.write(state, self.sublayer(index, h))
        return state

    def forward(self, x: Tensor | None = None, skip: Collection[int] = ()) -> Tensor:
        state = self.depth.open(self.x if x is None else x)
        return self.depth.readout(self.block(0, len(self.depth.sites), state, skip))

    def gradients(self, loss: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss, [self.x, *self.parameters()], materialize_grads=True))


def bias_for(beta: float, connection: MultiGate) -> float:
    """The bias at which gates with zero queries are β."""
    return math.log(1 / beta - connection.streams) if connection.gate == "competitive" else -math.log(1 / beta - 1)


def loss_of(*outputs: Tensor) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for i, output in enumerate(outputs):
        probe = torch.randn(output.shape, generator=torch.Generator().manual_seed(70 + i), dtype=torch.float64)
        total = total + (probe * output.double()).sum()
    return total


Way = Callable[[Stack], Tensor]


def compare(way: Way, invert: MultiGate, tolerance: float = 1e-9, **options: Any) -> None:
    """The loss that `way` makes, and its gradients, equal those of `memory="store"`."""
    store = MultiGate(
        streams=invert.streams,
        gate=invert.gate,
        gate_init=invert.gate_init,
        eps=invert.eps,
        state_dtype=invert.state_dtype,
    )
    gc.collect()
    gc.freeze()  # so that collecting looks at what is made from here on
    results = []
    for connection in (store, invert):
        torch.manual_seed(5)
        stack = Stack(connection, **options)
        loss = way(stack)
        results.append([loss.detach(), *stack.gradients(loss)])
    torch.testing.assert_close(results[1], results[0], rtol=tolerance, atol=tolerance)
    gc.collect()
    assert tape_bytes() == 0
