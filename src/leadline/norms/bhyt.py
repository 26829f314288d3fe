"""BHyT (arXiv 2601.09719): bounded hyperbolic tanh, with one reduction a block in its approximate form.

Before attention, `v1 = mean x²` and `y = gain tanh(λ x / (κ sqrt(v1 + eps)))`. Before the MLP there is no reduction:
`v2 = v1 + c λ_attention²/κ²` stands in for the mean square of what attention has written to. `c = ‖W_V W_O‖_F² / (T D)`
and the training length T are persistent buffers, so that the output depends on neither the prompt nor a reload.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch
from torch import Tensor, nn

from leadline.config import check_choices, kind
from leadline.errors import UsageError
from leadline.norms.base import Norm, NormConfig, Place, check_eps, stands_aside
from leadline.norms.standard import RMSNorm
from leadline.ops.bounded_tanh import attention_gain, bounded_tanh, bounded_tanh_reuse


@kind("bhyt")
@dataclasses.dataclass(frozen=True, kw_only=True)
class BHyT(NormConfig):
    """Bounded hyperbolic tanh. On queries and keys, and by default before the head, it builds RMSNorm.

    Attributes:
        approximate: whether the norm before the MLP reuses attention's statistic. It may only where the connection
            is plain additive and the norm stands before the sublayer; designs set it to False elsewhere.
        gain_init: "one" [paper], or "unit" [ours], which starts the gain at κ/λ so that the norm has unit scale in
            its linear range; the first gain then enters the constant c.
        lambda_attention: the start of λ before attention. The authors sweep (2, 1) and (3, 3) for attention and MLP;
            (3, 3) is the better one in Leadline's sweep.
        lambda_mlp: the start of λ before the MLP, and wherever else this norm stands.
        probability: Chebyshev's p: κ = 1/sqrt(1 - p), 10 at 0.99.
        learn_lambda: whether λ is learned; if not, it stays exactly at its start.
        with_mean: the exact form with the mean, `λ x / (κ s + abs(mean))`. It needs approximate=False.
        position_aware: uses 1/(t+1) in place of 1/T in the constant [ours].
        final: the norm before the head: "rmsnorm", or "bhyt" in its exact form.
        eps: added to the mean square; the module uses `eps * scale**2`.
    """

    approximate: bool = True
    gain_init: Literal["one", "unit"] = "one"
    lambda_attention: float = 3.0
    lambda_mlp: float = 3.0
    probability: float = 0.99
    learn_lambda: bool = True
    with_mean: bool = False
    position_aware: bool = False
    final: Literal["rmsnorm", "bhyt"] = "rmsnorm"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        check_eps(self.eps)
        if not 0 < self.probability < 1:
            raise UsageError(f"probability={self.probability} must lie between 0 and 1; the paper uses 0.99")
        for name in ("lambda_attention", "lambda_mlp"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name}={getattr(self, name)} must be more than 0")
        check_choices(self)
        if self.with_mean and self.approximate:
            raise UsageError("with_mean=true needs approximate=false: the approximate form has no mean")
        if self.position_aware and not self.approximate:
            raise UsageError("position_aware=true needs approximate=true: only that form has a constant")

    @property
    def kappa(self) -> float:
        """Chebyshev's κ: the share of values within κ deviations is at least `probability`."""
        return 1 / math.sqrt(1 - self.probability)

    def make(self, place: Place) -> Norm:
        if stands_aside(self.final, place.role):
            return RMSNorm(eps=self.eps).make(place)
        return (BoundedTanhReuse if place.role == "mlp" and self.approximate else BoundedTanhNorm)(self, place)


class BoundedTanhNorm(Norm):
    """BHyT's exact form: parameters `gain` (dim,) and `lam` (1,), which is a buffer where λ isn't learned."""

    gain: Tensor
    lam: Tensor

    def __init__(self, config: BHyT, place: Place) -> None:
        start = config.lambda_attention if place.role == "attention" else config.lambda_mlp
        gain = config.kappa / start if config.gain_init == "unit" else 1.0
        super().__init__(place, fixed=() if config.learn_lambda else ("lam",), gain=gain, lam=start)
        self.eps = config.eps * place.scale**2
        self.kappa = config.kappa
        self.with_mean = config.with_mean
        self.lambda_start = start

    def forward(self, x: Tensor) -> Tensor:
        return self.with_moment(x)[0]

    def with_moment(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of x (..., dim), and `mean x²` (..., 1), float32 or wider, which `BoundedTanhReuse.reuse` takes."""
        return bounded_tanh(x, self.gain, self.lam, self.kappa, self.eps, self.with_mean)

    def extra_repr(self) -> str:
        return f"{self.gain.shape[0]}, kappa={self.kappa:.4g}, lambda_start={self.lambda_start}, eps={self.eps}"


class BoundedTanhReuse(BoundedTanhNorm):
    """BHyT's second site, before the MLP: `reuse` makes no reduction over its input.

    A plain call is the exact form, for a skipped attention and for connections that aren't plain additive.

    Buffers, both saved: `c` (1,), float32, and `length` (1,), int64, the training length T. Only `refresh` sets them;
    no forward pass does. Both start at zero, which leaves attention's share out.
    """

    c: Tensor
    length: Tensor

    def __init__(self, config: BHyT, place: Place) -> None:
        super().__init__(config, place)
        self.position_aware = config.position_aware
        self.gain_in_constant = config.gain_init == "unit"
        wide = torch.float64 if place.dtype == torch.float64 else torch.float32
        self.register_buffer("c", torch.zeros(1, device=place.device, dtype=wide))
        self.register_buffer("length", torch.zeros(1, device=place.device, dtype=torch.int64))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.c)
        self.length.zero_()

    def reuse(self, x: Tensor, moment: Tensor, lam_first: Tensor, positions: Tensor | None = None) -> Tensor:
        """The norm of x, what attention wrote to, from attention's own statistic.

        Args:
            x: (..., dim), the residual stream after attention.
            moment: (..., 1), from the first site's `with_moment`.
            lam_first: the first site's λ (1,); held constant here [the authors' code].
            positions: each token's position from 0, broadcastable to x's leading shape; needed only where the
                norm is position-aware.

        Raises:
            UsageError: the norm is position-aware and `positions` is missing.
        """
        c = self.c
        if self.position_aware:
            if positions is None:
                raise UsageError("position_aware=true needs the tokens' positions: pass positions to reuse")
            c = (c * self.length) / (positions.unsqueeze(-1) + 1)
        return bounded_tanh_reuse(x, self.gain, self.lam, lam_first, self.kappa, moment, c, self.eps)

    @torch.no_grad()
    def refresh(
        self, w_v: Tensor, w_o: Tensor, heads: int, kv_heads: int, length: int, gain_first: Tensor | None = None
    ) -> None:
        """Recomputes `c` from the block's attention weights, and keeps the training length.

        Args:
            w_v: (kv_heads * head width, dim), as `nn.Linear` holds it.
            w_o: (dim, heads * head width).
            heads: query heads of the attention.
            kv_heads: its key and value heads.
            length: T, the training length in tokens.
            gain_first: the first site's gain (dim,); enters the constant where gain_init is "unit".
        """
        if self.gain_in_constant and gain_first is not None:
            w_v = w_v * gain_first
        self.c.copy_(attention_gain(w_v, w_o, heads, kv_heads, length))
        self.length.fill_(length)
