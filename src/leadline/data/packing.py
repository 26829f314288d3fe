"""Documents to shards: which split a document goes to, the separator after it, and the counts."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leadline.data.dataset import SplitIndex
from leadline.data.shards import Shard, ShardWriter, move_tail, read_tokens
from leadline.data.sources import Corpus, Piece
from leadline.data.tokenizers import ByteTokenizer, Tokenizer, cut
from leadline.errors import LeadlineError

_HASHED_BYTES = 4096
_MOST_MARKS = 8192
_PROGRESS_BYTES = 1 << 24


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """What to hold out: a share of the documents by hash, or the last so many. Zero and None hold out nothing.

    The hash is of a document's first bytes, so copies of a document stay on one side. The first document and its copies
    are never held out by hash, so that there is always something to train on.
    """

    share: float
    last: int | None = None
    seed: int = 0

    def number(self, start: bytes) -> int:
        """A 64-bit hash of the document that starts with these bytes."""
        key = self.seed.to_bytes(8, "little", signed=True)
        return int.from_bytes(hashlib.blake2b(start[:_HASHED_BYTES], key=key, digest_size=8).digest(), "little")

    def chooses(self, number: int) -> bool:
        """Whether a document with this hash belongs to the share that is held out."""
        return number < int(self.share * 2**64)


class Packer:
    """Writes documents, each followed by the separator, to the two splits and counts what it writes."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, dtype: str, shard_tokens: int, rule: HeldOut) -> None:
        self._folder = folder
        self._tokenizer = tokenizer
        self._dtype = dtype
        self._separator = np.array([tokenizer.separator])
        self._rule = rule
        self._writers = {name: ShardWriter(folder, name, dtype, shard_tokens) for name in ("train", "heldout")}
        self._documents = {"train": 0, "heldout": 0}
        self._bytes = {"train": 0, "heldout": 0}
        self._last_starts: deque[_Mark] = deque(maxlen=rule.last or 1)
        self._marks = _Marks()

    def pack(self, corpus: Corpus, limit_tokens: int | None, on_progress: Callable[[int], None] | None) -> None:
        """Writes the whole corpus, or its start until `limit_tokens`, which may end a document early."""
        split = "train"
        reported = 0
        splits: deque[str] = deque()
        pieces = self._choose(corpus.pieces(), splits)
        for piece, tokens in self._tokenizer.encode_stream(pieces if limit_tokens is None else cut(pieces)):
            if piece.first:
                split = splits.popleft()
                self._last_starts.append(self._mark())
            self._marks.add(self._mark())
            self._writers[split].write(tokens)
            self._bytes[split] += len(piece.data)
            full = limit_tokens is not None and sum(w.tokens for w in self._writers.values()) >= limit_tokens
            if piece.last or full:
                self._writers[split].write(self._separator)
                self._documents[split] += 1
            read = sum(self._bytes.values())
            if on_progress is not None and read - reported >= _PROGRESS_BYTES:
                on_progress(read)
                reported = read
            if full:
                break

    def _choose(self, pieces: Iterator[Piece], splits: deque[str]) -> Iterator[Piece]:
        """Appends each document's split before the tokenizer cuts it, so that all choose alike."""
        first: int | None = None
        for piece in pieces:
            if piece.first:
                number = self._rule.number(piece.data)
                first = number if first is None else first
                splits.append("heldout" if number != first and self._rule.chooses(number) else "train")
            yield piece

    def finish(self) -> tuple[SplitIndex, SplitIndex, str]:
        """Closes the shards, moving the end of the text to the held-out part where the rule says so.

        Returns:
            The training split, the held-out split and the rule in words.

        Raises:
            LeadlineError: there is no text, or none is left to train on.
        """
        train = self._writers["train"].close()
        share, last = self._rule.share, self._rule.last
        words = "nothing held out"
        if not sum(self._documents.values()):
            raise LeadlineError("the input is empty: there is no text in it")
        if last is not None:
            if self._documents["train"] <= last:
                raise LeadlineError(
                    f"--heldout-last {last} leaves nothing to train on: there are {self._documents['train']} documents"
                )
            train = self._move(train, self._last_starts[0])
            words = f"the last {last} documents"
        elif share and self._documents["heldout"]:
            words = f"{share:.1%} of the documents, chosen by a hash of their start"
        elif share and (start := self._tail_start(train, share)) is not None:
            train = self._move(train, start)
            words = f"the last {share:.1%} of the text, because there are too few documents to hold whole ones out"
        elif share:
            words = "nothing held out, because the text is too short"
        held = self._writers["heldout"].close()
        return self._index("train", train), self._index("heldout", held), words

    def abandon(self) -> None:
        """Closes open files."""
        for writer in self._writers.values():
            writer.abandon()

    def _mark(self) -> _Mark:
        return self._writers["train"].tokens, self._bytes["train"]

    def _tail_start(self, shards: list[Shard], share: float) -> _Mark | None:
        """Where the last `share` of the tokens begins: between characters, and for BPE between parts."""
        total = self._writers["train"].tokens
        target = total - round(total * share)
        if not isinstance(self._tokenizer, ByteTokenizer):
            return self._marks.nearest(target)
        target = max(min(target, total - 2), 1)
        following = read_tokens(self._folder, shards, self._dtype, target, 4)
        target += int(np.argmax(following & 0xC0 != 0x80))
        separators = self._documents["train"] - self._count_separators(shards, target)
        return (target, target - separators) if target < total - 1 else None

    def _count_separators(self, shards: list[Shard], start: int) -> int:
        step = 1 << 20
        total = self._writers["train"].tokens
        return sum(
            int(np.count_nonzero(read_tokens(self._folder, shards, self._dtype, at, step) == self._tokenizer.separator))
            for at in range(start, total, step)
        )

    def _move(self, shards: list[Shard], mark: _Mark) -> list[Shard]:
        start, start_bytes = mark
        moved = self._count_separators(shards, start)
        inside = int(read_tokens(self._folder, shards, self._dtype, start - 1, 1)[0]) != self._tokenizer.separator
        self._documents = {"train": self._documents["train"] - moved + inside, "heldout": moved}
        self._bytes = {"train": start_bytes, "heldout": self._bytes["train"] - start_bytes}
        return move_tail(self._folder, shards, start, self._writers["heldout"])

    def _index(self, split: str, shards: list[Shard]) -> SplitIndex:
        return SplitIndex(
            tokens=sum(s.tokens for s in shards),
            documents=self._documents[split],
            bytes=self._bytes[split],
            shards=tuple(shards),
        )


_Mark = tuple[int, int]


class _Marks:
    """Places where the training tokens can be cut; thinned as they grow, so that memory stays flat."""

    def __init__(self) -> None:
        self._marks: list[_Mark] = []
        self._every = 1
        self._seen = 0

    def add(self, mark: _Mark) -> None:
        if self._seen % self._every == 0:
            self._marks.append(mark)
            if len(self._marks) == _MOST_MARKS:
                self._marks = self._marks[::2]
                self._every *= 2
        self._seen += 1

    def nearest(self, tokens: int) -> _Mark | None:
        """The mark nearest to `tokens`, other than the start."""
        inner = [m for m in self._marks if m[0] > 0]
        return min(inner, key=lambda m: abs(m[0] - tokens)) if inner else None
