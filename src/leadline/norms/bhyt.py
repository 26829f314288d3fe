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

from leadline.config import kind
from leadline.errors import UsageError
from leadline.norms.base import Device, Norm, NormConfig, Role, check_eps
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
        if self.gain_init not in ("one", "unit"):
            raise UsageError(f"gain_init={self.gain_init!r} is not known; one and unit work")
        if self.final not in ("rmsnorm", "bhyt"):
            raise UsageError(f"final={self.final!r} is not known; rmsnorm and bhyt work")
        if self.with_mean and self.approximate:
            raise UsageError("with_mean=true needs approximate=false: the approximate form has no mean")
        if self.position_aware and not self.approximate:
            raise UsageError("position_aware=true needs approximate=true: only that form has a constant")

    @property
    def kappa(self) -> float:
        """Chebyshev's κ: the share of values within κ deviations is at least `probability`."""
        return 1 / math.sqrt(1 - self.probability)

    def make(self, dim: int, scale: float, role: Role, device: Device, dtype: torch.dtype | None) -> Norm:
        if role == "query_key" or (role == "final" and self.final == "rmsnorm"):
            return RMSNorm(eps=self.eps).make(dim, scale, role, device, dtype)
        start = self.lambda_attention if role == "attention" else self.lambda_mlp
        reuse = role == "mlp" and self.approximate
        module = BoundedTanhReuse if reuse else BoundedTanhNorm
        return module(dim, self, start, scale=scale, device=device, dtype=dtype)


class BoundedTanhNorm(Norm):
    """BHyT's exact form: parameters `gain` (dim,) and `lam` (1,), which is a buffer where λ isn't learned."""

    gain: Tensor
    lam: Tensor

    def __init__(
        self,
        dim: int,
        config: BHyT,
        lambda_start: float,
        *,
        scale: float = 1.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(scale)
        self.eps = config.eps * scale**2
        self.kappa = config.kappa
        self.with_mean = config.with_mean
        self.lambda_start = lambda_start
        self.gain_start = self.kappa / lambda_start if config.gain_init == "unit" else 1.0
        self.gain = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        lam = torch.empty(1, device=device, dtype=dtype)
        if config.learn_lambda:
            self.lam = nn.Parameter(lam)
        else:
            self.register_buffer("lam", lam)
        BoundedTanhNorm.reset_parameters(self)

    def reset_parameters(self) -> None:
        nn.init.constant_(self.gain, self.gain_start)
        nn.init.constant_(self.lam, self.lambda_start)

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

    def __init__(
        self,
        dim: int,
        config: BHyT,
        lambda_start: float,
        *,
        scale: float = 1.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, config, lambda_start, scale=scale, device=device, dtype=dtype)
        self.position_aware = config.position_aware
        self.gain_in_constant = config.gain_init == "unit"
        self.register_buffer(
            "c", torch.zeros(1, device=device, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        )
        self.register_buffer("length", torch.zeros(1, device=device, dtype=torch.int64))

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
