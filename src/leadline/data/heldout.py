"""Which documents are held out, and what is remembered while they are packed."""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import dataclass
from typing import NamedTuple

HELDOUT_BYTES = 64_000
"""At least so much text is held out, where the text is ten times as long: with less, designs can't be told apart."""
LARGEST_LEAST = 0.1
LARGEST_DOCUMENT = 0.2
"""A document that is a larger share of the text is not held out to reach the least. [ours]"""
_HASHED_BYTES = 4096
_MOST_MARKS = 8192
_SPARE = 8


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """What to hold out: a share of the documents by hash, or the last so many. A share of zero holds out nothing.

    A share holds out at least `least_bytes` of text, or a tenth of the text where that is less.

    The hash is of a document's first bytes, so copies of a document stay on one side. The first document and its copies
    are never held out by hash, so that there is always something to train on.
    """

    share: float
    least_bytes: int = HELDOUT_BYTES
    last: int | None = None
    seed: int = 0

    def least(self, total: int) -> int:
        """The fewest bytes to hold out of a text of `total` bytes."""
        return min(self.least_bytes, int(total * LARGEST_LEAST)) if self.share else 0

    def number(self, start: bytes) -> int:
        """A 64-bit hash of the document that starts with these bytes."""
        key = self.seed.to_bytes(8, "little", signed=True)
        return int.from_bytes(hashlib.blake2b(start[:_HASHED_BYTES], key=key, digest_size=8).digest(), "little")

    def chooses(self, number: int) -> bool:
        """Whether a document with this hash belongs to the share that is held out."""
        return number < int(self.share * 2**64)


class Candidate(NamedTuple):
    """A document for training: its hash, its first token and the one after its last, and its bytes of text."""

    number: int
    start: int
    end: int
    bytes: int


class Candidates:
    """The documents for training with the smallest hashes: enough of them to hold out `needed` bytes.

    Copies of a document have the same hash, and stay or go together. Memory depends on `needed`, not on the text.
    """

    def __init__(self, needed: int) -> None:
        self._needed = needed
        self._groups: dict[int, list[Candidate]] = {}
        self._largest: list[int] = []
        self._below = 1 << 64
        self._bytes = 0

    def add(self, document: Candidate) -> None:
        """Keeps the document while it is among those with the smallest hashes."""
        if document.number >= self._below:
            return
        if document.number not in self._groups:
            self._groups[document.number] = []
            heapq.heappush(self._largest, -document.number)
        self._groups[document.number].append(document)
        self._bytes += self._counted([document])
        while self._bytes - self._counted(self._groups[-self._largest[0]]) >= _SPARE * self._needed:
            self._below = -heapq.heappop(self._largest)
            self._bytes -= self._counted(self._groups.pop(self._below))

    def _counted(self, group: list[Candidate]) -> int:
        """A long document, which may be too large in the end, counts no more than what is needed."""
        return sum(min(document.bytes, self._needed) for document in group)

    def choose(self, needed: int, largest: int) -> list[Candidate]:
        """Documents of `needed` bytes in all, in the text's order; none where there are too few.

        Args:
            largest: a document that has more bytes with its copies is not taken.
        """
        chosen: list[Candidate] = []
        for _, group in sorted(self._groups.items()):
            size = sum(document.bytes for document in group)
            if size <= largest and needed > 0:
                chosen += group
                needed -= size
        return sorted(chosen, key=lambda document: document.start) if needed <= 0 else []


Mark = tuple[int, int]
"""Tokens and bytes of text before a place."""


class Marks:
    """Places where the training tokens can be cut; thinned as they grow, so that memory stays flat."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []
        self._every = 1
        self._seen = 0

    def add(self, mark: Mark) -> None:
        if self._seen % self._every == 0:
            self._marks.append(mark)
            if len(self._marks) == _MOST_MARKS:
                self._marks = self._marks[::2]
                self._every *= 2
        self._seen += 1

    def nearest(self, tokens: int) -> Mark | None:
        """The mark nearest to `tokens`, other than the start."""
        inner = [m for m in self._marks if m[0] > 0]
        return min(inner, key=lambda m: abs(m[0] - tokens)) if inner else None
