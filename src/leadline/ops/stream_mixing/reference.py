"""Reading, writing and mixing residual streams in plain PyTorch: the truth that `lean` is tested against.

T tokens, N streams, D width, K row width, k projections. Coefficients are float32 or wider; streams keep their dtype.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from leadline.ops.precision import wide


def project(rows_TK: Tensor, weight_kK: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `leadline.ops.stream_mixing.project`."""
    x_TK = rows_TK.to(wide(rows_TK.dtype))
    normed_TK = x_TK * torch.rsqrt(x_TK.square().mean(-1, keepdim=True) + eps)
    return weight_kK.to(x_TK.dtype) @ normed_TK.t(), rows_TK


def read_streams(streams_TND: Tensor, pre_TN: Tensor) -> tuple[Tensor, Tensor]:
    """See `leadline.ops.stream_mixing.read_streams`."""
    h_TD = (pre_TN.unsqueeze(-1) * streams_TND).sum(-2)
    return h_TD.to(streams_TND.dtype), streams_TND


def write_streams(streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor) -> Tensor:
    """See `leadline.ops.stream_mixing.write_streams`."""
    x_TND = streams_TND.to(wide(streams_TND.dtype))
    mixed_TND = torch.einsum("tij,tjd->tid", mixing_TNN, x_TND)
    return (mixed_TND + post_TN.unsqueeze(-1) * output_TD.unsqueeze(-2)).to(streams_TND.dtype)


def sinkhorn(logits_NNT: Tensor, iterations: int) -> Tensor:
    """See `leadline.ops.stream_mixing.sinkhorn`."""
    log_m = logits_NNT
    for _ in range(iterations):
        log_m = torch.log_softmax(log_m, 0)
        log_m = torch.log_softmax(log_m, 1)
    return log_m.exp()


def permutations(streams: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """All permutation matrices, (N*N, N!), in lexicographic order; row i of each has its one in column p[i]."""
    orders = torch.tensor(list(itertools.permutations(range(streams))), device=device)
    matrices_PNN = torch.nn.functional.one_hot(orders, streams)
    return matrices_PNN.flatten(1).t().to(dtype)


def birkhoff(logits_PT: Tensor, streams: int) -> Tensor:
    """See `leadline.ops.stream_mixing.birkhoff`."""
    assert logits_PT.shape[0] == math.factorial(streams)
    table = permutations(streams, logits_PT.device, logits_PT.dtype)
    return (table @ torch.softmax(logits_PT, 0)).unflatten(0, (streams, streams))
