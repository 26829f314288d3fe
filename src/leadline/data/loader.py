"""Batches in an order that depends on the seed, the data and the context, and on nothing else."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leadline.data.dataset import Split
from leadline.errors import LeadlineError, UsageError

if TYPE_CHECKING:
    import torch

_ROUNDS = 6


class Batch(NamedTuple):
    """`tokens` and `targets`, both (B, T) int64 on the CPU; a target is the token that follows."""

    tokens: torch.Tensor
    targets: torch.Tensor


class Loader:
    """Endless batches of windows from a split.

    A window is `context + 1` tokens and shares its last token with the next window's first, so each token is predicted
    once. Each epoch takes every window once, in a new order; where the windows begin moves between epochs by less
    than one window, so that no token at the end is left out for good. A batch may reach into the next epoch.

    The order over all ranks is the same for any `batch_size` and `world`: rank r takes rows r·batch_size … of the next
    batch_size·world windows. Nothing of it depends on the model or on the version of a random number library.

    Raises:
        UsageError: the split is too short for one window, or a number is out of range.
    """

    def __init__(
        self, split: Split, batch_size: int, context: int, seed: int = 0, *, rank: int = 0, world: int = 1
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size} is too small; it can be 1 or more")
        if world < 1 or not 0 <= rank < world:
            raise UsageError(f"rank={rank} of world={world} is wrong; rank counts from 0 to world - 1")
        self.split = split
        self.batch_size = batch_size
        self.context = context
        self.seed = seed
        self.rank = rank
        self.world = world
        self.windows = split.windows(context)
        self._data = int(hashlib.blake2b(split.data_hash.encode(), digest_size=6).hexdigest(), 16)
        self._next = 0

    def next(self) -> Batch:
        """This rank's next batch; the position moves by batch_size·world windows."""
        first = self._next + self.rank * self.batch_size
        rows = np.empty((self.batch_size, self.context + 1), dtype=np.int64)
        for row, start in enumerate(self._starts(first, self.batch_size)):
            rows[row] = self.split.read(start, self.context + 1)
        self._next += self.batch_size * self.world
        return _batch(rows)

    def __iter__(self) -> Iterator[Batch]:
        """Batches without an end."""
        while True:
            yield self.next()

    def skip(self, batches: int) -> None:
        """Moves on by so many batches without reading them."""
        self._next += batches * self.batch_size * self.world

    @property
    def epoch(self) -> int:
        """How many times every window has been taken."""
        return self._next // self.windows

    def state(self) -> dict[str, int]:
        """The position, the same on every rank, and what the order depends on."""
        epoch, index = divmod(self._next, self.windows)
        return {"epoch": epoch, "index": index, "seed": self.seed, "context": self.context, "data": self._data}

    def load(self, state: dict[str, int]) -> None:
        """Continues where `state()` was taken; batch size and world may differ.

        Raises:
            LeadlineError: the state is of another seed, context or data set, or is broken.
        """
        own = self.state()
        if set(state) != set(own):
            raise LeadlineError(f"a loader's state has {', '.join(own)}; this one has {', '.join(state) or 'nothing'}")
        for key in ("seed", "context", "data"):
            if state[key] != own[key]:
                what = "another data set" if key == "data" else f"{key}={state[key]}, not {key}={own[key]}"
                raise LeadlineError(f"the loader cannot continue here: its state is of {what}")
        if state["epoch"] < 0 or not 0 <= state["index"] < self.windows:
            raise LeadlineError(f"the loader's state is broken: index {state['index']} of {self.windows} windows")
        self._next = state["epoch"] * self.windows + state["index"]

    def _starts(self, first: int, count: int) -> list[int]:
        """The first tokens of windows `first` to `first + count` of the endless order."""
        starts: list[int] = []
        while len(starts) < count:
            epoch, index = divmod(first + len(starts), self.windows)
            take = min(count - len(starts), self.windows - index)
            key = key_of(self.seed, self._data, self.context, epoch)
            shift = key[-1] % ((self.split.tokens - 1) % self.context + 1)
            order = permute(np.arange(index, index + take, dtype=np.uint64), self.windows, key)
            starts.extend(int(window) * self.context + shift for window in order)
        return starts


def evaluation_batches(split: Split, batch_size: int, context: int, limit_tokens: int | None = None) -> Iterator[Batch]:
    """The split's windows in order, the same every time; the last batch may be smaller.

    With `limit_tokens`, as many windows as give at most that many predictions (at least one), spread evenly over the
    split. Fewer than `context` tokens at the split's end are not used.

    Raises:
        UsageError: the split is too short for one window.
    """
    windows = split.windows(context)
    if batch_size < 1:
        raise UsageError(f"batch_size={batch_size} is too small; it can be 1 or more")
    taken = spread(windows, windows if limit_tokens is None else limit_tokens // context)
    return _read_batches(split, (taken * context).tolist(), batch_size, context)


def _read_batches(split: Split, starts: list[int], batch_size: int, context: int) -> Iterator[Batch]:
    for first in range(0, len(starts), batch_size):
        yield _batch(np.stack([split.read(s, context + 1) for s in starts[first : first + batch_size]]))


def spread(count: int, limit: int) -> NDArray[np.int64]:
    """At most `limit` of the numbers below `count`, at least one, spread evenly."""
    taken = max(1, min(count, limit))
    return np.arange(taken, dtype=np.int64) * count // taken


def bits_per_byte(loss: float, bytes_per_token: float) -> float:
    """Mean cross-entropy in nats per token as bits per byte of text."""
    return loss / math.log(2) / bytes_per_token


def permute(indices: NDArray[np.uint64], count: int, key: tuple[int, ...]) -> NDArray[np.uint64]:
    """Where a keyed permutation of 0 … count-1 sends `indices`, (n,) uint64, without storing it.

    A Feistel network over the next even power of two, walked until it lands inside (Black and Rogaway 2002,
    "Ciphers with arbitrary finite domains"); the round function is SplitMix64's finaliser. Spreads well; no secrecy.
    """
    half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    out = indices.copy()
    outside = np.ones(len(out), dtype=bool)
    while outside.any():
        left, right = out[outside] >> half, out[outside] & mask
        for round_key in key[:_ROUNDS]:
            left, right = right, left ^ (_mix(right + np.uint64(round_key)) & mask)
        out[outside] = (left << half) | right
        outside = out >= count
    return out


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def key_of(*parts: object, words: int = _ROUNDS + 1) -> tuple[int, ...]:
    """Numbers of 64 bits that the parts decide: a key for `permute`, and one more."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8 * words).digest()
    return tuple(int.from_bytes(digest[i : i + 8], "little") for i in range(0, len(digest), 8))


def _batch(rows: NDArray[np.int64]) -> Batch:
    import torch

    both = torch.from_numpy(rows)
    return Batch(both[:, :-1].contiguous(), both[:, 1:].contiguous())
