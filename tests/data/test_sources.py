"""Documents from files: formats, pieces, and what each broken input says."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from leadline.data import Documents, Files
from leadline.data import sources as sources_module
from leadline.errors import LeadlineError, UsageError


def documents(*inputs: str | Path, field: str = "text", separator: str | None = None) -> list[str]:
    found: list[bytes] = []
    open_document: list[bytes] | None = None
    for piece in Files(inputs, field=field, separator=separator).pieces():
        assert piece.first == (open_document is None)
        open_document = [] if open_document is None else open_document
        piece.data.decode()
        open_document.append(piece.data)
        if piece.last:
            found.append(b"".join(open_document))
            open_document = None
    assert open_document is None
    return [d.decode() for d in found]


def jsonl(*records: object) -> bytes:
    return b"".join(json.dumps(r).encode() + b"\n" for r in records)


@pytest.fixture(params=[3, 4, 5, 1 << 20])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sources_module, "CHUNK_BYTES", request.param)
    monkeypatch.setattr(sources_module, "_BLOCK_BYTES", 4)
    return request.param


TEXT = "Grüße, 世界! 🌊 depth\nlead line €\n"


def test_a_text_file_is_one_document_whatever_the_chunks(tmp_path: Path, chunk: int) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    assert documents(tmp_path / "a.txt") == [TEXT]


def test_a_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8-sig")
    assert documents(tmp_path / "a.txt") == [TEXT]
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + jsonl({"text": "x"}))
    assert documents(tmp_path / "a.jsonl") == ["x"]


@pytest.mark.parametrize("separator", ["\n\n", "<|end|>", "€"])
def test_a_separator_cuts_a_text_file(tmp_path: Path, chunk: int, separator: str) -> None:
    parts = ["one two", "", "thrée 🌊", "four" * 7, ""]
    (tmp_path / "a.txt").write_text(separator.join(parts))
    assert documents(tmp_path / "a.txt", separator=separator) == [p for p in parts if p]


def test_a_file_of_separators_has_no_document(tmp_path: Path, chunk: int) -> None:
    (tmp_path / "a.txt").write_text("--" * 9)
    assert documents(tmp_path / "a.txt", separator="--") == []


def test_json_lines_and_gzip(tmp_path: Path) -> None:
    lines = jsonl({"text": "ä", "n": 1}, {"text": ""}) + b"\n" + jsonl({"text": "b"})
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.ndjson").write_bytes(lines)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert documents(tmp_path) == ["ä", "b"] * 3 + [TEXT]


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    table = pyarrow.table({"body": ["ä", "", "b"], "n": [1, 2, 3]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert documents(tmp_path / "a.parquet", field="body") == ["ä", "b"]
    with pytest.raises(UsageError, match="no column 'text'; --field can be body, n"):
        documents(tmp_path / "a.parquet")
    with pytest.raises(LeadlineError, match=r"row 1: the field 'n' is int, not text"):
        documents(tmp_path / "a.parquet", field="n")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(LeadlineError, match=r"b\.parquet is a broken parquet file"):
        documents(tmp_path / "b.parquet")


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(LeadlineError, match=r'pip install "leadline\[hf\]"'):
        documents(tmp_path / "a.parquet")


def test_folders_and_globs_in_order_each_file_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.txt", ".hidden/d.txt", ".e.txt", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    files = Files([str(tmp_path / "*.txt"), tmp_path, tmp_path / "a.txt"])
    assert [p.name for p in files.paths] == ["a.txt", "b.txt", "c.txt"]
    assert files.passed_by == 1
    assert documents(str(tmp_path / "**" / "*.txt")) == ["a.txt", "b.txt", "sub/c.txt"]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("nowhere.txt", "nowhere.txt does not exist"),
        ("*.txt", r"no file matches .*\*\.txt"),
        ("a.pdf", r"a\.pdf: unknown extension '\.pdf'; this reads \.txt, \.jsonl"),
        ("a.parquet.gz", "unknown extension"),
        ("empty", "the folder .* holds no file that this can read"),
        ("*.pdf", "holds no file that this can read"),
    ],
)
def test_an_input_that_names_nothing_readable(tmp_path: Path, item: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.pdf").touch()
    (tmp_path / "a.parquet.gz").touch()
    with pytest.raises(UsageError, match=message):
        Files([str(tmp_path / item)])


def test_no_input_and_an_empty_separator(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no input"):
        Files([])
    with pytest.raises(UsageError, match="--separator is empty"):
        Files([tmp_path], separator="")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"abc\xffdef", r"a\.txt is not UTF-8: byte 0xff at offset 3$"),
        ("ä".encode() * 9 + b"\xe4x", "byte 0xe4 at offset 18$"),
        (b"abc\xe4\xbd", "byte 0xe4 at offset 3$"),
        (b"\xef\xbb\xbfab\xff", "byte 0xff at offset 5$"),
        ("text".encode("utf-16"), "byte 0xff at offset 0; it looks like UTF-16"),
    ],
)
def test_text_that_is_not_utf8_names_the_byte(tmp_path: Path, chunk: int, content: bytes, message: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(LeadlineError, match=message):
        documents(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (jsonl({"text": "a"}) + b"{oops\n", r"a\.jsonl, line 2 is not JSON"),
        (jsonl({"text": "a"}, {"body": "b"}), r"line 2 has no field 'text'; its fields: body\. Name .* with --field"),
        (jsonl({"text": 5}), r"line 1: the field 'text' is int, not text"),
        (jsonl([1, 2]), r"line 1 is list, not an object"),
        (b'{"text": "\\ud800"}\n', "line 1 is not Unicode text: half a surrogate pair at character 0"),
        (jsonl({"text": "a"}) + b'{"text": "\xff"}\n', r"not UTF-8: byte 0xff at offset 24"),
        (b"[" * 100_000, r"line 1 is not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(LeadlineError, match=message):
        documents(tmp_path / "a.jsonl")


@pytest.mark.parametrize("damage", ["cut", "noise", "not gzip"])
def test_a_broken_gzip_file_is_named(tmp_path: Path, damage: str) -> None:
    whole = gzip.compress(bytes(range(32, 127)) * 99)
    broken = {"cut": whole[:-20], "noise": whole[:30] + b"\0" * 20 + whole[50:], "not gzip": b"plain text"}
    (tmp_path / "a.txt.gz").write_bytes(broken[damage])
    with pytest.raises(LeadlineError, match=r"a\.txt\.gz is a broken gzip file"):
        documents(tmp_path / "a.txt.gz")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.txt").write_text("a")
    monkeypatch.setattr(sources_module, "open", refuse, raising=False)
    with pytest.raises(LeadlineError, match=r"a\.txt cannot be read: Permission denied"):
        documents(tmp_path / "a.txt")


def test_documents_from_python_name_what_is_wrong() -> None:
    with pytest.raises(LeadlineError, match="talks: document 2 is not Unicode"):
        list(Documents(lambda: ["a", "\ud800"], name="talks").pieces())
