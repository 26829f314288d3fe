"""Shards: files of raw little-endian token numbers, with a checksum each."""

from __future__ import annotations

import os
import re
import weakref
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from leadline.errors import LeadlineError, UsageError

DTYPES: dict[str, np.dtype[Any]] = {"uint8": np.dtype("u1"), "uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
NAME = re.compile(r"(train|heldout)-\d{5,}\.bin")
SHARD_TOKENS = 1 << 27
_BUFFER_BYTES = 1 << 20
_READ_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A file in a data set's folder: how many tokens it holds and the CRC-32 of its bytes."""

    file: str
    tokens: int
    crc32: int


def choose_dtype(vocab_size: int, wanted: str = "auto") -> str:
    """The smallest dtype that holds every token, or `wanted` where it does.

    Raises:
        UsageError: an unknown dtype, or one too small for the vocabulary.
    """
    fitting = [name for name, dtype in DTYPES.items() if vocab_size <= np.iinfo(dtype).max + 1]
    if not fitting:
        raise UsageError(f"a vocabulary of {vocab_size} tokens does not fit into any of {', '.join(DTYPES)}")
    if wanted == "auto":
        return fitting[0]
    if wanted not in DTYPES:
        raise UsageError(f"--dtype {wanted} is unknown; it can be auto, {', '.join(DTYPES)}")
    if wanted not in fitting:
        raise UsageError(f"--dtype {wanted} cannot hold a vocabulary of {vocab_size}; it can be {', '.join(fitting)}")
    return wanted


class ShardWriter:
    """Appends tokens to `SPLIT-00000.bin`, `SPLIT-00001.bin`, … of at most `shard_tokens` each.

    No file is made before the first token. Closing syncs each file to the disk.
    """

    def __init__(self, folder: Path, split: str, dtype: str, shard_tokens: int = SHARD_TOKENS) -> None:
        self.folder = folder
        self.split = split
        self.dtype = DTYPES[dtype]
        self.shard_tokens = shard_tokens
        self.tokens = 0
        self.shards: list[Shard] = []
        self._handle: IO[bytes] | None = None
        self._room = 0
        self._crc = 0

    def write(self, tokens: NDArray[Any]) -> None:
        """Appends (count,) token numbers, which must fit the dtype."""
        self.tokens += len(tokens)
        data = memoryview(np.ascontiguousarray(tokens, dtype=self.dtype).tobytes())
        while data:
            if self._handle is None:
                self._handle = open(self.folder / self._name(), "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115 (closed with the shard)
                self._room = self.shard_tokens * self.dtype.itemsize
                self._crc = 0
            part, data = data[: self._room], data[self._room :]
            self._handle.write(part)
            self._crc = zlib.crc32(part, self._crc)
            self._room -= len(part)
            if self._room == 0:
                self._finish_shard()

    def close(self) -> list[Shard]:
        """Writes what is waiting and returns every shard."""
        self._finish_shard()
        return self.shards

    def abandon(self) -> None:
        """Closes what is open without finishing it."""
        if self._handle is not None:
            with suppress(OSError):  # of a full disk, which was said before
                self._handle.close()
            self._handle = None

    def _finish_shard(self) -> None:
        if self._handle is None:
            return
        self._handle.flush()
        os.fsync(self._handle.fileno())
        tokens = self._handle.tell() // self.dtype.itemsize
        self._handle.close()
        self._handle = None
        self.shards.append(Shard(file=self._name(), tokens=tokens, crc32=self._crc))

    def _name(self) -> str:
        return f"{self.split}-{len(self.shards):05d}.bin"


class ShardReader:
    """Shards that are open for reading, as one row of tokens.

    They are read, not mapped, so that a file cut short meanwhile is an error.
    """

    def __init__(self, folder: Path, shards: Sequence[Shard], dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._paths = [folder / shard.file for shard in shards]
        self._ends = [end * dtype.itemsize for end in accumulate(shard.tokens for shard in shards)]
        self._handles = [os.open(path, os.O_RDONLY) for path in self._paths]
        for handle in self._handles:
            weakref.finalize(self, os.close, handle)

    def read(self, start: int, count: int) -> NDArray[Any]:
        """At most `count` tokens from `start` on, as (count,) of the shards' dtype.

        Raises:
            LeadlineError: a file has become shorter, or can't be read.
        """
        at = start * self.dtype.itemsize
        end = min(at + count * self.dtype.itemsize, self._ends[-1] if self._ends else 0)
        parts = []
        while at < end:
            number = bisect_right(self._ends, at)
            offset = at - (self._ends[number - 1] if number else 0)
            wanted = min(end, self._ends[number]) - at
            try:
                data = os.pread(self._handles[number], min(wanted, _READ_BYTES), offset)
            except OSError as error:
                raise LeadlineError(f"{self._paths[number]} cannot be read: {error.strerror}") from error
            if not data:
                raise LeadlineError(
                    f"{self._paths[number]} was truncated while it was in use: nothing at byte {offset}; "
                    "prepare the data again"
                )
            parts.append(data)
            at += len(data)
        return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), dtype=self.dtype)


def move_ranges(shards: list[Shard], ranges: list[tuple[int, int]], kept: ShardWriter, moved: ShardWriter) -> None:
    """Writes the tokens from start to end of each of the sorted `ranges` to `moved`, all others to `kept`.

    Shards before the first range stay as they are.

    Args:
        kept: a new writer, which takes the place of the one that wrote `shards`; it is closed at the end.
    """
    folder, ends = kept.folder, accumulate(shard.tokens for shard in shards)
    kept.shards = [shard for shard, end in zip(shards, ends, strict=True) if end <= ranges[0][0]]
    old = [replace(shard, file=f"all-{shard.file}") for shard in shards[len(kept.shards) :]]
    for shard, renamed in zip(shards[len(kept.shards) :], old, strict=True):
        os.rename(folder / shard.file, folder / renamed.file)
    reader = ShardReader(folder, old, kept.dtype)
    at = begin = sum(shard.tokens for shard in kept.shards)
    total = sum(shard.tokens for shard in shards)
    for start, end in [*ranges, (total, total)]:
        for writer, until in ((kept, start), (moved, end)):
            while at < until:
                tokens = reader.read(at - begin, min(_BUFFER_BYTES, until - at))
                writer.write(tokens)
                at += len(tokens)
    for shard in old:
        (folder / shard.file).unlink()
    kept.close()
