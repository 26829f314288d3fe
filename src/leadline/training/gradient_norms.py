"""The norm of every parameter's gradient, whole or sharded, and whether there is one at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leadline.sharded import is_sharded, local


class Norms(NamedTuple):
    """What a step's gradients measure. P parameters.

    Attributes:
        values: (P,) float32, or float64 where parameters are sharded: L2 norms, on the parameters' device. It is 0
            where there is no gradient, so that `total` is the norm to clip by; `present` tells the two apart.
        present: (P,) bool on the CPU: whether the parameter has a gradient, on any rank.
    """

    values: Tensor
    present: Tensor

    def total(self) -> Tensor:
        """The norm of all gradients together, a scalar."""
        return torch.linalg.vector_norm(self.values)


def measure_norms(parameters: Sequence[nn.Parameter]) -> Norms:
    """The norms of the gradients as they are now, without waiting for the device unless parameters are sharded.

    A sharded parameter (a DTensor: FSDP2, tensor parallelism) has the norm of its whole gradient. That takes one small
    sum over ranks for each way in which parameters are sharded, so every rank has to ask at the same time.
    """
    if any(is_sharded(parameter) for parameter in parameters):
        return _sharded_norms(parameters)
    grads = [p.grad for p in parameters if p.grad is not None]
    # In half precision a norm would keep two or three digits, and overflow above 65504 (float16).
    wide = torch.float64 if any(grad.dtype == torch.float64 for grad in grads) else torch.float32
    norms = iter(torch._foreach_norm(grads, 2, dtype=wide)) if grads else iter(())
    device = parameters[0].device if parameters else torch.device("cpu")
    none = torch.zeros((), device=device)
    values = [none if p.grad is None else next(norms).float() for p in parameters]
    present = torch.tensor([p.grad is not None for p in parameters], dtype=torch.bool)
    return Norms(torch.stack(values) if values else torch.zeros(0), present)


def _sharded_norms(parameters: Sequence[nn.Parameter]) -> Norms:
    device = next(local(p).device for p in parameters if is_sharded(p))
    # Squares in float64, because those of large float32 norms overflow; beside them, how many ranks have a gradient.
    table = torch.zeros(len(parameters), 2, dtype=torch.float64, device=device)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row, parameter in enumerate(parameters):
        placed: Any = parameter
        if is_sharded(parameter):
            groups.setdefault((placed.device_mesh, placed.placements), []).append(row)
        grad: Any = parameter.grad
        if grad is None:
            continue
        if is_sharded(grad) and getattr(grad, "placements", None) != getattr(placed, "placements", None):
            grad = grad.redistribute(placements=placed.placements)
        norm = torch.linalg.vector_norm(local(grad), dtype=torch.float64)
        table[row, 0], table[row, 1] = norm.square(), 1.0
    for (mesh, placements), rows in groups.items():
        part = table[rows]
        for dimension, placement in enumerate(placements):
            if not placement.is_replicate():
                torch.distributed.all_reduce(part, group=mesh.get_group(dimension))
        table[rows] = part
    return Norms(table[:, 0].sqrt(), (table[:, 1] > 0).cpu())
