"""The KV cache: keys and values of each block's attention for the tokens seen so far.

Nothing else crosses tokens: what travels over depth is made again for every token.
"""

from __future__ import annotations

from torch import Tensor

from leadline.errors import LeadlineError, UsageError


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
