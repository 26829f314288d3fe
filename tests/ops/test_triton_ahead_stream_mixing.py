"""The stream kernels compiled ahead of time for every supported chip: do they fit, and do they spill?"""

from __future__ import annotations

import math

import torch
from triton_ahead import COUNTS, cells, compile_ahead

MAY_SPILL = {"manifold_backward": 24, "_write_backward": 16}
"""Bytes a lane. On NVIDIA ptxas keeps mHC's backward with 2 or 5 streams at 80, 96 or 128 registers, where more warps
are at work, and spills 2 to 6 for it; with 33 float32 streams the backward write spills 4 on sm_100."""


def launch(dim: int, count: int, dtype: torch.dtype) -> None:
    """Each operator forward and backward."""
    from leadline.ops.stream_mixing import triton_hyper, triton_manifold, triton_write

    tokens, wide = 64, torch.promote_types(dtype, torch.float32)

    def made(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=wide)

    x, output = torch.empty(tokens, count, dim, dtype=dtype), torch.empty(tokens, dim, dtype=dtype)
    pre, mixing = made(tokens, count), made(tokens, count, count)
    triton_write.forward(x, output, mixing, pre)
    triton_write.backward(x, x, output, mixing, pre)
    k = count + 2
    known = (x, made(k, dim), made(k, count), made(k))
    *_, projected, root = triton_hyper.forward(*known, 1e-6)
    triton_hyper.backward(pre, output, mixing, pre, x, *known, projected, root)
    kinds = {"sinkhorn": count**2, "birkhoff": math.factorial(count) if count <= 5 else 0}
    for kind, numbers in kinds.items():
        if numbers:
            k = 2 * count + numbers
            of_kind = (x, made(count * dim, k).t(), made(k), made(k), kind, 20)
            *_, projected, root = triton_manifold.forward(*of_kind, 1e-6)
            triton_manifold.backward(pre, output, mixing, pre, x, *of_kind, projected, root)


def test_kernels_fit_the_chips() -> None:
    kernels = compile_ahead(__file__, "launch", cells(counts=(*COUNTS, 5)))
    problems = [problem for kernel in kernels for problem in kernel.problems(MAY_SPILL.get(kernel.name, 0))]
    assert not problems, "\n".join(problems)
