"""Opening prepared folders: what is checked, and what each damage is called."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from leadline.config import from_dict
from leadline.data import DataSet, Documents, prepare_corpus
from leadline.data import cache as cache_module
from leadline.data.dataset import Index, data_hash
from leadline.errors import LeadlineError, UsageError

TEXTS = [f"document {i} " * (i + 1) for i in range(60)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "out"
    prepare_corpus(Documents(lambda: TEXTS), out, "bpe:280", heldout_last=5, shard_tokens=500)
    return out


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    shutil.copytree(prepared, tmp_path / "copy")
    return tmp_path / "copy"


def edit(path: Path, change: Callable[[dict], None]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_reads_go_across_shards(prepared: Path) -> None:
    train = DataSet.open(prepared, verify=True).train
    whole = np.concatenate([np.fromfile(f, dtype="<u2") for f in sorted(prepared.glob("train-*.bin"))])
    assert len(whole) == train.tokens > 2000
    for start, count in ((0, train.tokens), (499, 2), (500, 500), (250, 1300), (train.tokens, 0), (7, 0)):
        read = train.read(start, count)
        assert read.dtype == np.int64
        assert np.array_equal(read, whole[start : start + count])
    for start, count in ((-1, 2), (0, train.tokens + 1), (5, -1)):
        with pytest.raises(IndexError):
            train.read(start, count)


def test_the_text_comes_back_and_the_index_is_plain_json(prepared: Path) -> None:
    dataset = DataSet.open(prepared)
    assert dataset.tokenizer.decode(dataset.heldout.read(0, dataset.heldout.tokens)) == "".join(TEXTS[-5:])
    index = json.loads((prepared / "index.json").read_text())
    assert index["format"] == 1
    assert index["tokenizer"]["vocab_size"] == dataset.vocab_size == 280
    assert set(index["train"]) == {"tokens", "documents", "bytes", "shards"}
    assert dataset.bytes_per_token() == dataset.heldout.bytes / dataset.heldout.tokens


@pytest.mark.parametrize("name", ["train-00001.bin", "heldout-00000.bin"])
def test_a_truncated_shard(folder: Path, name: str) -> None:
    shard = folder / name
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(LeadlineError, match=rf"{name} is truncated: \d+ bytes where the index says \d+"):
        DataSet.open(folder)
    shard.write_bytes(shard.read_bytes() + b"1234")
    with pytest.raises(LeadlineError, match=f"{name} is too long"):
        DataSet.open(folder)
    shard.unlink()
    with pytest.raises(LeadlineError, match=f"{name} is missing"):
        DataSet.open(folder)


def test_a_changed_byte_is_found_by_its_checksum(folder: Path) -> None:
    shard = folder / "train-00001.bin"
    data = bytearray(shard.read_bytes())
    data[17] ^= 1
    shard.write_bytes(data)
    for verify in (False, True):
        with pytest.raises(LeadlineError, match=r"train-00001\.bin is damaged: its checksum is"):
            DataSet.open(folder, verify=verify)


def rehash(index: dict) -> None:
    """Makes the index's hash that of its content, as whoever forges one would."""
    index["hash"] = data_hash(from_dict(Index, index))


@pytest.mark.parametrize("name", ["../other.bin", "/train-00000.bin", "train-0.bin", "tokenizer.json", "a/b.bin"])
def test_a_shard_is_a_file_of_the_folder(folder: Path, name: str) -> None:
    shutil.copy(folder / "train-00000.bin", folder.parent / "other.bin")
    edit(folder / "index.json", lambda index: (index["train"]["shards"][0].update(file=name), rehash(index)))
    with pytest.raises(LeadlineError, match=rf"index\.json is damaged: it names the file '{name}'"):
        DataSet.open(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i["tokenizer"].update(vocab_size=10), "a vocabulary of 10 .* and tokenizer.json has 280"),
        (lambda i: i["tokenizer"].update(separator=5), "the separator 5, and"),
        (lambda i: i["train"].update(tokens=9), "its counts don't add up"),
        (lambda i: i["heldout"].update(bytes=-9), "its counts don't add up"),
        (lambda i: i["train"]["shards"][0].update(tokens=-1), "with -1 tokens"),
    ],
)
def test_an_index_that_does_not_fit(folder: Path, change: Callable[[dict], None], message: str) -> None:
    edit(folder / "index.json", lambda index: (change(index), rehash(index)))
    with pytest.raises(LeadlineError, match=message):
        DataSet.open(folder)


def test_a_token_beyond_the_vocabulary(folder: Path) -> None:
    shard = folder / "heldout-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-2] + (999).to_bytes(2, "little"))
    crc = zlib.crc32(shard.read_bytes())
    edit(folder / "index.json", lambda index: (index["heldout"]["shards"][0].update(crc32=crc), rehash(index)))
    with pytest.raises(LeadlineError, match=r"heldout-00000\.bin is damaged: it holds the token 999, .* has 280"):
        DataSet.open(folder)


def test_a_shard_that_is_cut_short_while_it_is_read(folder: Path) -> None:
    """A memory map would end the process without a word."""
    train = DataSet.open(folder).train
    os.truncate(folder / "train-00001.bin", 100)
    train.read(0, 550)
    with pytest.raises(LeadlineError, match=r"train-00001\.bin was truncated while it was in use: nothing at byte 100"):
        train.read(0, 551)


def test_a_large_set_is_checked_once_and_again_when_it_changed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEADLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_module, "ALWAYS_BYTES", 10)
    read: list[str] = []
    check = cache_module.check_content
    monkeypatch.setattr(cache_module, "check_content", lambda f, s, *more: (read.append(s.file), check(f, s, *more)))
    index = DataSet.open(folder).index
    shards = len(index.train.shards) + len(index.heldout.shards)
    assert len(read) == shards
    DataSet.open(folder)
    assert len(read) == shards
    DataSet.open(folder, verify=True)
    assert len(read) == 2 * shards
    shard = folder / "train-00001.bin"
    data = bytearray(shard.read_bytes())
    data[17] ^= 1
    shard.write_bytes(data)
    with pytest.raises(LeadlineError, match="is damaged"):
        DataSet.open(folder)
    (tmp_path / "file").touch()
    monkeypatch.setenv("LEADLINE_CACHE", str(tmp_path / "file"))
    data[17] ^= 1
    shard.write_bytes(data)
    DataSet.open(folder)


def test_epochs(prepared: Path) -> None:
    train = DataSet.open(prepared).train
    windows = train.windows(100)
    assert train.epochs(windows * 100, 100) == 1.0
    assert train.epochs(windows * 250, 100) == 2.5


def test_the_wrong_tokenizer(folder: Path, tmp_path: Path) -> None:
    other = prepare_corpus(Documents(lambda: TEXTS), tmp_path / "other", "bpe:270").open()
    with pytest.raises(UsageError, match=r"wrong tokenizer: runs/a was trained with .* model's tokenizer\.json"):
        DataSet.open(folder).require_tokenizer(other.tokenizer.hash, "runs/a")
    DataSet.open(folder).require_tokenizer(DataSet.open(folder).tokenizer.hash, "runs/a")
    shutil.copy(tmp_path / "other" / "tokenizer.json", folder)
    with pytest.raises(LeadlineError, match=r"wrong tokenizer: .* is not the one that made these tokens"):
        DataSet.open(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(LeadlineError, match=r"tokenizer\.json is missing"):
        DataSet.open(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i["train"].update(tokens=9), "its hash is not that of its content"),
        (lambda i: i.update(hash="0"), "its hash is not that of its content"),
        (lambda i: i.update(dtype="uint64"), "its hash is not that of its content"),
        (lambda i: i.pop("train"), r"index\.json is damaged"),
        (lambda i: i.update(extra=1), "is damaged: .*unknown key 'extra'"),
        (lambda i: i["heldout"].update(shards=5), "is damaged: .*should be a list"),
        (lambda i: i.update(format=2), "has format 2; this version of Leadline reads format 1"),
    ],
)
def test_a_damaged_index(folder: Path, change: Callable[[dict], None], message: str) -> None:
    edit(folder / "index.json", change)
    with pytest.raises(LeadlineError, match=message):
        DataSet.open(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"tokenizer"', "[" * 99_999, "9" * 5000])
def test_an_index_that_is_none(folder: Path, content: str) -> None:
    (folder / "index.json").write_text(content)
    with pytest.raises(LeadlineError, match=r"index\.json"):
        DataSet.open(folder)


def test_folders_that_hold_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no data set at .*nowhere; make it with: leadline data prepare INPUT --out"):
        DataSet.open(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"is not a prepared data set \(it has no index.json\)"):
        DataSet.open(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(UsageError, match="is not a prepared data set"):
        DataSet.open(tmp_path / "a.txt")
