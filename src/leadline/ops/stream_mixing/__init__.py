"""Residual streams: what a sublayer reads of them, how its output joins them, and how they mix.

The operators of Hyper-Connections (arXiv 2409.19606), mHC (arXiv 2512.24880) and mHC-lite (arXiv 2601.05732). T tokens,
N streams, D width. Streams keep their dtype; coefficients are float32 or wider; autocast has no say here.
"""

from __future__ import annotations

from types import ModuleType

from torch import Tensor

from leadline.ops.choice import Backend, chosen
from leadline.ops.precision import no_autocast
from leadline.ops.stream_mixing import lean, reference

__all__ = ["birkhoff", "project", "read_streams", "sinkhorn", "write_streams"]


def _module(backend: Backend, like: Tensor) -> ModuleType:
    return reference if chosen(backend, like) == "reference" else lean


def project(rows_TK: Tensor, weight_kK: Tensor, eps: float, *, backend: Backend = "auto") -> tuple[Tensor, Tensor]:
    """`y = W rms(x)`, token by token, and the rows handed on.

    Args:
        rows_TK: (T, K), any floating dtype.
        weight_kK: (k, K).
        eps: in `rms(x) = x / sqrt(mean x² + eps)`.
        backend: "reference" or "lean"; "auto" is lean.

    Returns:
        y (k, T), float32 or wider; and the rows, to be used from here on: their gradient then comes back through this
        operator, which adds its own to it.

    Source: 2409.19606 (a row is one stream) and 2512.24880 (a row is all streams of a token).
    """
    with no_autocast(rows_TK):
        result: tuple[Tensor, Tensor] = _module(backend, rows_TK).project(rows_TK, weight_kK, eps)
    return result


def read_streams(streams_TND: Tensor, pre_TN: Tensor, *, backend: Backend = "auto") -> tuple[Tensor, Tensor]:
    """`h = Σ_i pre_i H_i`, and the streams handed on (see `project`).

    Args:
        streams_TND: (T, N, D), any floating dtype.
        pre_TN: (T, N), float32 or wider.
        backend: "reference" or "lean"; "auto" is lean.

    Returns:
        h (T, D) in the streams' dtype, and the streams.
    """
    with no_autocast(streams_TND):
        result: tuple[Tensor, Tensor] = _module(backend, streams_TND).read_streams(streams_TND, pre_TN)
    return result


def write_streams(
    streams_TND: Tensor, output_TD: Tensor, mixing_TNN: Tensor, post_TN: Tensor, *, backend: Backend = "auto"
) -> Tensor:
    """`H'_i = Σ_j M_ij H_j + post_i F`, summed in the coefficients' dtype and rounded once.

    Args:
        streams_TND: (T, N, D), any floating dtype.
        output_TD: F, (T, D), any floating dtype.
        mixing_TNN: M, (T, N, N), float32 or wider, any strides.
        post_TN: (T, N), as M.
        backend: "reference" or "lean"; "auto" is lean.

    Returns:
        H' (T, N, D) in the streams' dtype.
    """
    with no_autocast(streams_TND):
        result: Tensor = _module(backend, streams_TND).write_streams(streams_TND, output_TD, mixing_TNN, post_TN)
    return result


def sinkhorn(logits_NNT: Tensor, iterations: int = 20, *, backend: Backend = "auto") -> Tensor:
    """`exp(logits)` scaled to nearly doubly stochastic: columns, then rows, in each iteration.

    Args:
        logits_NNT: (N, N, ...): row, column, then any shape. Any finite values.
        iterations: at least 1; rows come last, so it is they that sum to one.
        backend: "reference" or "lean"; "auto" is lean.

    Returns:
        Of the logits' shape.

    Source: mHC, 2512.24880; the first iteration in the log domain, so that no logit overflows.
    """
    result: Tensor = _module(backend, logits_NNT).sinkhorn(logits_NNT, iterations)
    return result


def birkhoff(logits_PT: Tensor, streams: int, *, backend: Backend = "auto") -> Tensor:
    """A mean of all permutation matrices, `Σ_r softmax(logits)_r P_r`: doubly stochastic by construction.

    Args:
        logits_PT: (N!, T), in lexicographic order of the permutations, the identity first.
        streams: N.
        backend: "reference" or "lean"; "auto" is lean.

    Returns:
        (N, N, T).

    Source: mHC-lite, 2601.05732.
    """
    with no_autocast(logits_PT):
        result: Tensor = _module(backend, logits_PT).birkhoff(logits_PT, streams)
    return result
