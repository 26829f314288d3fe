"""The two sublayers of a block, attention and SwiGLU, how they start, and what attention keeps of earlier tokens.

Every matrix starts from a generator of its own, seeded by the seed and its name. So the same seed gives the same
embedding, attention and MLP whatever the connection and the norms are, on every device, and after meta-device
construction too. Nothing but keys and values crosses tokens: what travels over depth is made again for every token.

Shapes: B batch, T new tokens, S tokens attended to, D width, H query heads, K key and value heads, E head width.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.errors import LeadlineError, UsageError
from leadline.models.config import AttentionConfig, InitConfig, MLPConfig
from leadline.norms import RMSNorm

Device = torch.device | str | None


class Linear(nn.Linear):
    """A matrix without a bias, whose values come from `initialise` and not from its constructor."""

    def __init__(self, dim_in: int, dim_out: int, device: Device, dtype: torch.dtype | None) -> None:
        super().__init__(dim_in, dim_out, bias=False, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Leaves the values as they are."""


class Embedding(nn.Embedding):
    """A table of vectors, initialised as `Linear` is."""

    def reset_parameters(self) -> None:
        """Leaves the values as they are."""


def rotary_tables(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines for `rotate`, each (T, E/2), in float32 (float64 for a float64 model).

    They depend on nothing but positions, so they are made again in each forward pass: no buffer to lose.
    Source: arXiv 2104.09864; pairs are (i, i + E/2), as in Llama.
    """
    wide = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=wide) / head_dim
    angles = positions.to(wide).unsqueeze(-1) * (1.0 / theta**exponents)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turns the pairs of x (B, heads, T, E) by the angles of `rotary_tables`; arithmetic in the tables' dtype."""
    first, second = x.to(cosines.dtype).chunk(2, dim=-1)
    turned = torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)
    return turned.to(x.dtype)


class CacheEntry:
    """Keys and values of one block, in buffers that double when they are full."""

    def __init__(self, capacity: int) -> None:
        self.length = 0
        self._capacity = capacity
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Adds keys and values (B, K, T, E) and returns all there are, (B, K, S, E)."""
        length = self.length + key.shape[2]
        self._keys = self._fit(self._keys, key, length)
        self._values = self._fit(self._values, value, length)
        self._keys[:, :, self.length : length] = key
        self._values[:, :, self.length : length] = value
        self.length = length
        return self._keys[:, :, :length], self._values[:, :, :length]

    def _fit(self, buffer: Tensor | None, new: Tensor, length: int) -> Tensor:
        """A buffer of the dtype and device of `new` that holds `length` tokens and what `buffer` held."""
        batch, heads, _, width = new.shape
        if buffer is None:
            return new.new_empty(batch, heads, max(length, self._capacity), width)
        if buffer.shape[0] != batch:
            raise UsageError(f"the cache holds a batch of {buffer.shape[0]}, not {batch}; use a new KVCache")
        if length <= buffer.shape[2]:
            return buffer
        grown = buffer.new_empty(batch, heads, max(length, 2 * buffer.shape[2]), width)
        grown[:, :, : self.length] = buffer[:, :, : self.length]
        return grown


class KVCache:
    """What a decoder keeps of the tokens it has seen, for one batch of sequences.

        cache = KVCache()
        logits = model(prompt, cache=cache)          # fills the cache
        logits = model(next_tokens, cache=cache)     # attends to the prompt too

    A block whose attention is skipped keeps nothing, so a sublayer is skipped for all tokens of a cache or for none.

    Args:
        capacity: room made at the start, in tokens; buffers grow when more come.

    Attributes:
        length: tokens seen.
    """

    def __init__(self, capacity: int = 0) -> None:
        self.length = 0
        self._capacity = capacity
        self._entries: dict[int, CacheEntry] = {}

    def entry(self, block: int) -> CacheEntry:
        """The entry of the block with this number, which must have seen every token before.

        Raises:
            LeadlineError: the block's attention was skipped for earlier tokens.
        """
        entry = self._entries.setdefault(block, CacheEntry(self._capacity))
        entry.length = min(entry.length, self.length)  # more where a pass was interrupted
        if entry.length != self.length:
            raise LeadlineError(
                f"block {block} has keys and values of {entry.length} tokens and the cache has seen {self.length}: "
                "skip a sublayer for all tokens of a KVCache or for none"
            )
        return entry

    def rewind(self, length: int) -> None:
        """Forgets the tokens after the first `length`: the next ones take their places.

        Raises:
            UsageError: the cache hasn't seen so many.
        """
        if not 0 <= length <= self.length:
            raise UsageError(f"length={length} is out of range; this cache has seen {self.length} tokens")
        self.length = length


class Attention(nn.Module):
    """Causal self-attention: queries, keys and values from one matrix (in this order), grouped queries through SDPA.

    Parameters: `qkv.weight` ((H + 2K)·E, D), `output.weight` (D, H·E); with QK-norm `query_norm.gain` and
    `key_norm.gain` (E,).
    """

    def __init__(self, dim: int, config: AttentionConfig, device: Device = None, dtype: torch.dtype | None = None):
        super().__init__()
        config.check("attention")
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.head_dim = config.head_dim
        rows = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.qkv = Linear(dim, rows, device, dtype)
        self.output = Linear(config.heads * config.head_dim, dim, device, dtype)
        self.query_norm: nn.Module | None = None
        self.key_norm: nn.Module | None = None
        if config.qk_norm:
            self.query_norm = RMSNorm().build(config.head_dim, role="query_key", device=device, dtype=dtype)
            self.key_norm = RMSNorm().build(config.head_dim, role="query_key", device=device, dtype=dtype)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor, cache: CacheEntry | None = None) -> Tensor:
        """x (B, T, D) to (B, T, D); with a cache the T tokens follow those it holds."""
        batch, time, _ = x.shape
        heads = self.qkv(x).view(batch, time, self.heads + 2 * self.kv_heads, self.head_dim).transpose(1, 2)
        query_key, value = heads.split((self.heads + self.kv_heads, self.kv_heads), dim=1)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = query_key.split((self.heads, self.kv_heads), dim=1)
            query_key = torch.cat((self.query_norm(query), self.key_norm(key)), dim=1)
        query, key = rotate(query_key, cosines, sines).split((self.heads, self.kv_heads), dim=1)
        if cache is not None:
            key, value = cache.append(key, value)
        mixed = self._attend(query, key, value)
        return self.output(mixed.transpose(1, 2).reshape(batch, time, self.heads * self.head_dim))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The newest T of S tokens attend to all tokens up to themselves: (B, H, T, E)."""
        time, attended = query.shape[2], key.shape[2]
        mask, causal = None, False
        if time > 1:  # branches, because under torch.compile these sizes may be symbols, which is_causal doesn't take
            if time == attended:
                causal = True
            else:
                mask = torch.ones(time, attended, dtype=torch.bool, device=query.device).tril(attended - time)
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=causal,
            enable_gqa=self.heads != self.kv_heads,
        )

    @property
    def value_weight(self) -> Tensor:
        """The rows of `qkv` that make values: (K·E, D)."""
        return self.qkv.weight[-self.kv_heads * self.head_dim :]


class SwiGLU(nn.Module):
    """`down(silu(gate(x)) * up(x))` (arXiv 2002.05202), with gate and up in one matrix, gate first.

    Parameters: `gate_up.weight` (2·hidden, D), `down.weight` (D, hidden).
    """

    def __init__(self, dim: int, config: MLPConfig, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        config.check("mlp")
        self.gate_up = Linear(dim, 2 * config.hidden, device, dtype)
        self.down = Linear(config.hidden, dim, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) to (..., D)."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


@torch.no_grad()
def initialise(
    model: nn.Module, init: InitConfig, dim: int, blocks: int, seed: int, numbers: Sequence[int] = ()
) -> None:
    """Sets every parameter and buffer of `model` to its start.

    Matrices are normal with `init.std`; modules that set themselves (norms, sites, the readout) do so.

    Args:
        model: holds no matrices but those of `Linear` and `Embedding`.
        init: standard deviation and scales.
        dim: model width, for the default standard deviation.
        blocks: number of blocks, for the depth-dependent scales.
        seed: any whole number.
        numbers: the number that each block had before others were cut out; its matrices start as they did there.
    """
    std = 0.02 * math.sqrt(512 / dim) if init.std is None else init.std
    for name, module in model.named_modules():
        if isinstance(module, Linear | Embedding):
            # Drawn on the CPU in float32, so that device and dtype change nothing but rounding.
            draw = torch.empty(module.weight.shape, dtype=torch.float32)
            key = f"{seed}:{renumbered(name, numbers) if numbers else name}.weight"
            module.weight.copy_(draw.normal_(0.0, std, generator=generator_for(key)))
        elif module is not model and callable(getattr(module, "reset_parameters", None)):
            module.reset_parameters()
    blocks = max(1, blocks)  # without blocks there is nothing to scale
    gain = float(8 * blocks) ** -0.25 if init.deepnorm else 1.0
    output = (1 / math.sqrt(2 * blocks) if init.output_scale == "depth" else 1.0) * gain
    for module in model.modules():
        if isinstance(module, Attention):
            _scale(module.output.weight, output)
            _scale(module.value_weight, gain)
        elif isinstance(module, SwiGLU):
            _scale(module.gate_up.weight, gain)
            _scale(module.down.weight, output)


def renumbered(name: str, numbers: Sequence[int]) -> str:
    """The name of a parameter or module where block i is called `numbers[i]`."""
    home, _, rest = name.partition(".")
    if home != "blocks":
        return name
    index, _, rest = rest.partition(".")
    return f"blocks.{numbers[int(index)]}.{rest}"


def _scale(weight: Tensor, factor: float) -> None:
    if factor != 1.0:
        weight.mul_(factor)


def generator_for(key: str) -> torch.Generator:
    """A generator on the CPU for the parameter that a key names."""
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1)
