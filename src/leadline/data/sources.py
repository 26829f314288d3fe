"""Documents from files, as a stream of pieces: memory does not grow with the input."""

from __future__ import annotations

import codecs
import glob
import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol, cast

from leadline.data.json_lines import MAX_RECORD_BYTES, not_utf8, read_lines
from leadline.data.records import Piece, encoded, read_parquet, text_of
from leadline.errors import LeadlineError, UsageError, optional

CHUNK_BYTES = 1 << 20
FORMATS = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
COMPRESSED = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
"""Below .gz and .zst; there, C4 and Dolma call JSON lines .json."""
READABLE = ".txt, .jsonl, .ndjson, .parquet; .txt.gz, .jsonl.gz, .ndjson.gz, .json.gz; and .zst for .gz"
UNSUPPORTED, HIDDEN, NO_FILE = "files of an unsupported type", "hidden files and folders", "links and devices"
_NAMED = 5
_COMPRESSION = 4
_TEXT_BYTES = 1 << 18


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
            yield from _split(chunks, self.separator, seen)
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


def _read_text(handle: IO[bytes], path: Path) -> Iterator[bytes]:
    """Chunks of valid UTF-8; a byte order mark at the start is left out."""
    position = 0
    rest = b""
    while True:
        chunk = handle.read(_TEXT_BYTES)
        data = rest + chunk
        if position == 0 and data.startswith(codecs.BOM_UTF8):
            data = data[len(codecs.BOM_UTF8) :]
            position = len(codecs.BOM_UTF8)
        try:
            used = codecs.utf_8_decode(data, "strict", not chunk)[1]
        except UnicodeDecodeError as error:
            raise not_utf8(path, position + error.start, data[error.start], data[:2]) from error
        if used:
            yield data[:used]
        if not chunk:
            return
        position += used
        rest = data[used:]


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
        seen.crlf = seen.crlf or b"\r\n" in chunk
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


def expand(inputs: Sequence[str | Path]) -> tuple[list[Path], dict[str, list[Path]]]:
    """The files that `inputs` name, each real file once, and what folders and globs hold beside them, by reason."""
    if not inputs:
        raise UsageError("no input: name at least one file, folder or glob")
    found: dict[str, Path] = {}
    skipped: dict[str, list[Path]] = {UNSUPPORTED: [], HIDDEN: [], NO_FILE: []}
    for item in inputs:
        if not str(item).strip():
            raise UsageError("an input is empty; name a file, a folder or a glob, such as . for this folder")
        path = Path(item)
        if path.is_dir():
            names = _below(path, skipped)
            where = f"the folder {item}"
        elif path.exists():
            if format_of(path) is None:
                raise UsageError(f"{item}: unknown extension {path.suffix!r}; this reads {READABLE}")
            found.setdefault(os.path.realpath(path), path)
            continue
        elif glob.has_magic(str(item)):
            names = [path for name in sorted(glob.glob(str(item), recursive=True)) if not (path := Path(name)).is_dir()]
            if not names:
                raise UsageError(f"no file matches {item}")
            where = str(item)
        else:
            raise UsageError(f"{item} does not exist")
        readable: dict[str, Path] = {}
        for name in names:
            if not name.is_file():
                skipped[NO_FILE].append(name)
            elif not format_of(name):
                skipped[UNSUPPORTED].append(name)
            else:
                readable.setdefault(os.path.realpath(name), name)
        if not readable:
            raise UsageError(f"{where} holds no file that this can read ({READABLE})")
        for real, name in readable.items():
            found.setdefault(real, name)
    return list(found.values()), skipped


def _below(folder: Path, skipped: dict[str, list[Path]]) -> list[Path]:
    """Everything below a folder by name, links to folders too; each real folder once, hidden ones never."""

    def refuse(error: OSError) -> None:
        raise LeadlineError(f"{error.filename} cannot be read: {error.strerror}") from error

    found: list[tuple[str, list[str]]] = []
    seen = {os.path.realpath(folder)}
    for place, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        skipped[HIDDEN] += [Path(place, name) for name in sorted(folders + files) if name.startswith(".")]
        new = {name: os.path.realpath(os.path.join(place, name)) for name in sorted(folders) if name[0] != "."}
        folders[:] = {real: name for name, real in reversed(new.items()) if real not in seen}.values()
        folders.sort()
        seen.update(new.values())
        found.append((place, sorted(name for name in files if not name.startswith("."))))
    return [Path(place, name) for place, names in sorted(found) for name in names]


def named(paths: Sequence[Path]) -> str:
    """How many there are, and the names of the first."""
    more = f", … {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return f"{len(paths)} ({', '.join(path.name for path in paths[:_NAMED])}{more})"


def is_compressed(path: Path) -> bool:
    """Whether the name ends with .gz or .zst."""
    return path.suffix.lower() in (".gz", ".zst")


def format_of(path: Path) -> str | None:
    """`text`, `jsonl` or `parquet` by the name, in capitals or not; None where it is none of them."""
    if is_compressed(path):
        return COMPRESSED.get(Path(path.stem).suffix.lower())
    return FORMATS.get(path.suffix.lower())


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file opened for reading, decompressed; what goes wrong while it is read becomes a named error."""
    zstd = path.suffix.lower() == ".zst"
    try:
        with open(path, "rb", buffering=CHUNK_BYTES) as raw:
            if zstd:
                pyarrow = optional("pyarrow", f"{path}: .zst files need pyarrow", "hf")
                stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(raw), "zstd")
                yield io.BufferedReader(stream, CHUNK_BYTES)
            else:
                yield cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if is_compressed(path) else raw
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise LeadlineError(f"{path} is a broken gzip file: {error}") from error
    except OSError as error:
        if zstd and error.errno is None:  # Arrow's
            raise LeadlineError(f"{path} is a broken zstd file: {error}") from error
        raise LeadlineError(f"{path} cannot be read: {error.strerror or error}") from error
