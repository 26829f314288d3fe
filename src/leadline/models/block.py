"""A transformer block: two sites in depth, and the sublayer between each one's read and write."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from leadline.connections import Additive
from leadline.connections.base import Connection, Site, State
from leadline.models.config import LayerConfig
from leadline.models.layers import Attention, CacheEntry, Device, SwiGLU
from leadline.norms import BoundedTanhNorm, BoundedTanhReuse, Norm, NormConfig, Role
from leadline.sharded import gathered


class Tokens(NamedTuple):
    """What every block needs to know of the current tokens.

    Attributes:
        positions: (T,) int64, from 0.
        rotary: cosines and sines by head width.
    """

    positions: Tensor
    rotary: dict[int, tuple[Tensor, Tensor]]


class Block(nn.Module):
    """`attn_site` → norm → attention → output norm → `mlp_site` → norm → MLP → output norm.

    A block from which a sublayer was cut out has None in its place, and no site and no norms for it.

    Args:
        dim: model width.
        config: this block's configuration.
        connection: what the sites belong to.
        attn_site: attention's place in depth.
        mlp_site: the MLP's.
        first: the block that this one repeats, if any. All parameters but the sites' are that block's and are
            registered there alone: they count once, are saved once, and follow wherever that block is moved.

    Attributes:
        reuses_moment: whether the MLP's norm takes its second moment from attention's (BHyT's approximation), which
            holds for a plain Additive connection with nothing between attention and the next read.
    """

    attention: Attention | None
    mlp: SwiGLU | None
    attention_norm: Norm | None
    mlp_norm: Norm | None
    attention_output_norm: Norm | None
    mlp_output_norm: Norm | None

    def __init__(
        self,
        dim: int,
        config: LayerConfig,
        connection: Connection,
        attn_site: Site | None,
        mlp_site: Site | None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        first: Block | None = None,
    ) -> None:
        super().__init__()
        self.attn_site = attn_site
        self.mlp_site = mlp_site
        self.norm_scale = config.norm_scale

        def norm(config: NormConfig | None, role: Role, site: Site | None) -> Norm | None:
            if config is None or site is None:
                return None
            scale = 1.0 if role == "output" else site.scale
            return config.build(dim, scale=scale, role=role, device=device if first is None else "meta", dtype=dtype)

        norms = {
            "attention_norm": norm(config.attention_norm, "attention", attn_site),
            "mlp_norm": norm(config.mlp_norm, "mlp", mlp_site),
            "attention_output_norm": norm(config.attention_output_norm, "output", attn_site),
            "mlp_output_norm": norm(config.mlp_output_norm, "output", mlp_site),
        }
        if first is None:
            attention, mlp = config.attention, config.mlp
            self.attention = None if attention is None else Attention(dim, attention, device, dtype)
            self.mlp = None if mlp is None else SwiGLU(dim, mlp, device, dtype)
            for name, module in norms.items():
                setattr(self, name, module)
        else:
            for name, module in norms.items():
                share_parameters(module, getattr(first, name))
            for name, part in {**norms, "attention": first.attention, "mlp": first.mlp}.items():
                object.__setattr__(self, name, part)  # kept without being registered
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
        if self.attention is not None and self.attn_site is not None and first is not None:
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
        if self.mlp is not None and self.mlp_site is not None and second is not None:
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
            state = self.mlp_site.write(state, h)
        return state

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
        """Recomputes BHyT's constant from the weights as they are, for sequences of `context` tokens."""
        attention, first, second = self.attention, self.attention_norm, self.mlp_norm
        if attention is None or not self.reuses_moment:
            return
        if isinstance(first, BoundedTanhNorm) and isinstance(second, BoundedTanhReuse):
            with gathered(self):
                weights = attention.value_weight, attention.output.weight
                second.refresh(*weights, attention.heads, attention.kv_heads, context, first.gain)


def share_parameters(module: nn.Module | None, first: nn.Module | None) -> None:
    """Gives `module` the parameters and buffers of `first`, its like: now, and whatever becomes of them later.

    The two have the same dictionaries of them, so that one moved, converted, loaded or sharded takes the other along.
    What isn't a parameter stays its own, such as the eps of a norm whose site has another scale.
    """
    if module is None or first is None:
        return
    for own, other in zip(module.modules(), first.modules(), strict=True):
        own._parameters, own._buffers = other._parameters, other._buffers


def is_plain(connection: Connection) -> bool:
    """Whether a write is nothing but `x + F(h)`."""
    return (
        isinstance(connection, Additive)
        and connection.post_norm == "none"
        and connection.alpha == 1.0
        and connection.branch == "none"
    )
