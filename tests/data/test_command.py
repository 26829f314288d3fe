"""`leadline data`: options reach the library, and the output says what was written."""

from __future__ import annotations

from pathlib import Path

import pytest
import tyro

from leadline.cli import data as command
from leadline.data import DataSet
from leadline.errors import LeadlineError, UsageError


def leadline_data(*arguments: str | Path) -> int:
    return command.run(tyro.cli(command.Arguments, args=[str(a) for a in arguments], prog="leadline data"))


def test_prepare_and_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\n\ntwo\n\nthree")
    (tmp_path / "in" / "notes.md").write_text("no")
    options = ["--separator", r"\n\n", "--heldout-last", "1", "--dtype", "uint16", "--out", tmp_path / "out"]
    assert leadline_data("prepare", tmp_path / "in", *options) == 0
    printed = capsys.readouterr().out
    dataset = DataSet.open(tmp_path / "out")
    for part in (
        "bytes, vocabulary 256, uint16",
        "training: 8 tokens in 2 documents, 6 bytes of text",
        "held out: 6 tokens in 1 documents, 5 bytes",
        "held-out rule: the last 1 documents",
        "skipped files of an unsupported type: 1 (notes.md)",
        "read 1 files, 3 documents",
        "separator found 2 times in 1 text files",
        "only 5 bytes are held out, less than 64,000: too little",
        f"data hash: {dataset.hash}",
    ):
        assert part in printed
    assert leadline_data("verify", tmp_path / "out") == 0
    assert "2 shards as the index says" in capsys.readouterr().out
    (tmp_path / "out" / "train-00000.bin").write_bytes(b"0" * 16)
    with pytest.raises(LeadlineError, match="damaged"):
        leadline_data("verify", tmp_path / "out")


def test_separators_of_carriage_returns_and_other_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_bytes(b"".join(b"number %d\r\n\r\n" % i for i in range(198)))
    options = ["--separator", r"\r\n\r\n", "--heldout-bytes", "50", "--heldout", "1e-9", "--out", tmp_path / "out"]
    assert leadline_data("prepare", tmp_path / "a.txt", *options) == 0
    printed = capsys.readouterr().out
    assert "separator found 198 times in 1 text files" in printed
    assert "held-out rule: whole documents, chosen by a hash of their start, of 50 bytes" in printed
    assert DataSet.open(tmp_path / "out").heldout.bytes >= 50
    (tmp_path / "a.jsonl").write_text('{"text": "' + "a" * 99 + '"}')
    with pytest.raises(LeadlineError, match="line 1 is longer than 10 bytes; --max-record-bytes raises the limit"):
        leadline_data("prepare", tmp_path / "a.jsonl", "--max-record-bytes", "10", "--out", tmp_path / "more")


def test_a_limit_is_a_count(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words " * 5000)
    assert leadline_data("prepare", tmp_path / "a.txt", "--limit-tokens", "2k", "--out", tmp_path / "out") == 0
    assert DataSet.open(tmp_path / "out").train.tokens < 7000
    with pytest.raises(UsageError, match="--limit-tokens 'many' is not a count"):
        leadline_data("prepare", tmp_path / "a.txt", "--limit-tokens", "many", "--out", tmp_path / "more")
    with pytest.raises(UsageError, match="no input"):
        leadline_data("prepare", "--out", tmp_path / "more")


def test_fetch_names_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown data set 'moby'; known: sotu"):
        leadline_data("fetch", "moby", "--out", tmp_path / "out")


@pytest.mark.parametrize("verb", ["prepare", "fetch", "verify"])
def test_help_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        leadline_data(verb, "--help")
    assert end.value.code == 0
    assert f"Example: leadline data {verb}" in " ".join(capsys.readouterr().out.split())
