"""The text in a record: a field of a JSONL line, a column of a parquet file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from leadline.data.json_lines import not_utf8, too_long
from leadline.errors import LeadlineError, UsageError, optional

_BATCH_ROWS = 256
_BATCH_BYTES = 1 << 24


class Piece(NamedTuple):
    """A part of a document, as valid UTF-8 that never cuts a character.

    `first` and `last` say where the piece stands in its document; a short document is one piece with both.
    """

    data: bytes
    first: bool
    last: bool


def text_of(record: dict[str, Any], field: str, where: str, option: Callable[[str], str]) -> str:
    """The text in a field. Raises LeadlineError where there is none; `option` says how to name an option."""
    if field not in record:
        known = ", ".join(sorted(record)[:12]) or "none"
        raise LeadlineError(
            f"{where} has no field {field!r}; its fields: {known}. Name the text's field with {option('--field')}"
        )
    value = record[field]
    if not isinstance(value, str):
        raise LeadlineError(f"{where}: the field {field!r} is {type(value).__name__}, not text")
    return value


def encoded(text: str, where: str) -> bytes:
    """The text in UTF-8. Raises LeadlineError where it isn't Unicode."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise LeadlineError(f"{where} is not Unicode text: half a surrogate pair at character {error.start}") from error


def read_parquet(path: Path, field: str, limit: int, option: Callable[[str], str]) -> Iterator[Piece]:
    """The documents in a column, a row each.

    Raises:
        LeadlineError: a row that is too long or no text, with its number; a broken file; no pyarrow.
    """
    pyarrow, parquet = (
        optional(m, f"{path}: parquet files need pyarrow", "hf") for m in ("pyarrow", "pyarrow.parquet")
    )
    try:
        with parquet.ParquetFile(path) as table:
            names = table.schema_arrow.names
            if field not in names:
                raise UsageError(f"{path} has no column {field!r}; {option('--field')} can be {', '.join(names)}")
            row = 0
            for batch in table.iter_batches(batch_size=_rows(table.metadata, field), columns=[field]):
                for value in batch.column(0):
                    row += 1
                    where = f"{path}, row {row}"
                    if isinstance(value, pyarrow.StringScalar | pyarrow.LargeStringScalar) and value.is_valid:
                        data = _checked(value.as_buffer(), where, limit, option("--max-record-bytes"))
                    else:
                        data = encoded(text_of({field: value.as_py()}, field, where, option), where)
                    if data:
                        yield Piece(data, True, True)
    except PermissionError as error:
        raise LeadlineError(f"{path} cannot be read: {error.strerror}") from error
    except (pyarrow.ArrowException, OSError) as error:
        raise LeadlineError(f"{path} is a broken parquet file: {error}") from error


def _rows(metadata: Any, field: str) -> int:
    """How many rows to read at once, so that they are small together unless one alone is large."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    columns = ((group.num_rows, group.column(at)) for group in groups for at in range(group.num_columns))
    means = [
        column.total_uncompressed_size / rows for rows, column in columns if column.path_in_schema == field and rows
    ]
    return max(1, min(_BATCH_ROWS, int(_BATCH_BYTES / max([1.0, *means]))))


def _checked(buffer: Any, where: str, limit: int, option: str) -> bytes:
    """A string's bytes, which Arrow doesn't promise to be UTF-8."""
    if buffer.size > limit:
        raise too_long(where, limit, option)
    data: bytes = buffer.to_pybytes()
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise not_utf8(where, error.start, data[error.start], data[:2]) from error
    return data
