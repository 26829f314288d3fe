"""A prepared data set: tokens on the disk, the tokenizer they were made with, and counts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.config import from_dict, to_dict
from leadline.data.cache import check_shards
from leadline.data.json_lines import read_json
from leadline.data.shards import DTYPES, NAME, Shard, ShardReader
from leadline.data.tokenizers import FILE, Tokenizer, load_tokenizer
from leadline.errors import LeadlineError, UsageError

INDEX = "index.json"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class SplitIndex:
    """Counts of one split. `bytes` is the text's size in UTF-8, without separators; `tokens` counts them."""

    tokens: int
    documents: int
    bytes: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True, kw_only=True)
class TokenizerIndex:
    """What a data set says of its tokenizer."""

    name: str
    hash: str
    vocab_size: int
    separator: int


@dataclass(frozen=True, kw_only=True)
class Index:
    """The content of `index.json`."""

    format: int
    name: str
    hash: str
    dtype: str
    heldout_rule: str
    tokenizer: TokenizerIndex
    train: SplitIndex
    heldout: SplitIndex

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Those of both splits."""
        return (*self.train.shards, *self.heldout.shards)


def data_hash(index: Index) -> str:
    """Identifies the tokens: dtype, tokenizer, split counts and the shards' checksums."""
    parts = [index.dtype, index.tokenizer.hash, to_dict(index.train), to_dict(index.heldout)]
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


class Split:
    """The training or the validation split: one long row of tokens, read from the disk as they are needed.

    Attributes:
        name: `train` or `heldout`.
        tokens, documents, bytes: counts.
        data_hash: the hash of the data set it belongs to.
    """

    def __init__(self, name: str, folder: Path, index: SplitIndex, dtype: str, data_hash: str) -> None:
        self.name = name
        self.tokens = index.tokens
        self.documents = index.documents
        self.bytes = index.bytes
        self.data_hash = data_hash
        self._reader = ShardReader(folder, index.shards, DTYPES[dtype])

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text per token, separators counted as tokens without bytes."""
        return self.bytes / self.tokens if self.tokens else 0.0

    def windows(self, context: int) -> int:
        """How many windows of `context` predictions the split holds; neighbours share one token.

        Raises:
            UsageError: it is too short for a single one.
        """
        if context < 1:
            raise UsageError(f"context={context} is too small; it can be 1 or more")
        count = (self.tokens - 1) // context
        if count < 1:
            split = "training split" if self.name == "train" else "validation split (held-out)"
            advice = "use a shorter --context or more text"
            if self.name == "heldout":
                advice = "use a shorter --context, or prepare the data with a larger --heldout"
            raise UsageError(
                f"the {split} has {self.tokens} tokens, too short for one sequence: "
                f"context={context} needs {context + 1}; {advice}"
            )
        return int(count)

    def epochs(self, tokens: int, context: int) -> float:
        """How often `tokens` predictions in windows of `context` go through the whole split: 1.0 is once.

        Raises:
            UsageError: it is too short for a single window.
        """
        return tokens / (self.windows(context) * context)

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """Tokens `start` to `start + count`, (count,) int64; they may lie in several shards.

        Raises:
            IndexError: the split has no such tokens.
            LeadlineError: a shard was cut short after it was opened.
        """
        if not 0 <= start <= start + count <= self.tokens:
            raise IndexError(f"tokens {start} to {start + count} of {self.tokens}")
        return self._reader.read(start, count).astype(np.int64)


class DataSet:
    """A folder that `leadline data prepare` wrote.

    Attributes:
        folder, name, hash: where it is, what it is called, what identifies its tokens.
        train, heldout: the two `Split`s.
        tokenizer: the tokenizer that made the tokens.
    """

    def __init__(self, folder: Path, index: Index, tokenizer: Tokenizer) -> None:
        self.folder = folder
        self.index = index
        self.name = index.name
        self.hash = index.hash
        self.tokenizer = tokenizer
        self.train = Split("train", folder, index.train, index.dtype, index.hash)
        self.heldout = Split("heldout", folder, index.heldout, index.dtype, index.hash)

    @property
    def vocab_size(self) -> int:
        """The tokenizer's vocabulary, separator included."""
        return self.index.tokenizer.vocab_size

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = False) -> DataSet:
        """Opens a prepared folder; checks the index, the tokenizer and the shards' checksums.

        Large shards that were checked before and are as they were are not read again, unless `verify` says so.

        Raises:
            UsageError: there is no data set there, or it was written by a later version.
            LeadlineError: the index, a shard or the tokenizer is missing or damaged.
        """
        folder = Path(folder)
        index = read_index(folder)
        if not (folder / FILE).exists():
            raise LeadlineError(f"{folder / FILE} is missing; prepare the data again")
        tokenizer = load_tokenizer(folder)
        said = index.tokenizer
        if tokenizer.hash != said.hash:
            raise LeadlineError(
                f"wrong tokenizer: {folder / FILE} (hash {tokenizer.hash}) is not the one that made these tokens "
                f"(hash {said.hash}); put the right one back or prepare the data again"
            )
        if (said.vocab_size, said.separator) != (tokenizer.vocab_size, tokenizer.separator):
            raise LeadlineError(
                f"{folder / INDEX} is damaged: it says a vocabulary of {said.vocab_size} and the separator "
                f"{said.separator}, and {FILE} has {tokenizer.vocab_size} and {tokenizer.separator}; "
                "prepare the data again"
            )
        check_shards(folder, index.shards, index.dtype, tokenizer.vocab_size, again=verify)
        return cls(folder, index, tokenizer)

    def bytes_per_token(self, split: str = "heldout") -> float:
        """Bytes of text per token of a split."""
        return (self.train if split == "train" else self.heldout).bytes_per_token

    def verify(self) -> None:
        """Reads every shard and compares its checksum. Raises LeadlineError where one is damaged."""
        check_shards(self.folder, self.index.shards, self.index.dtype, self.vocab_size, again=True)

    def require_tokenizer(self, hash: str, owner: str) -> None:
        """Raises UsageError where `owner` (a model) was trained with tokens of another tokenizer."""
        if hash != self.tokenizer.hash:
            raise UsageError(
                f"wrong tokenizer: {owner} was trained with the tokenizer of hash {hash}, "
                f"the data in {self.folder} was made with {self.tokenizer.name} (hash {self.tokenizer.hash}); "
                "prepare the data with the model's tokenizer.json"
            )


def is_dataset(folder: Path) -> bool:
    """Whether a folder has an index that this or another version wrote."""
    try:
        index = read_json(folder / INDEX)
    except (OSError, LeadlineError):
        return False
    return isinstance(index, dict) and {"format", "tokenizer"} <= index.keys()


def read_index(folder: Path) -> Index:
    """The folder's index. Raises as `DataSet.open` does."""
    path = folder / INDEX
    if not folder.exists():
        raise UsageError(f"there is no data set at {folder}; make it with: leadline data prepare INPUT --out {folder}")
    try:
        data: Any = read_json(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{folder} is not a prepared data set (it has no {INDEX}); "
            f"make one with: leadline data prepare {folder} --out DIR"
        ) from error
    version = data.get("format") if isinstance(data, dict) else None
    if version != FORMAT:
        raise UsageError(f"{path} has format {version}; this version of Leadline reads format {FORMAT}")
    try:
        index = from_dict(Index, data, str(path))
    except (UsageError, TypeError) as error:
        raise LeadlineError(f"{path} is damaged: {error}") from error
    if index.dtype not in DTYPES or data_hash(index) != index.hash:
        raise LeadlineError(f"{path} is damaged: its hash is not that of its content; prepare the data again")
    for shard in index.shards:
        if not NAME.fullmatch(shard.file) or shard.tokens < 1:
            raise LeadlineError(
                f"{path} is damaged: it names the file {shard.file!r} with {shard.tokens} tokens, "
                "and a shard is a file such as train-00000.bin in this folder"
            )
    for split in (index.train, index.heldout):
        if split.tokens != sum(shard.tokens for shard in split.shards) or min(split.documents, split.bytes) < 0:
            raise LeadlineError(f"{path} is damaged: its counts don't add up; prepare the data again")
    return index
