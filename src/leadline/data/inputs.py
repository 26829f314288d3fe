"""Which files are read, and how they are opened."""

from __future__ import annotations

import glob
import gzip
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from leadline.errors import LeadlineError, UsageError

CHUNK_BYTES = 1 << 20
FORMATS = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
COMPRESSED = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
"""Below .gz and .zst; there, C4 and Dolma call JSON lines .json."""
READABLE = ".txt, .jsonl, .ndjson, .parquet; .txt.gz, .jsonl.gz, .ndjson.gz, .json.gz; and .zst for .gz"
UNSUPPORTED, HIDDEN, NO_FILE = "files of an unsupported type", "hidden files and folders", "links and devices"
_NAMED = 5


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
        readable = [name for name in names if format_of(name) and name.is_file()]
        for name in names:
            if name.is_file() and not format_of(name):
                skipped[UNSUPPORTED].append(name)
            elif not name.is_file():
                skipped[NO_FILE].append(name)
        if not readable:
            raise UsageError(f"{where} holds no file that this can read ({READABLE})")
        for name in readable:
            found.setdefault(os.path.realpath(name), name)
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
                yield io.BufferedReader(_zstd(raw, path), CHUNK_BYTES)
            else:
                yield cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if is_compressed(path) else raw
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise LeadlineError(f"{path} is a broken gzip file: {error}") from error
    except OSError as error:
        if zstd and error.errno is None:  # Arrow's
            raise LeadlineError(f"{path} is a broken zstd file: {error}") from error
        raise LeadlineError(f"{path} cannot be read: {error.strerror or error}") from error


def _zstd(raw: IO[bytes], path: Path) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise LeadlineError(f'{path}: .zst files need pyarrow: pip install "leadline[hf]"') from error
    return pyarrow.CompressedInputStream(pyarrow.PythonFile(raw), "zstd")
