"""Reading, writing and mixing residual streams in plain PyTorch: the truth that `lean` is tested against.

T tokens, N streams, D width, K = N·D, k projections, R numbers that make a mixing.
Coefficients are float32 or wider; streams keep their dtype.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from leadline.ops.precision import wide


class StreamRead(NamedTuple):
    """What a read of streams returns; the write that follows takes `mixing` and `post`.

    Attributes:
        pre: (T, N), float32 or wider, as `mixing` and `post`.
        h: `Σ_i pre_i H_i`, (T, D) in the streams' dtype.
        mixing: M, (T, N, N); the first stream is the one that is written.
        post: (T, N).
        streams: H, (T, N, D), to be used from here on, so that their gradient accumulates in place through the read.
    """

    pre: Tensor
    h: Tensor
    mixing: Tensor
    post: Tensor
    streams: Tensor


def hyper_read(streams_TND: Tensor, weight_kD: Tensor, static_kN: Tensor, scale_k: Tensor, eps: float) -> StreamRead:
    """See `leadline.ops.stream_mixing.hyper_read`."""
    n = streams_TND.shape[1]
    x_TND = streams_TND.to(wide(streams_TND.dtype))
    normed_TND = x_TND * torch.rsqrt(x_TND.square().mean(-1, keepdim=True) + eps)
    bounded_kTN = torch.tanh(torch.einsum("kd,tnd->ktn", weight_kD.to(x_TND.dtype), normed_TND))
    made_kTN = static_kN.to(x_TND.dtype).unsqueeze(1) + scale_k.to(x_TND.dtype).view(-1, 1, 1) * bounded_kTN
    pre_TN, mixing_NTN, post_TN = made_kTN[0], made_kTN[1 : n + 1], made_kTN[n + 1]
    return StreamRead(pre_TN, _weighted(streams_TND, pre_TN), mixing_NTN.transpose(0, 1), post_TN, streams_TND)


def manifold_read(
    streams_TND: Tensor, weight_kK: Tensor, bias_k: Tensor, scale_k: Tensor, kind: str, iterations: int, eps: float
) -> StreamRead:
    """See `leadline.ops.stream_mixing.manifold_read`."""
    n = streams_TND.shape[1]
    x_TK = streams_TND.flatten(1).to(wide(streams_TND.dtype))
    normed_TK = x_TK * torch.rsqrt(x_TK.square().mean(-1, keepdim=True) + eps)
    made_kT = weight_kK.to(x_TK.dtype) @ normed_TK.t()
    made_kT = bias_k.to(x_TK.dtype).unsqueeze(1) + scale_k.to(x_TK.dtype).unsqueeze(1) * made_kT
    pre_TN, post_TN = torch.sigmoid(made_kT[:n]).t(), 2 * torch.sigmoid(made_kT[n : 2 * n]).t()
    res_RT = made_kT[2 * n :]
    mixing_NNT = sinkhorn(res_RT.unflatten(0, (n, n)), iterations) if kind == "sinkhorn" else birkhoff(res_RT, n)
    return StreamRead(pre_TN, _weighted(streams_TND, pre_TN), mixing_NNT.permute(2, 0, 1), post_TN, streams_TND)


def _weighted(streams_TND: Tensor, pre_TN: Tensor) -> Tensor:
    return (pre_TN.unsqueeze(-1) * streams_TND).sum(-2).to(streams_TND.dtype)


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
    return matrices_PNN.flatten(1).t().to(dtype).contiguous()


def birkhoff(logits_PT: Tensor, streams: int) -> Tensor:
    """See `leadline.ops.stream_mixing.birkhoff`."""
    assert logits_PT.shape[0] == math.factorial(streams)
    table = permutations(streams, logits_PT.device, logits_PT.dtype)
    return (table @ torch.softmax(logits_PT, 0)).unflatten(0, (streams, streams))
