"""Documents from files: formats, pieces, and what each broken input says."""

from __future__ import annotations

import gzip
import json
import os
import sys
import tracemalloc
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
    monkeypatch.setattr(sources_module, "_TEXT_BYTES", request.param)
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
    list(files.pieces())
    assert files.summary() == [
        "read 3 files, 3 documents",
        "skipped files of an unsupported type: 1 (notes.md)",
        "skipped hidden files and folders: 2 (.e.txt, .hidden)",
    ]
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
        (b"[" * 100_000, r"line 1 is not JSON that can be read: it is nested too deeply"),
        (jsonl({"text": "a"}) + b'{"text": "a", "n": ' + b"9" * 5000 + b"}", "line 2 holds a number with too many"),
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


def compressed(content: bytes) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def test_zstd_and_json_lines_as_they_are_downloaded(tmp_path: Path) -> None:
    lines = jsonl({"text": "ä"}, {"text": "b"})
    (tmp_path / "c4.json.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "dolma.jsonl.zst").write_bytes(compressed(lines) + compressed(lines))
    (tmp_path / "e.json.zst").write_bytes(compressed(lines))
    (tmp_path / "f.txt.ZST").write_bytes(compressed(TEXT.encode()))
    (tmp_path / "config.json").write_text("{}")
    assert documents(tmp_path) == ["ä", "b"] * 4 + [TEXT]
    for content in (compressed(bytes(range(256)) * 999)[:-9], b"nonsense"):
        (tmp_path / "dolma.jsonl.zst").write_bytes(content)
        with pytest.raises(LeadlineError, match=r"dolma\.jsonl\.zst is a broken zstd file"):
            documents(tmp_path / "dolma.jsonl.zst")


def test_zstd_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt.zst").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(LeadlineError, match=r'a\.txt\.zst: \.zst files need pyarrow: pip install "leadline\[hf\]"'):
        documents(tmp_path)


def test_endings_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "A.TXT").write_text("a")
    (tmp_path / "B.Jsonl").write_bytes(jsonl({"text": "b"}))
    (tmp_path / "C.TXT.GZ").write_bytes(gzip.compress(b"c"))
    assert documents(tmp_path) == documents(*sorted(tmp_path.iterdir())) == ["a", "b", "c"]


def test_links_are_followed_and_each_real_file_is_read_once(tmp_path: Path) -> None:
    for name in ("data/a.txt", "elsewhere/b.txt", "elsewhere/deep/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name)
    data = tmp_path / "data"
    (data / "linked").symlink_to(tmp_path / "elsewhere")
    (data / "twice").symlink_to(tmp_path / "elsewhere")
    (data / "zz.txt").symlink_to(data / "a.txt")
    (tmp_path / "elsewhere" / "round").symlink_to(data)
    (data / "gone.txt").symlink_to(tmp_path / "nothing")
    files = Files([data, str(tmp_path / "*" / "*.txt"), tmp_path / "elsewhere"])
    assert [p.read_text() for p in files.paths] == ["data/a.txt", "elsewhere/b.txt", "elsewhere/deep/c.txt"]
    assert any(line.startswith("skipped links and devices: ") and "gone.txt" in line for line in files.summary())


def test_a_folder_that_cannot_be_listed_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.txt").write_text("a")
    scan = os.scandir

    def refuse(path: object) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(LeadlineError, match="closed cannot be read: Permission denied"):
        Files([tmp_path])


def test_what_was_read_and_left_out_is_told(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.pdf").touch()
    (tmp_path / "a.txt").write_text("one--two--three")
    (tmp_path / "b.txt").write_bytes(b"one\r\n\r\ntwo\r\n\r\n" * 9)
    (tmp_path / "c.jsonl").write_bytes(b"\n")
    files = Files([tmp_path], separator="\n\n")
    for _ in range(2):  # BPE reads twice
        assert len([p for p in files.pieces() if p.last]) == 2
        assert files.summary() == [
            "read 3 files, 2 documents",
            "separator found 0 times in 2 text files",
            r"separator never found in 2 (a.txt, b.txt); lines end with \r\n there, so write \r\n for a line break",
            "no text in 1 (c.jsonl)",
            "skipped files of an unsupported type: 8 (0.pdf, 1.pdf, 2.pdf, 3.pdf, 4.pdf, … 3 more)",
        ]
    right = Files([tmp_path], separator="\r\n\r\n")
    assert len([p for p in right.pieces() if p.last]) == 19
    assert "separator found 18 times in 2 text files" in right.summary()
    assert "separator never found in 1 (a.txt)" in right.summary()
    next(files.pieces())
    assert files.summary()[0] == "read 1 of 3 files, 1 documents"


def test_only_a_line_feed_ends_a_line_and_marks_are_left_out(tmp_path: Path) -> None:
    odd = '{"text": "a\u2028b\u2029c\u0085d"}'
    (tmp_path / "a.jsonl").write_bytes(f"\ufeff{odd}\r\n\ufeff{odd}\n\ufeff\n".encode())
    assert documents(tmp_path / "a.jsonl") == ["a\u2028b\u2029c\u0085d"] * 2
    (tmp_path / "a.jsonl").write_bytes(f"{odd}\n{odd}\ufeff{odd}\n".encode())
    with pytest.raises(LeadlineError, match=r"line 2 is not JSON: .*; a byte order mark stands inside the line"):
        documents(tmp_path / "a.jsonl")


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_a_line_that_is_too_long_is_named_before_it_is_read(tmp_path: Path, kind: str) -> None:
    """A few kilobytes of gzip can be a line of gigabytes."""
    content = jsonl({"text": "a"}) + b'{"text": "' + b"b" * 20_000_000 + b'"}\n'
    pack = {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.zst": compressed}[kind]
    (tmp_path / f"a.{kind}").write_bytes(pack(content))
    tracemalloc.start()
    with pytest.raises(
        LeadlineError, match=rf"a\.{kind}, line 2 is longer than 1,000 bytes; --max-record-bytes raises"
    ):
        list(Files([tmp_path], max_record_bytes=1000).pieces())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000
    assert len(list(Files([tmp_path], max_record_bytes=20_000_020).pieces())) == 2


def test_parquet_text_that_is_not_utf8_or_too_long_is_named_by_its_row(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import numpy as np
    import pyarrow.parquet as parquet

    rows = [b"plain text"] * 150 + ["Köln".encode("latin-1")] + [b"more"] * 149
    ends = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    buffers = [None, pyarrow.py_buffer(ends.tobytes()), pyarrow.py_buffer(b"".join(rows))]
    column = pyarrow.Array.from_buffers(pyarrow.string(), len(rows), buffers)
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet", use_dictionary=False)
    with pytest.raises(LeadlineError, match=r"a\.parquet, row 151 is not UTF-8: byte 0xf6 at offset 1$"):
        documents(tmp_path / "a.parquet")
    table = pyarrow.table({"text": pyarrow.array(["ä" * 9, "b" * 5000, None], pyarrow.large_string())})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(LeadlineError, match=r"a\.parquet, row 2 is longer than 100 bytes; --max-record-bytes raises"):
        list(Files([tmp_path], max_record_bytes=100).pieces())
    with pytest.raises(LeadlineError, match=r"a\.parquet, row 3: the field 'text' is NoneType"):
        documents(tmp_path)


def test_errors_name_the_command_that_has_the_options(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl({"body": "a"}))
    with pytest.raises(LeadlineError, match=r"Name the text's field with leadline data prepare --field$"):
        list(Files([tmp_path], command="leadline data prepare").pieces())


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


def test_a_number_of_thousands_of_digits_names_file_and_line(tmp_path: Path) -> None:
    """Python refuses to convert it, in a field that nobody reads too."""
    path = tmp_path / "long.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two", "id": ' + "7" * 5000 + "}\n")
    with pytest.raises(LeadlineError, match=r"long\.jsonl.*line 2.*too many digits"):
        documents(path)
