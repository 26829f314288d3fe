"""Bounded hyperbolic tanh (BHyT, arXiv 2601.09719): the norm before attention, the one after it, and its constant."""

from __future__ import annotations

from torch import Tensor

from leadline.choices import Backend
from leadline.errors import UsageError
from leadline.ops.bounded_tanh import lean, reference
from leadline.ops.choice import chosen

__all__ = ["attention_gain", "bounded_tanh", "bounded_tanh_reuse"]


def bounded_tanh(
    x: Tensor,
    gain: Tensor,
    lam: Tensor | float,
    kappa: float,
    eps: float,
    with_mean: bool = False,
    *,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """`y = gain * tanh(λ x / (κ sqrt(mean x² + eps)))` and `mean x²`.

    Args:
        x: (..., dim), any floating dtype; arithmetic is float32 or wider.
        gain: (dim,).
        lam: λ, a tensor of one element or a number.
        kappa: κ, from Chebyshev's inequality: 10 for a probability of 0.99.
        eps: added to the mean square.
        with_mean: the exact form, `λ x / (κ sqrt(var x + eps) + abs(mean x))`.
        backend: see `leadline.ops.choice`.

    Returns:
        y of x's shape and dtype, bounded by abs(gain); and the second moment (..., 1), float32 or wider, through
        which gradients flow.

    Source: arXiv 2601.09719, the practical zero-mean form and BHyT*.
    """
    implementation = chosen(backend, x)
    if implementation == "reference":
        return reference.bounded_tanh(x, gain, lam, kappa, eps, with_mean)
    if implementation == "triton":
        from leadline.ops.bounded_tanh import triton

        return triton.bounded_tanh_triton(x, gain, lam, kappa, eps, with_mean)
    return lean.bounded_tanh(x, gain, lam, kappa, eps, with_mean, implementation == "compiled")


def bounded_tanh_reuse(
    x: Tensor,
    gain: Tensor,
    lam: Tensor | float,
    lam_first: Tensor | float,
    kappa: float,
    second_moment: Tensor,
    c: Tensor,
    eps: float,
    *,
    backend: Backend = "auto",
) -> Tensor:
    """`y = gain * tanh(λ x / (κ sqrt(v2 + eps)))` with `v2 = v1 + c λ_first²/κ²`: no reduction over x.

    Args:
        x: (..., dim), the stream after attention has written to it.
        gain: (dim,).
        lam: this site's λ.
        lam_first: the λ before attention; held constant in v2.
        kappa: κ.
        second_moment: v1 (..., 1), from `bounded_tanh`; gradients flow through it.
        c: from `attention_gain`, one element or (..., 1); no gradient.
        eps: added to v2.
        backend: see `leadline.ops.choice`.

    Returns:
        y of x's shape and dtype.

    Source: arXiv 2601.09719; what is held constant follows the authors' code.
    """
    implementation = chosen(backend, x)
    arguments = (x, gain, lam, lam_first, kappa, second_moment, c, eps)
    if implementation == "reference":
        return reference.bounded_tanh_reuse(*arguments)
    if implementation == "triton":
        from leadline.ops.bounded_tanh import triton

        return triton.bounded_tanh_reuse_triton(*arguments)
    return lean.bounded_tanh_reuse(*arguments, implementation == "compiled")


def attention_gain(
    w_v: Tensor, w_o: Tensor, heads: int, kv_heads: int, length: int, *, backend: Backend = "auto"
) -> Tensor:
    """`c = ‖W_V W_O‖_F² / (T D)`, what uniform attention over T tokens adds to the mean square, per unit of input.

    With grouped queries the V rows repeat to the query heads; then one norm of the summed D by D product.

    Args:
        w_v: (kv_heads * head width, D), as `nn.Linear` holds it.
        w_o: (D, heads * head width); heads * head width may differ from D.
        heads: query heads; a multiple of kv_heads.
        kv_heads: key and value heads.
        length: T, in tokens.
        backend: see `leadline.ops.choice`.

    Returns:
        A scalar, float32 or wider, without gradient.

    Raises:
        UsageError: shapes and head counts do not fit.

    Source: arXiv 2601.09719.
    """
    if kv_heads < 1 or heads % kv_heads or w_v.shape[0] % kv_heads:
        raise UsageError(f"heads={heads} must be a multiple of kv_heads={kv_heads}, which must divide W_V's rows")
    if w_o.shape[1] * kv_heads != w_v.shape[0] * heads:
        raise UsageError(
            f"W_O has {w_o.shape[1]} columns; {heads} heads of {w_v.shape[0] // kv_heads} need "
            f"{heads * w_v.shape[0] // kv_heads}"
        )
    if length < 1:
        raise UsageError(f"length={length} must be at least 1")
    module = reference if chosen(backend, w_v) == "reference" else lean
    return module.attention_gain(w_v, w_o, heads, kv_heads, length)
