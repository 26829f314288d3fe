"""The cache: where prepared data is kept, and which shards were compared with their checksums.

Shards are compared when a data set is opened. Those that are together larger than `ALWAYS_BYTES` are remembered in the
cache by size and time of change, so that the next process doesn't read them all again. What changes bytes without the
time, as a failing disk, is found by `leadline data verify`. [ours]
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from leadline.data.json_lines import read_json
from leadline.data.shards import DTYPES, Shard
from leadline.errors import LeadlineError
from leadline.files import CHUNK, write_json

ALWAYS_BYTES = 1 << 27


class WriteError(LeadlineError):
    """A data set could not be written. `reason` says why, without the folder and the option."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def cache_folder() -> Path:
    """`$LEADLINE_CACHE`, or `leadline` below `$XDG_CACHE_HOME` or `~/.cache`."""
    if own := os.environ.get("LEADLINE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leadline"


def check_shards(folder: Path, shards: Sequence[Shard], dtype: str, vocab_size: int, *, again: bool = False) -> None:
    """Compares sizes and checksums with the index.

    Args:
        again: read every byte, whatever is remembered.

    Raises:
        LeadlineError: a shard is missing or damaged; names it.
    """
    sizes = [check_size(folder, shard, dtype) for shard in shards]
    large = sum(sizes) > ALWAYS_BYTES
    found = [(shard, (folder / shard.file).stat()) for shard in shards]
    state = [[shard.file, shard.crc32, at.st_size, at.st_mtime_ns, at.st_ino] for shard, at in found]
    memory = cache_folder() / "checked" / f"{hashlib.blake2b(str(folder.resolve()).encode()).hexdigest()[:32]}.json"
    if large and not again:
        with suppress(OSError, LeadlineError):  # nothing is remembered
            if read_json(memory) == [vocab_size, *state]:
                return
    for shard in shards:
        check_content(folder, shard, dtype, vocab_size)
    if large:
        with suppress(OSError):  # then the next process checks again
            write_json(memory, [vocab_size, *state])


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
        while data := handle.read(CHUNK):
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
