"""Reading from depth: a softmax over earlier outputs, one learned query a reader (AttnRes, arXiv 2603.15031)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from leadline.choices import Backend
from leadline.errors import UsageError
from leadline.ops.choice import chosen
from leadline.ops.depth_attention.ahead import Ahead, read_ahead, read_on
from leadline.ops.depth_attention.lean import read_few, read_lean
from leadline.ops.depth_attention.reference import (
    depth_attention_reference,
    depth_attention_weights,
    source_root,
    source_roots,
)
from leadline.ops.next_norm import NextNorm, normed
from leadline.ops.precision import few_numbers, no_autocast

__all__ = [
    "Ahead",
    "depth_attention",
    "depth_attention_weights",
    "read_ahead",
    "read_on",
    "read_sources",
    "source_root",
]


def depth_attention(
    sources: Sequence[Tensor],
    query: Tensor,
    key_gain: Tensor,
    eps: float,
    *,
    roots: Sequence[Tensor] | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """`Σ_i a_i v_i` with `a = softmax_i(query · (rms(v_i) ⊙ key_gain))`.

    One source comes back unchanged; query and key gain then get gradients of exactly zero. No backend but the reference
    stacks sources, and second derivatives raise in all but the reference. Scores and weights are float32, or float64
    for float64.

    Args:
        sources: k ≥ 1 tensors of one shape (..., D) and one dtype, of any strides.
        query: (D,).
        key_gain: (D,).
        eps: in `rms(x) = x / sqrt(mean x² + eps)`.
        roots: for each source `source_root(source, eps)`, (...), if it is known already. It is used as data: the lean
            backward pass holds its derivative.
        backend: see `leadline.ops.choice`.

    Returns:
        The mix, (..., D), in the sources' dtype.

    Raises:
        UsageError: no sources, or roots that don't match them; a backend that can't run here.

    Source: AttnRes, arXiv 2603.15031; the backward pass is derived.
    """
    return read_sources(sources, query, key_gain, eps, roots=roots, backend=backend)[0]


def read_sources(
    sources: Sequence[Tensor],
    query: Tensor,
    key_gain: Tensor,
    eps: float,
    *,
    roots: Sequence[Tensor] | None = None,
    norm: NextNorm | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """`depth_attention`, and the sources: the same values, to be used from here on.

    Their gradients then accumulate in place through the read: that of every later use comes back through this operator,
    which adds its own part while it writes. Using the sources that went in instead is right too, and slower.

    Arguments and errors as for `depth_attention`, and:
        norm: the read returns the norm of the mix in its place. Backend compiled folds it into the read.
    """
    if not sources:
        raise UsageError("depth_attention needs at least one source")
    if roots is not None and len(roots) != len(sources):
        raise UsageError(f"depth_attention has {len(sources)} sources and {len(roots)} roots; it needs one for each")
    implementation = chosen(backend, sources[0])
    compile_bodies = implementation == "compiled"
    with no_autocast(sources[0]):
        if implementation == "reference":
            return normed(depth_attention_reference(sources, query, key_gain, eps), norm), tuple(sources)
        if implementation == "triton":
            from leadline.ops.depth_attention.triton import read_triton

            mix, handed = read_triton(sources, query, key_gain, eps)
            return normed(mix, norm), handed
        if len(sources) > 1 and few_numbers(sources[0]):
            return read_few(sources, query, key_gain, eps, norm, compile_bodies), tuple(sources)
        roots = source_roots(sources, eps, roots)
        return read_lean(sources, roots, query, key_gain, norm, compile_bodies=compile_bodies)
