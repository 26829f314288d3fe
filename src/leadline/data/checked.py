"""Checksums of shards: compared when a data set is opened, and not again for large ones that are as they were.

Files that are together larger than `ALWAYS_BYTES` are remembered in the cache by size and time of change, so that the
next process doesn't read them all again. What changes bytes without the time, as a failing disk, is found by
`leadline data verify`. [ours]
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from leadline.data.cache import cache_folder
from leadline.data.json_lines import read_json
from leadline.data.shards import Shard, check_content, check_size
from leadline.errors import LeadlineError
from leadline.files import write_json

ALWAYS_BYTES = 1 << 27


def check_shards(folder: Path, shards: Sequence[Shard], dtype: str, vocab_size: int, *, again: bool = False) -> None:
    """Compares sizes and checksums with the index.

    Args:
        again: read every byte, whatever is remembered.

    Raises:
        LeadlineError: a shard is missing or damaged; names it.
    """
    sizes = [check_size(folder, shard, dtype) for shard in shards]
    large = sum(sizes) > ALWAYS_BYTES
    state = [_state(folder, shard) for shard in shards]
    memory = cache_folder() / "checked" / f"{hashlib.blake2b(str(folder.resolve()).encode()).hexdigest()[:32]}.json"
    if large and not again and _remembered(memory) == [vocab_size, *state]:
        return
    for shard in shards:
        check_content(folder, shard, dtype, vocab_size)
    if large:
        with suppress(OSError):  # then the next process checks again
            write_json(memory, [vocab_size, *state])


def _state(folder: Path, shard: Shard) -> list[int | str]:
    found = (folder / shard.file).stat()
    return [shard.file, shard.crc32, found.st_size, found.st_mtime_ns, found.st_ino]


def _remembered(memory: Path) -> object:
    try:
        return read_json(memory)
    except (OSError, LeadlineError):
        return None
