"""Shards: files of raw little-endian token numbers, with a checksum each."""

from __future__ import annotations

import os
import re
import weakref
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from leadline.errors import LeadlineError, UsageError

DTYPES: dict[str, np.dtype[Any]] = {"uint8": np.dtype("u1"), "uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
NAME = re.compile(r"(train|heldout)-\d{5,}\.bin")
SHARD_TOKENS = 1 << 27
_BUFFER_BYTES = 1 << 20
_BUFFER_PARTS = 1 << 12
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
        self.name = dtype
        self.dtype = DTYPES[dtype]
        self.shard_tokens = shard_tokens
        self.tokens = 0
        self.shards: list[Shard] = []
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._handle: IO[bytes] | None = None
        self._room = 0
        self._crc = 0

    def write(self, tokens: NDArray[Any]) -> None:
        """Appends (count,) token numbers, which must fit the dtype."""
        data = np.ascontiguousarray(tokens, dtype=self.dtype)
        self.tokens += len(data)
        if data.nbytes >= _BUFFER_BYTES // 4:
            self._flush()
            self._append(data.data.cast("B"))
            return
        self._waiting.append(data.tobytes())
        self._waiting_bytes += data.nbytes
        if self._waiting_bytes >= _BUFFER_BYTES or len(self._waiting) >= _BUFFER_PARTS:
            self._flush()

    def close(self) -> list[Shard]:
        """Writes what is waiting and returns every shard."""
        self._flush()
        self._finish_shard()
        return self.shards

    def abandon(self) -> None:
        """Closes what is open without finishing it."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _flush(self) -> None:
        joined = b"".join(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        self._append(memoryview(joined))

    def _append(self, data: memoryview) -> None:
        while data:
            if self._handle is None:
                self._handle = open(self.folder / self._name(), "wb", buffering=0)  # noqa: SIM115 (closed with the shard)
                self._room = self.shard_tokens * self.dtype.itemsize
                self._crc = 0
            part = data[: self._room]
            _write_all(self._handle, part)
            self._crc = zlib.crc32(part, self._crc)
            self._room -= len(part)
            data = data[len(part) :]
            if self._room == 0:
                self._finish_shard()

    def _finish_shard(self) -> None:
        if self._handle is None:
            return
        size = self._handle.tell()
        os.fsync(self._handle.fileno())
        self._handle.close()
        self._handle = None
        self.shards.append(Shard(file=self._name(), tokens=size // self.dtype.itemsize, crc32=self._crc))

    def _name(self) -> str:
        return f"{self.split}-{len(self.shards):05d}.bin"


def move_tail(folder: Path, shards: list[Shard], start: int, writer: ShardWriter) -> list[Shard]:
    """Moves every token from `start` on to `writer` and returns the shards that are left."""
    kept: list[Shard] = []
    begin = 0
    for shard in shards:
        path = folder / shard.file
        keep = min(max(start - begin, 0), shard.tokens)
        begin += shard.tokens
        if keep == shard.tokens:
            kept.append(shard)
            continue
        with open(path, "rb") as handle:
            handle.seek(keep * writer.dtype.itemsize)
            while data := handle.read(_BUFFER_BYTES):
                writer.write(np.frombuffer(data, dtype=writer.dtype))
        if keep == 0:
            path.unlink()
            continue
        os.truncate(path, keep * writer.dtype.itemsize)
        kept.append(Shard(file=shard.file, tokens=keep, crc32=checksum(path)))
    return kept


def move_ranges(
    folder: Path, shards: list[Shard], ranges: list[tuple[int, int]], kept: ShardWriter, moved: ShardWriter
) -> list[Shard]:
    """Writes the tokens from start to end of each of the sorted `ranges` to `moved`, all others to `kept`.

    Returns:
        The shards of `kept`, which takes the place of `shards`.
    """
    old = [replace(shard, file=f"all-{shard.file}") for shard in shards]
    for shard, renamed in zip(shards, old, strict=True):
        os.rename(folder / shard.file, folder / renamed.file)
    total = sum(shard.tokens for shard in old)
    at = 0
    for start, end in [*ranges, (total, total)]:
        for writer, until in ((kept, start), (moved, end)):
            while at < until:
                tokens = read_tokens(folder, old, kept.name, at, min(_BUFFER_BYTES, until - at))
                writer.write(tokens)
                at += len(tokens)
    for shard in old:
        (folder / shard.file).unlink()
    return kept.close()


def read_tokens(folder: Path, shards: list[Shard], dtype: str, start: int, count: int) -> NDArray[Any]:
    """At most `count` tokens from `start` on, as (count,) of the shards' dtype."""
    parts = []
    begin = 0
    for shard in shards:
        first, end = max(start - begin, 0), min(start + count - begin, shard.tokens)
        if first < end:
            offset = first * DTYPES[dtype].itemsize
            parts.append(np.fromfile(folder / shard.file, dtype=DTYPES[dtype], count=end - first, offset=offset))
        begin += shard.tokens
    return np.concatenate(parts) if parts else np.empty(0, dtype=DTYPES[dtype])


def checksum(path: Path) -> int:
    """The CRC-32 of a file's bytes."""
    crc = 0
    with open(path, "rb") as handle:
        while data := handle.read(_BUFFER_BYTES):
            crc = zlib.crc32(data, crc)
    return crc


def check_size(folder: Path, shard: Shard, dtype: str) -> int:
    """The size of the shard's file. Raises LeadlineError where it is missing or not as long as the index says."""
    path = folder / shard.file
    expected = shard.tokens * DTYPES[dtype].itemsize
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise LeadlineError(f"{path} is missing; prepare the data again") from error
    if size != expected:
        fault = "truncated" if size < expected else "too long"
        raise LeadlineError(f"{path} is {fault}: {size} bytes where the index says {expected}; prepare the data again")
    return size


def check_content(folder: Path, shard: Shard, dtype: str, vocab_size: int) -> None:
    """Raises LeadlineError where the shard's checksum is not the index's, or a token is beyond the vocabulary."""
    path = folder / shard.file
    crc, largest = 0, 0
    with open(path, "rb") as handle:
        while data := handle.read(_BUFFER_BYTES):
            crc = zlib.crc32(data, crc)
            largest = max(largest, int(np.frombuffer(data, dtype=DTYPES[dtype]).max()))
    if crc != shard.crc32:
        raise LeadlineError(
            f"{path} is damaged: its checksum is {crc:08x}, the index says {shard.crc32:08x}; prepare the data again"
        )
    if largest >= vocab_size:
        raise LeadlineError(
            f"{path} is damaged: it holds the token {largest}, and the vocabulary has {vocab_size}; "
            "prepare the data again"
        )


class ShardReader:
    """A shard that is open for reading. It is read, not mapped, so that a file cut short meanwhile is an error."""

    def __init__(self, folder: Path, shard: Shard, dtype: str) -> None:
        self.path = folder / shard.file
        self.tokens = shard.tokens
        self._dtype = DTYPES[dtype]
        self._handle = os.open(self.path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)

    def read(self, start: int, count: int) -> NDArray[Any]:
        """At most `count` tokens from `start` on, as (count,) of the shard's dtype.

        Raises:
            LeadlineError: the file has become shorter, or can't be read.
        """
        offset = start * self._dtype.itemsize
        end = min(start + count, self.tokens) * self._dtype.itemsize
        parts = []
        while offset < end:
            try:
                data = os.pread(self._handle, min(end - offset, _READ_BYTES), offset)
            except OSError as error:
                raise LeadlineError(f"{self.path} cannot be read: {error.strerror}") from error
            if not data:
                raise LeadlineError(
                    f"{self.path} was truncated while it was in use: nothing at byte {offset}; prepare the data again"
                )
            parts.append(data)
            offset += len(data)
        return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), dtype=self._dtype)


def _write_all(handle: IO[bytes], data: memoryview) -> None:
    while data:
        written = handle.write(data)
        data = data[written:]
