"""Every operator in a block that is recomputed: the same gradients. A saved tensor may be asked for only once there."""

from __future__ import annotations

import torch
from compiled import each_backend
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from leadline.bench.cases import CASES, Inputs, Maker, Sizes
from leadline.ops import Backend


def gradients(inputs: Inputs, outputs: list[Tensor]) -> list[Tensor]:
    found = [output for output in outputs if output.requires_grad]
    upstream = [torch.cos(torch.arange(t.numel(), dtype=t.dtype)).view(t.shape) for t in found]
    return list(torch.autograd.grad(found, list(inputs.leaves().values()), upstream, materialize_grads=True))


@each_backend("lean", "traced", cases=CASES, compiled=["multi-gate step"])
def test_gradients_of_a_recomputed_operator(backend: Backend, case: str) -> None:
    work = CASES[case].work
    inputs = CASES[case].make(Maker(Sizes(tokens=5, dim=6, count=4), torch.float64, torch.device("cpu")))
    truth = gradients(inputs, list(work(inputs, backend)))

    def block(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(work(inputs, backend))

    found = gradients(inputs, list(checkpoint(block, *inputs.tensors.values(), use_reentrant=False)))
    for a, b in zip(found, truth, strict=True):
        assert torch.equal(a, b)
