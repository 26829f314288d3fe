"""A transformer block: two sites in depth, and the sublayer between each one's read and write."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from leadline.connections import Additive
from leadline.connections.base import Connection, Site, State
from leadline.models.cache import CacheEntry
from leadline.models.config import LayerConfig
from leadline.models.layers import Attention, Device, SwiGLU
from leadline.norms import BoundedTanhNorm, BoundedTanhReuse, Norm, NormConfig, Role


class Tokens(NamedTuple):
    """What every block needs to know of the tokens at hand.

    Attributes:
        positions: (T,) int64, from 0.
        rotary: cosines and sines by head width.
    """

    positions: Tensor
    rotary: dict[int, tuple[Tensor, Tensor]]


class Block(nn.Module):
    """`attn_site` → norm → attention → output norm → `mlp_site` → norm → MLP → output norm.

    Args:
        dim: model width.
        config: this block's configuration.
        connection: what the sites belong to.
        attn_site: attention's place in depth.
        mlp_site: the MLP's.

    Attributes:
        reuses_moment: whether the MLP's norm takes its second moment from attention's (BHyT's approximation), which
            holds for a plain Additive connection with nothing between attention and the next read.
    """

    def __init__(
        self,
        dim: int,
        config: LayerConfig,
        connection: Connection,
        attn_site: Site,
        mlp_site: Site,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.attn_site = attn_site
        self.mlp_site = mlp_site
        self.attention = Attention(dim, config.attention, device, dtype)
        self.mlp = SwiGLU(dim, config.mlp, device, dtype)

        def norm(config: NormConfig, role: Role, scale: float = 1.0) -> Norm:
            return config.build(dim, scale=scale, role=role, device=device, dtype=dtype)

        def output_norm(config: NormConfig | None) -> Norm | None:
            return None if config is None else norm(config, "output")

        self.attention_norm = norm(config.attention_norm, "attention", attn_site.scale)
        self.mlp_norm = norm(config.mlp_norm, "mlp", mlp_site.scale)
        self.attention_output_norm = output_norm(config.attention_output_norm)
        self.mlp_output_norm = output_norm(config.mlp_output_norm)
        self.norm_scale = config.norm_scale
        self.reuses_moment = (
            isinstance(self.attention_norm, BoundedTanhNorm)
            and isinstance(self.mlp_norm, BoundedTanhReuse)
            and is_plain(connection)
            and config.attention_output_norm is None
            and config.norm_scale == 1.0
        )

    def forward(
        self,
        state: State,
        tokens: Tokens,
        cache: CacheEntry | None = None,
        skip_attention: bool = False,
        skip_mlp: bool = False,
    ) -> State:
        """The state after both sublayers; a skipped one leaves depth as it is."""
        moment, first, second = None, self.attention_norm, self.mlp_norm
        if skip_attention:
            state = self.attn_site.skip(state)
        else:
            if self.reuses_moment and not skip_mlp and isinstance(first, BoundedTanhNorm):
                h, state = self.attn_site.read(state)
                h, moment = first.with_moment(h)
            else:
                h, state = self._read(self.attn_site, first, state)
            h = self.attention(h, *tokens.rotary[self.attention.head_dim], cache)
            if self.attention_output_norm is not None:
                h = self.attention_output_norm(h)
            state = self.attn_site.write(state, h)
        if skip_mlp:
            return self.mlp_site.skip(state)
        if moment is not None and isinstance(first, BoundedTanhNorm) and isinstance(second, BoundedTanhReuse):
            h, state = self.mlp_site.read(state)
            h = second.reuse(h, moment, first.lam, tokens.positions)
        else:
            h, state = self._read(self.mlp_site, second, state)
        h = self.mlp(h)
        if self.mlp_output_norm is not None:
            h = self.mlp_output_norm(h)
        return self.mlp_site.write(state, h)

    def _read(self, site: Site, norm: Norm, state: State) -> tuple[Tensor, State]:
        """What the sublayer computes on: the norm of what the site sees."""
        folded = norm.folded() if site.takes_norm else None
        if folded is None:
            h, state = site.read(state)
            h = norm(h)
        else:
            h, state = site.read_normed(state, folded)
        return (h if self.norm_scale == 1.0 else h * self.norm_scale), state

    def refresh_statistics(self, context: int) -> None:
        """Works out BHyT's constant anew from the weights as they are, for sequences of `context` tokens."""
        attention, first, second = self.attention, self.attention_norm, self.mlp_norm
        if self.reuses_moment and isinstance(first, BoundedTanhNorm) and isinstance(second, BoundedTanhReuse):
            second.refresh(
                attention.value_weight,
                attention.output.weight,
                attention.heads,
                attention.kv_heads,
                context,
                first.gain,
            )


def is_plain(connection: Connection) -> bool:
    """Whether a write is nothing but `x + F(h)`."""
    return (
        isinstance(connection, Additive)
        and connection.post_norm == "none"
        and connection.alpha == 1.0
        and connection.branch == "none"
    )
