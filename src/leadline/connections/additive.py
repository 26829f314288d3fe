"""The residual stream, and what is done to it: post-norm, DeepNorm, Mix-LN, LayerScale, ReZero.

    h = x,    x ← x + g ⊙ F(h)                    without post-norm
    h = x,    x ← norm(α x + g ⊙ F(h))            where post-norm applies

PreNorm is the first line with g = 1: its norms are inside F.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.config import check_numbers, kind
from leadline.connections.base import Connection, Readout, Site
from leadline.errors import UsageError


class AdditiveState(NamedTuple):
    """What travels.

    Attributes:
        x: the residual stream, (..., dim).
    """

    x: Tensor


class AdditiveSite(Site[AdditiveState]):
    """Reads the stream and adds the sublayer's output to it.

    Parameters, each only where it is used: `norm_gain`, `norm_bias` (dim) of the post-norm; `branch_gain`, of
    shape (dim) for LayerScale and (1) for ReZero.
    """

    norm_gain: nn.Parameter | None
    norm_bias: nn.Parameter | None
    branch_gain: nn.Parameter | None

    def __init__(self, config: Additive, dim: int, *, normed: bool, alpha: float, factory: Mapping[str, Any]) -> None:
        super().__init__(scale=1.0)
        self.post_norm = config.post_norm if normed else "none"
        self.alpha = alpha
        self.eps = config.eps
        per_channel = config.branch == "layerscale"
        branch = ((dim,), config.layerscale_init) if per_channel else ((1,), 0.0)
        self.add_parameters(
            factory,
            norm_gain=((dim,), 1.0) if self.post_norm != "none" else None,
            norm_bias=((dim,), 0.0) if self.post_norm == "layernorm" else None,
            branch_gain=branch if config.branch != "none" else None,
        )

    def read(self, state: AdditiveState) -> tuple[Tensor, AdditiveState]:
        """The stream as it is."""
        return state.x, state

    def write(self, state: AdditiveState, output: Tensor) -> AdditiveState:
        """The output added to the stream; then the post-norm, its statistics in float32 or wider."""
        x = state.x
        if self.branch_gain is not None:
            output = output * self.branch_gain
        output = output.to(x.dtype)
        if self.post_norm == "none":
            return AdditiveState(x + output)
        total = output + x if self.alpha == 1.0 else torch.add(output, x, alpha=self.alpha)
        return AdditiveState(self._normalise(total).to(x.dtype))

    def _normalise(self, x: Tensor) -> Tensor:
        gain, bias = self.norm_gain, self.norm_bias
        assert gain is not None
        wide = torch.promote_types(torch.promote_types(x.dtype, gain.dtype), torch.float32)
        if self.post_norm == "rmsnorm":
            return F.rms_norm(x.to(wide), x.shape[-1:], gain.to(wide), self.eps)
        return F.layer_norm(x.to(wide), x.shape[-1:], gain.to(wide), None if bias is None else bias.to(wide), self.eps)


class AdditiveReadout(Readout[AdditiveState]):
    """The stream itself."""

    def forward(self, state: AdditiveState) -> Tensor:
        """x (..., dim)."""
        return state.x


@kind("additive")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Additive(Connection[AdditiveState]):
    """The residual stream of every Transformer, and its variants.

    Attributes:
        post_norm: the norm after the addition; "none" leaves the stream alone (PreNorm).
        post_norm_blocks: post-norm only in the first so many blocks of two sublayers (Mix-LN, arXiv 2412.13795);
            None means in all.
        alpha: what the stream is multiplied by before a post-norm; "deepnorm" is (2·blocks)^¼ with
            blocks = sublayers / 2 (DeepNet, arXiv 2203.00555).
        branch: a learned gain on every output: "layerscale" per channel (arXiv 2103.17239), "rezero" one scalar that
            starts at 0 (arXiv 2003.04887).
        layerscale_init: where LayerScale's gains start.
        eps: of the post-norm.

    Raises:
        UsageError: an option that has no effect without another, or a value out of range.
    """

    post_norm: Literal["none", "layernorm", "rmsnorm"] = "none"
    post_norm_blocks: int | None = None
    alpha: float | Literal["deepnorm"] = 1.0
    branch: Literal["none", "layerscale", "rezero"] = "none"
    layerscale_init: float = 1e-4
    eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in (
            ("post_norm", ("none", "layernorm", "rmsnorm")),
            ("branch", ("none", "layerscale", "rezero")),
        ):
            if getattr(self, name) not in choices:
                raise UsageError(f"{name}={getattr(self, name)!r} is unknown; {', '.join(choices)} work")
        if isinstance(self.alpha, str) and self.alpha != "deepnorm":
            raise UsageError(f"alpha={self.alpha!r} is unknown; a number or 'deepnorm' works")
        if self.post_norm == "none" and (self.alpha != 1.0 or self.post_norm_blocks is not None):
            option = "alpha" if self.alpha != 1.0 else "post_norm_blocks"
            raise UsageError(f"{option} has no effect with post_norm='none'; choose post_norm='layernorm' or 'rmsnorm'")
        check_numbers(self, not_negative=("post_norm_blocks", "eps"))

    def open(self, x: Tensor) -> AdditiveState:
        """The stream starts as the embedding x (..., dim)."""
        return AdditiveState(self.state_tensor(x))

    def pack(self, state: AdditiveState) -> tuple[Tensor, ...]:
        """One tensor: the stream."""
        return (state.x,)

    def unpack(self, tensors: Sequence[Tensor], site: Site | Readout) -> AdditiveState:
        """The stream."""
        (x,) = tensors
        return AdditiveState(x)

    def make_site(self, index: int, dim: int, sublayers: int, **factory: Any) -> AdditiveSite:
        """Site `index`, with post-norm if its block is among the first `post_norm_blocks`."""
        after = self.post_norm_blocks is None or index // 2 < self.post_norm_blocks
        alpha = float(sublayers) ** 0.25 if self.alpha == "deepnorm" else float(self.alpha)
        return AdditiveSite(self, dim, normed=after, alpha=alpha, factory=factory)

    def make_readout(self, dim: int, sublayers: int, **factory: Any) -> AdditiveReadout:
        """The stream itself: no parameters."""
        return AdditiveReadout(scale=1.0)
