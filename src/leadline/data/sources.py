"""Documents from files, as a stream of pieces: memory does not grow with the input."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol

from leadline.data.inputs import CHUNK_BYTES, expand, format_of, is_compressed, named, opened
from leadline.data.json_lines import MAX_RECORD_BYTES, not_utf8, read_lines
from leadline.data.records import Piece, encoded, read_parquet, text_of
from leadline.errors import UsageError

_BLOCK_BYTES = 1 << 14  # at least 4, the longest character
_COMPRESSION = 4


class Corpus(Protocol):
    """Something that yields documents, as often as it is asked, in the same order."""

    @property
    def size(self) -> int | None:
        """About how many bytes `pieces` yields, or None where that is unknown."""

    def pieces(self) -> Iterator[Piece]:
        """The documents' pieces in order."""


class Documents:
    """Documents that a Python function yields as strings; an empty one is skipped.

    Args:
        make: called once per reading; returns the documents.
        size: about how many bytes they have, if known.
        name: what errors call the documents.
    """

    def __init__(self, make: Callable[[], Iterable[str]], *, size: int | None = None, name: str = "documents") -> None:
        self._make = make
        self.size = size
        self.name = name

    def pieces(self) -> Iterator[Piece]:
        """One piece per document."""
        for number, text in enumerate(self._make(), start=1):
            if text:
                yield Piece(encoded(text, f"{self.name}: document {number}"), True, True)


class Files:
    """The documents in text, JSONL and parquet files.

    Args:
        inputs: files, folders (read with everything below them, in the order of their names) or glob patterns.
        field: the field of a JSONL line or the column of a parquet file that holds the text.
        separator: cuts a text file into documents; without it a text file is one document.
        max_record_bytes: the longest JSONL line or parquet value that is read.
        command: the command that has the options which errors name, where it isn't the one that reads.

    Attributes:
        paths: the files, each once.

    Raises:
        UsageError: an input that does not exist, matches nothing, or that this cannot read.
    """

    def __init__(
        self,
        inputs: Sequence[str | Path],
        *,
        field: str = "text",
        separator: str | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
        command: str = "",
    ) -> None:
        if separator == "":
            raise UsageError("--separator is empty; give the text that stands between two documents, or leave it out")
        self.field = field
        self.separator = separator.encode() if separator is not None else None
        self.max_record_bytes = max_record_bytes
        self._command = command
        self.paths, self._skipped = expand(inputs)
        self._seen = _Seen()

    @property
    def size(self) -> int | None:
        """The files' sizes added up; a compressed file counts as four times its size."""
        return sum(p.stat().st_size * (_COMPRESSION if is_compressed(p) else 1) for p in self.paths)

    def pieces(self) -> Iterator[Piece]:
        """The pieces of every file in order.

        Raises:
            LeadlineError: a file that cannot be read or is broken, with its name and the line, row or byte.
        """
        self._seen = seen = _Seen()
        for path in self.paths:
            seen.files += 1
            before = seen.documents
            for piece in self._read(path, seen):
                seen.documents += piece.first
                yield piece
            if seen.documents == before:
                seen.empty.append(path)

    def summary(self) -> list[str]:
        """What the last reading found, a sentence each: files, documents, separators, and what was left out."""
        seen = self._seen
        read = f"{seen.files} files" if seen.files == len(self.paths) else f"{seen.files} of {len(self.paths)} files"
        lines = [f"read {read}, {seen.documents} documents"]
        if self.separator is not None:
            lines.append(f"separator found {seen.separators} times in {seen.texts} text files")
            if seen.whole:
                crlf = seen.crlf and b"\n" in self.separator and b"\r" not in self.separator
                advice = r"; lines end with \r\n there, so write \r\n for a line break" if crlf else ""
                lines.append(f"separator never found in {named(seen.whole)}{advice}")
        if seen.empty:
            lines.append(f"no text in {named(seen.empty)}")
        return lines + [f"skipped {reason}: {named(paths)}" for reason, paths in self._skipped.items() if paths]

    def _read(self, path: Path, seen: _Seen) -> Iterator[Piece]:
        kind = format_of(path)
        if kind == "parquet":
            yield from read_parquet(path, self.field, self.max_record_bytes, self._option)
            return
        with opened(path) as handle:
            if kind == "jsonl":
                yield from self._read_jsonl(handle, path)
                return
            chunks = _read_text(handle, path)
            if self.separator is None:
                yield from _mark_ends(chunks)
                return
            seen.texts += 1
            before = seen.separators
            yield from _split(_watched(chunks, seen), self.separator, seen)
            if seen.separators == before:
                seen.whole.append(path)

    def _read_jsonl(self, handle: IO[bytes], path: Path) -> Iterator[Piece]:
        lines = read_lines(handle, path, limit=self.max_record_bytes, option=self._option("--max-record-bytes"))
        for number, record in lines:
            where = f"{path}, line {number}"
            document = text_of(record, self.field, where, self._option)
            if document:
                yield Piece(encoded(document, where), True, True)

    def _option(self, name: str) -> str:
        return f"{self._command} {name}".strip()


class _Seen:
    """What one reading of files met."""

    def __init__(self) -> None:
        self.files = self.documents = self.texts = self.separators = 0
        self.empty: list[Path] = []
        self.whole: list[Path] = []
        self.crlf = False


def _watched(chunks: Iterator[bytes], seen: _Seen) -> Iterator[bytes]:
    """The chunks; notes whether lines end with a carriage return."""
    for chunk in chunks:
        seen.crlf = seen.crlf or b"\r\n" in chunk
        yield chunk


def _read_text(handle: IO[bytes], path: Path) -> Iterator[bytes]:
    """Chunks of valid UTF-8; a byte order mark at the start is left out."""
    position = 0
    rest = b""
    while True:
        chunk = handle.read(CHUNK_BYTES)
        data = rest + chunk if rest else chunk
        if position == 0 and data.startswith(codecs.BOM_UTF8):
            data = data[len(codecs.BOM_UTF8) :]
            position = len(codecs.BOM_UTF8)
        used = _valid_bytes(data, path, position, final=not chunk)
        if used:
            yield data if used == len(data) else data[:used]
        if not chunk:
            return
        position += used
        rest = data[used:]


def _valid_bytes(data: bytes, path: Path, position: int, final: bool) -> int:
    """How many bytes are whole characters. Mostly ASCII text is passed block by block without decoding it."""
    used = 0
    while used < len(data):
        block = data[used : used + _BLOCK_BYTES]
        if block.isascii():
            used += len(block)
            continue
        at_end = used + len(block) == len(data)
        try:
            _, taken = codecs.utf_8_decode(block, "strict", final and at_end)
        except UnicodeDecodeError as error:
            raise not_utf8(path, position + used + error.start, block[error.start], data[:2]) from error
        used += taken
        if at_end:
            break
    return used


def _mark_ends(chunks: Iterator[bytes]) -> Iterator[Piece]:
    """One document from all chunks; nothing where there is no text."""
    held: bytes | None = None
    first = True
    for chunk in chunks:
        if held is not None:
            yield Piece(held, first, False)
            first = False
        held = chunk
    if held is not None:
        yield Piece(held, first, True)


def _split(chunks: Iterator[bytes], separator: bytes, seen: _Seen) -> Iterator[Piece]:
    """Documents between separators, empty ones left out. A separator may lie across two chunks."""
    rest = b""
    first = True
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(separator)
        seen.separators += len(whole)
        for document in whole:
            if document or not first:
                yield Piece(document, first, True)
            first = True
        keep = len(separator) - 1
        if len(rest) - keep >= CHUNK_BYTES:
            cut = _character_start(rest, len(rest) - keep)
            yield Piece(rest[:cut], first, False)
            first, rest = False, rest[cut:]
    if rest or not first:
        yield Piece(rest, first, True)


def _character_start(data: bytes, index: int) -> int:
    """The start of the character that byte `index` belongs to."""
    while 0 < index < len(data) and data[index] & 0xC0 == 0x80:
        index -= 1
    return index
