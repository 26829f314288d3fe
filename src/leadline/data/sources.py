"""Documents from files, as a stream of pieces: memory does not grow with the input."""

from __future__ import annotations

import codecs
import glob
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

from leadline.errors import LeadlineError, UsageError

CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 14  # at least 4, the longest character
FORMATS = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
READABLE = ".txt, .jsonl, .ndjson, .parquet, .txt.gz, .jsonl.gz, .ndjson.gz"
_PRESSED_GZIP_RATIO = 4


class Piece(NamedTuple):
    """A part of a document, as valid UTF-8 that never cuts a character.

    `first` and `last` say where the piece stands in its document; a short document is one piece with both.
    """

    data: bytes
    first: bool
    last: bool


class Corpus(Protocol):
    """Something that yields documents, as often as it is asked, in the same order."""

    @property
    def size(self) -> int | None:
        """About how many bytes `pieces` yields, or None where that is unknown."""

    def pieces(self) -> Iterator[Piece]:
        """The documents' pieces in order."""


class Documents:
    """Documents that a Python function yields as strings; an empty one is passed by.

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
                yield Piece(_encode(text, f"{self.name}: document {number}"), True, True)


class Files:
    """The documents in text, JSONL and parquet files.

    Args:
        inputs: files, folders (read with everything below them, in the order of their names) or glob patterns.
        field: the field of a JSONL line or the column of a parquet file that holds the text.
        separator: cuts a text file into documents; without it a text file is one document.

    Raises:
        UsageError: an input that does not exist, matches nothing, or that this cannot read.
    """

    def __init__(self, inputs: Sequence[str | Path], *, field: str = "text", separator: str | None = None) -> None:
        if separator == "":
            raise UsageError("--separator is empty; give the text that stands between two documents, or leave it out")
        self.field = field
        self.separator = separator.encode() if separator is not None else None
        self.paths, self.passed_by = expand(inputs)

    @property
    def size(self) -> int | None:
        """The files' sizes added up; a gzip file counts as four times its size."""
        return sum(p.stat().st_size * (_PRESSED_GZIP_RATIO if p.suffix == ".gz" else 1) for p in self.paths)

    def pieces(self) -> Iterator[Piece]:
        """The pieces of every file in order.

        Raises:
            LeadlineError: a file that cannot be read or is broken, with its name and the line or byte.
        """
        for path in self.paths:
            kind = _format(path)
            if kind == "parquet":
                yield from _read_parquet(path, self.field)
                continue
            with _opened(path) as handle:
                if kind == "jsonl":
                    yield from _read_jsonl(handle, path, self.field)
                elif self.separator is None:
                    yield from _mark_ends(_read_text(handle, path))
                else:
                    yield from _split(_read_text(handle, path), self.separator)


def expand(inputs: Sequence[str | Path]) -> tuple[list[Path], int]:
    """The files that `inputs` name, each once, and how many files of other kinds folders and globs held."""
    if not inputs:
        raise UsageError("no input: name at least one file, folder or glob")
    found: dict[Path, None] = {}
    passed_by = 0
    for item in inputs:
        if not str(item).strip():
            raise UsageError("an input is empty; name a file, a folder or a glob, such as . for this folder")
        path = Path(item)
        if path.is_dir():
            names = [Path(folder) / name for folder, _, files in sorted(os.walk(path)) for name in sorted(files)]
            names = [n for n in names if not any(part.startswith(".") for part in n.relative_to(path).parts)]
            where = f"the folder {item}"
        elif path.exists():
            if _format(path) is None:
                raise UsageError(f"{item}: unknown extension {path.suffix!r}; this reads {READABLE}")
            found[path] = None
            continue
        elif glob.has_magic(str(item)):
            names = [Path(name) for name in sorted(glob.glob(str(item), recursive=True)) if Path(name).is_file()]
            if not names:
                raise UsageError(f"no file matches {item}")
            where = str(item)
        else:
            raise UsageError(f"{item} does not exist")
        readable = [name for name in names if _format(name)]
        passed_by += len(names) - len(readable)
        if not readable:
            raise UsageError(f"{where} holds no file that this can read ({READABLE})")
        found.update(dict.fromkeys(readable))
    return list(found), passed_by


def _format(path: Path) -> str | None:
    if path.suffix == ".gz":
        kind = FORMATS.get(Path(path.stem).suffix)
        return kind if kind != "parquet" else None
    return FORMATS.get(path.suffix)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A file opened for reading, unpressed; what goes wrong while it is read becomes a named error."""
    try:
        with open(path, "rb", buffering=CHUNK_BYTES) as raw:
            yield cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise LeadlineError(f"{path} is a broken gzip file: {error}") from error
    except OSError as error:
        raise LeadlineError(f"{path} cannot be read: {error.strerror or error}") from error


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
            raise _not_utf8(path, position + used + error.start, block[error.start], data[:2]) from error
        used += taken
        if at_end:
            break
    return used


def _not_utf8(path: Path, offset: int, byte: int, start: bytes) -> LeadlineError:
    hint = ""
    if offset == 0 and start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        hint = "; it looks like UTF-16, so convert it first"
    return LeadlineError(f"{path} is not UTF-8: byte 0x{byte:02x} at offset {offset}{hint}")


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


def _split(chunks: Iterator[bytes], separator: bytes) -> Iterator[Piece]:
    """Documents between separators, empty ones left out. A separator may lie across two chunks."""
    rest = b""
    first = True
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(separator)
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


def _read_jsonl(handle: IO[bytes], path: Path, field: str) -> Iterator[Piece]:
    offset = 0
    for number, line in enumerate(handle, start=1):
        where = f"{path}, line {number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise _not_utf8(path, offset + error.start, line[error.start], line[:2]) from error
        offset += len(line)
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise LeadlineError(f"{where} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise LeadlineError(f"{where} is {type(record).__name__}, not an object with the field {field!r}")
        document = _field(record, field, where)
        if document:
            yield Piece(_encode(document, where), True, True)


def _field(record: dict[str, Any], field: str, where: str) -> str:
    if field not in record:
        known = ", ".join(sorted(record)[:12]) or "none"
        raise LeadlineError(f"{where} has no field {field!r}; its fields: {known}. Name the text's field with --field")
    value = record[field]
    if not isinstance(value, str):
        raise LeadlineError(f"{where}: the field {field!r} is {type(value).__name__}, not text")
    return value


def _encode(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise LeadlineError(f"{where} is not Unicode text: half a surrogate pair at character {error.start}") from error


def _read_parquet(path: Path, field: str) -> Iterator[Piece]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise LeadlineError(f'{path}: parquet files need pyarrow: pip install "leadline[hf]"') from error
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            names = table.schema_arrow.names
            if field not in names:
                raise UsageError(f"{path} has no column {field!r}; --field can be {', '.join(names)}")
            row = 0
            for batch in table.iter_batches(batch_size=256, columns=[field]):
                for value in batch.column(0).to_pylist():
                    row += 1
                    text = _field({field: value}, field, f"{path}, row {row}")
                    if text:
                        yield Piece(_encode(text, f"{path}, row {row}"), True, True)
    except PermissionError as error:
        raise LeadlineError(f"{path} cannot be read: {error.strerror}") from error
    except (pyarrow.ArrowException, OSError) as error:
        raise LeadlineError(f"{path} is a broken parquet file: {error}") from error
