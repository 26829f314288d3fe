"""Documents to shards: which split a document goes to, the separator after it, and the counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.data.dataset import SplitIndex
from leadline.data.heldout import LARGEST_DOCUMENT, Candidate, Candidates, HeldOut, Mark, Marks
from leadline.data.records import Piece
from leadline.data.shards import ShardReader, ShardWriter, move_ranges
from leadline.data.sources import Corpus
from leadline.data.tokenizers import ByteTokenizer, Tokenizer, cut
from leadline.errors import LeadlineError

_PROGRESS_BYTES = 1 << 24
_COUNTED = 1 << 20


class Packer:
    """Writes documents, each followed by the separator, to the two splits and counts what it writes."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, dtype: str, shard_tokens: int, rule: HeldOut) -> None:
        self._tokenizer = tokenizer
        self._separator = np.array([tokenizer.separator])
        self._rule = rule
        self._writer = partial(ShardWriter, folder, dtype=dtype, shard_tokens=shard_tokens)
        self._writers = {name: self._writer(split=name) for name in ("train", "heldout")}
        self._documents = {"train": 0, "heldout": 0}
        self._bytes = {"train": 0, "heldout": 0}
        self._last_starts: deque[Mark] = deque(maxlen=rule.last or 1)
        self._marks = Marks()
        self._candidates = Candidates(rule.least_bytes)

    def pack(self, corpus: Corpus, limit_tokens: int | None, on_progress: Callable[[int], None] | None) -> None:
        """Writes the whole corpus, or its start until `limit_tokens`, which may end a document early."""
        split, start = "train", (0, 0)
        number: int | None = None
        reported = 0
        splits: deque[tuple[str, int | None]] = deque()
        pieces = self._choose(corpus.pieces(), splits)
        for piece, tokens in self._tokenizer.encode_stream(pieces if limit_tokens is None else cut(pieces)):
            if piece.first:
                split, number = splits.popleft()
                start = self._mark()
                self._last_starts.append(start)
            self._marks.add(self._mark())
            self._writers[split].write(tokens)
            self._bytes[split] += len(piece.data)
            full = limit_tokens is not None and sum(w.tokens for w in self._writers.values()) >= limit_tokens
            if piece.last or full:
                self._writers[split].write(self._separator)
                self._documents[split] += 1
                if number is not None:
                    tokens_now, bytes_now = self._mark()
                    self._candidates.add(Candidate(number, start[0], tokens_now, bytes_now - start[1]))
            read = sum(self._bytes.values())
            if on_progress is not None and read - reported >= _PROGRESS_BYTES:
                on_progress(read)
                reported = read
            if full:
                break

    def _choose(self, pieces: Iterator[Piece], splits: deque[tuple[str, int | None]]) -> Iterator[Piece]:
        """Appends each document's split before the tokenizer cuts it, so that all choose alike; and its hash where it
        could be held out later."""
        first: int | None = None
        for piece in pieces:
            if piece.first:
                number = self._rule.number(piece.data)
                first = number if first is None else first
                if number != first and self._rule.chooses(number):
                    splits.append(("heldout", None))
                else:
                    splits.append(("train", number if self._rule.share and number != first else None))
            yield piece

    def finish(self) -> tuple[SplitIndex, SplitIndex, str]:
        """Closes the shards, moving the end of the text to the validation split where the rule says so.

        Returns:
            The training split, the held-out split and the rule in words.

        Raises:
            LeadlineError: there is no text, or none is left to train on.
        """
        self._writers["train"].close()
        share, last = self._rule.share, self._rule.last
        words = "nothing held out"
        if not sum(self._documents.values()):
            raise LeadlineError("the input is empty: there is no text in it")
        if last is not None:
            if self._documents["train"] <= last:
                raise LeadlineError(
                    f"--heldout-last {last} leaves nothing to train on: there are {self._documents['train']} documents"
                )
            self._hold_end(self._last_starts[0])
            words = f"the last {last} documents"
        elif share:
            words = self._hold_least()
        return self._index("train"), self._index("heldout"), words

    def _hold_least(self) -> str:
        """Moves documents, or else the end of the text, until enough is held out; the rule in words."""
        held, total = self._bytes["heldout"], sum(self._bytes.values())
        least = self._rule.least(total)
        by_hash = f"{self._rule.share:.1%} of the documents, chosen by a hash of their start"
        if held and held >= least:
            return by_hash
        if chosen := self._candidates.choose(max(1, least - held), int(total * LARGEST_DOCUMENT)):
            ranges = [(document.start, document.end) for document in chosen]
            self._move(ranges, len(chosen), len(chosen), sum(document.bytes for document in chosen))
            return f"whole documents, chosen by a hash of their start, of {least:,} bytes"
        share = max(self._rule.share if not held else 0.0, (least - held) / self._bytes["train"])
        if (start := self._tail_start(share)) is not None:
            self._hold_end(start)
            words = f"the last {share:.1%} of the text, because there are too few documents to hold whole ones out"
            return f"{by_hash}, and {words}" if held else words
        return by_hash if held else "nothing held out, because the text is too short"

    def _hold_end(self, mark: Mark) -> None:
        """Moves the text from a mark on, which may cut a document in two."""
        start, start_bytes = mark
        moved = self._count_separators(start)
        inside = int(self._read(start - 1, 1)[0]) != self._tokenizer.separator
        end = self._writers["train"].tokens
        self._move([(start, end)], moved - inside, moved, self._bytes["train"] - start_bytes)

    def _move(self, ranges: list[tuple[int, int]], fewer: int, more: int, size: int) -> None:
        """Moves ranges of tokens to the validation split: `fewer` documents there, `more` here, `size` bytes."""
        self._documents["train"] -= fewer
        self._documents["heldout"] += more
        self._bytes["train"] -= size
        self._bytes["heldout"] += size
        shards, self._writers["train"] = self._writers["train"].shards, self._writer(split="train")
        move_ranges(shards, ranges, self._writers["train"], self._writers["heldout"])

    def abandon(self) -> None:
        """Closes open files."""
        for writer in self._writers.values():
            writer.abandon()

    def _mark(self) -> Mark:
        return self._writers["train"].tokens, self._bytes["train"]

    def _tail_start(self, share: float) -> Mark | None:
        """Where the last `share` of the tokens begins: between characters, and for BPE between parts."""
        total = self._writers["train"].tokens
        target = total - round(total * share)
        if not isinstance(self._tokenizer, ByteTokenizer):
            return self._marks.nearest(target)
        target = max(min(target, total - 2), 1)
        following = self._read(target, 4)
        target += int(np.argmax(following & 0xC0 != 0x80))
        separators = self._documents["train"] - self._count_separators(target)
        return (target, target - separators) if target < total - 1 else None

    def _count_separators(self, start: int) -> int:
        parts = range(start, self._writers["train"].tokens, _COUNTED)
        return sum(int((self._read(at, _COUNTED) == self._tokenizer.separator).sum()) for at in parts)

    def _read(self, start: int, count: int) -> NDArray[Any]:
        train = self._writers["train"]
        return ShardReader(train.folder, train.shards, train.dtype).read(start, count)

    def _index(self, split: str) -> SplitIndex:
        shards = tuple(self._writers[split].close())
        tokens = sum(shard.tokens for shard in shards)
        return SplitIndex(tokens=tokens, documents=self._documents[split], bytes=self._bytes[split], shards=shards)
