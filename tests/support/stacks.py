"""Stacks for the tests of connections: small, float64, with sublayers `F_l(h) = tanh(h @ layers[l])`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leadline.connections import Connection, Depth, Site, State
from leadline.ops import Backend, use_backend

DIM = 6
GOLDEN = Path(__file__).parents[1] / "golden"

Watch = Callable[[Site, State, State], None]
"""Sees a site, the state before its read and the state after it."""


def golden_cases(name: str) -> list[dict[str, Any]]:
    """The cases of `tests/golden/NAME.json`."""
    cases: list[dict[str, Any]] = json.loads((GOLDEN / f"{name}.json").read_text())
    return cases


def tensor(value: Any) -> Tensor:
    """Float64."""
    return torch.tensor(value, dtype=torch.float64)


def fold(
    depth: Depth, x: Tensor, layers: Tensor, skip: Collection[int] = (), watch: Watch | None = None
) -> tuple[Tensor, list[Tensor]]:
    """The readout and every read."""
    state, reads = depth.open(x), []
    for index, (site, layer) in enumerate(zip(depth.sites, layers, strict=True)):
        if index in skip:
            state = site.skip(state)
            continue
        before = state
        h, state = site.read(before)
        if watch is not None:
            watch(site, before, state)
        reads.append(h)
        state = site.write(state, torch.tanh(h @ layer))
    return depth.readout(state), reads


def inputs(sublayers: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """An embedding (2, 3, DIM) and layers (sublayers, DIM, DIM)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, DIM, generator=generator, dtype=torch.float64)
    return x, 0.6 * torch.randn(sublayers, DIM, DIM, generator=generator, dtype=torch.float64)


def moved(connection: Connection, sublayers: int, seed: int = 1) -> Depth:
    """A stack of width DIM away from its start."""
    depth = connection.build(DIM, sublayers, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in depth.parameters():
            p += torch.randn(p.shape, generator=generator, dtype=torch.float64)
    return depth


def close(found: Tensor | None, expected: Any) -> None:
    """Within 1e-9 of a golden value, which may be a number where `found` has shape (1,)."""
    assert found is not None
    torch.testing.assert_close(found, tensor(expected).reshape(found.shape), rtol=1e-9, atol=1e-9)


def check_golden(case: dict[str, Any], connection: Connection, backend: Backend, watch: Watch | None = None) -> None:
    """Holds a connection's stack to a golden case: the readout, every read, and every gradient."""
    depth = connection.build(case["config"]["dim"], case["config"]["sublayers"], dtype=torch.float64)
    values = {f"sites.{i}.{k}": tensor(v) for i, site in enumerate(case["params"]["sites"]) for k, v in site.items()}
    values |= {f"readout.{k}": tensor(v) for k, v in case["params"].get("readout", {}).items()}
    assert values.keys() == dict(depth.named_parameters()).keys()
    depth.load_state_dict({key: values[key].reshape(p.shape) for key, p in depth.named_parameters()})
    x = tensor(case["inputs"]["x"]).requires_grad_()
    with use_backend(backend):
        final, reads = fold(depth, x, tensor(case["inputs"]["layers"]), watch=watch)
        (final * tensor(case["inputs"]["probe"])).sum().backward()
    close(final, case["expected"]["final"])
    close(torch.stack(reads), case["expected"]["reads"])
    close(x.grad, case["grads"]["x"])
    assert case["grads"]["params"].keys() == values.keys()
    for key, p in depth.named_parameters():
        close(p.grad, case["grads"]["params"][key])
