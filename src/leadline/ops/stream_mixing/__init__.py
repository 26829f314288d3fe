"""Residual streams: what a sublayer reads of them, how its output joins them, and how they mix.

The operators of Hyper-Connections (arXiv 2409.19606), mHC (arXiv 2512.24880) and mHC-lite (arXiv 2601.05732). T tokens,
N streams, D width. Streams keep their dtype; coefficients are float32 or wider; autocast has no say here.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from leadline.choices import Backend
from leadline.errors import UsageError
from leadline.ops.choice import chosen
from leadline.ops.next_norm import NextNorm
from leadline.ops.precision import no_autocast
from leadline.ops.stream_mixing import lean, reads, reference
from leadline.ops.stream_mixing.reference import StreamRead

__all__ = ["StreamRead", "birkhoff", "hyper_read", "manifold_read", "sinkhorn", "write_streams"]


def hyper_read(
    streams_TND: Tensor,
    weight_kD: Tensor,
    static_kN: Tensor,
    scale_k: Tensor,
    eps: float,
    *,
    norm: NextNorm | None = None,
    backend: Backend = "auto",
) -> StreamRead:
    """The width step of Hyper-Connections: coefficients that each stream makes for itself, and the read.

    With k = N + 2 rows: pre, one for each stream that is read into the mixing, post:
    `c = static + scale tanh(W rms(H_i))`, `pre_i = c_0i`, `mixing_ji = c_(1+j)i`, `post_i = c_(N+1)i`,
    `h = Σ_i pre_i H_i`.

    Args:
        streams_TND: H, (T, N, D), any floating dtype.
        weight_kD: W, (N + 2, D).
        static_kN: (N + 2, N).
        scale_k: (N + 2).
        eps: in `rms(x) = x / sqrt(mean x² + eps)`, over each stream.
        norm: the read returns the norm of h in place of h. Backend compiled folds it into the read.
        backend: see `leadline.ops.choice`.

    Raises:
        UsageError: shapes don't fit, or a backend that can't run here.

    Source: arXiv 2409.19606.
    """
    n = streams_TND.shape[1]
    if weight_kD.shape[0] != n + 2:
        raise UsageError(f"{n} streams need weights of {n + 2} rows, not {weight_kD.shape[0]}")
    implementation = chosen(backend, streams_TND)
    parameters = (weight_kD, static_kN, scale_k)
    with no_autocast(streams_TND):
        if implementation == "reference":
            return reads.with_norm(reference.hyper_read(streams_TND, *parameters, eps), norm)
        if implementation == "triton":
            from leadline.ops.stream_mixing import triton

            return reads.with_norm(StreamRead(*triton.hyper_read(streams_TND, *parameters, eps)), norm)
        return reads.hyper_read(streams_TND, parameters, eps, norm, implementation == "compiled")


def manifold_read(
    streams_TND: Tensor,
    weight_kK: Tensor,
    bias_k: Tensor,
    scale_k: Tensor,
    kind: Literal["sinkhorn", "birkhoff"],
    iterations: int,
    eps: float,
    *,
    norm: NextNorm | None = None,
    backend: Backend = "auto",
) -> StreamRead:
    """The width step of mHC and mHC-lite: coefficients from all streams of a token, and the read.

    With `u = bias + scale (W rms(vec H))`, rows pre (N), post (N), res (R): `pre = σ(u_pre)`, `post = 2σ(u_post)`, the
    mixing from `u_res` by `kind`, `h = Σ_i pre_i H_i`.

    Args:
        streams_TND: H, (T, N, D), any floating dtype.
        weight_kK: W, (2N + R, N·D).
        bias_k, scale_k: (2N + R).
        kind: "sinkhorn", R = N² numbers, row after row; or "birkhoff", R = N!, as `birkhoff` orders them.
        iterations: of Sinkhorn.
        eps: in `rms(x) = x / sqrt(mean x² + eps)`, over all streams.
        norm: as for `hyper_read`.
        backend: see `leadline.ops.choice`.

    Raises:
        UsageError: an unknown kind, or a backend that can't run here.

    Source: arXiv 2512.24880 and 2601.05732.
    """
    if kind not in ("sinkhorn", "birkhoff"):
        raise UsageError(f"mixing={kind!r} is unknown; sinkhorn and birkhoff work")
    implementation = chosen(backend, streams_TND)
    parameters, rest = (weight_kK, bias_k, scale_k), (kind, iterations, eps)
    with no_autocast(streams_TND):
        if implementation == "reference":
            return reads.with_norm(reference.manifold_read(streams_TND, *parameters, *rest), norm)
        if implementation == "triton":
            from leadline.ops.stream_mixing import triton

            return reads.with_norm(StreamRead(*triton.manifold_read(streams_TND, *parameters, *rest)), norm)
        return reads.manifold_read(streams_TND, parameters, *rest, norm, implementation == "compiled")


def write_streams(
    streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor, *, backend: Backend = "auto"
) -> Tensor:
    """`H'_i = Σ_j M_ij H_j + post_i F`, summed in the coefficients' dtype and rounded once.

    Args:
        streams_TND: (T, N, D), any floating dtype.
        output_TD: F, (T, D), any floating dtype.
        mixing_TNN: M, (T, N, N), float32 or wider, any strides.
        post_TN: (T, N), as M.
        backend: see `leadline.ops.choice`.

    Returns:
        H' (T, N, D) in the streams' dtype.
    """
    implementation = chosen(backend, streams_TND)
    arguments = (streams_TND, output_TD, mixing_TNN, post_TN)
    with no_autocast(streams_TND):
        if implementation == "reference":
            return reference.write_streams(*arguments)
        if implementation == "triton":
            from leadline.ops.stream_mixing import triton

            return triton.write_streams(*arguments)
        return lean.write_streams(*arguments, implementation == "compiled")


def sinkhorn(logits_NNT: Tensor, iterations: int = 20, *, backend: Backend = "auto") -> Tensor:
    """`exp(logits)` scaled to nearly doubly stochastic: columns, then rows, in each iteration.

    Args:
        logits_NNT: (N, N, ...): row, column, then any shape. Any finite values.
        iterations: at least 1; rows come last, so it is they that sum to one.
        backend: see `leadline.ops.choice`.

    Returns:
        Of the logits' shape.

    Source: mHC, 2512.24880; the first iteration in the log domain, so that no logit overflows.
    """
    implementation = chosen(backend, logits_NNT)
    if implementation == "reference":
        return reference.sinkhorn(logits_NNT, iterations)
    return lean.sinkhorn(logits_NNT, iterations, implementation == "compiled")


def birkhoff(logits_PT: Tensor, streams: int, *, backend: Backend = "auto") -> Tensor:
    """A mean of all permutation matrices, `Σ_r softmax(logits)_r P_r`: doubly stochastic by construction.

    Args:
        logits_PT: (N!, T), in lexicographic order of the permutations, the identity first.
        streams: N.
        backend: see `leadline.ops.choice`.

    Returns:
        (N, N, T).

    Source: mHC-lite, 2601.05732.
    """
    module = reference if chosen(backend, logits_PT) == "reference" else lean
    with no_autocast(logits_PT):
        return module.birkhoff(logits_PT, streams)
