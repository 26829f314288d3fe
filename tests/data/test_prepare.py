"""From files to a data set's folder: packing, the validation split, whole or not at all, flat memory."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from leadline.data import DataSet, Documents, prepare, prepare_corpus
from leadline.data import heldout as heldout_module
from leadline.data import packing as packing_module
from leadline.data.shards import ShardWriter, choose_dtype
from leadline.data.tokenizers import train_bpe
from leadline.errors import LeadlineError, UsageError

STORIES = [f"Story {i}: the lead line goes down {i * 7 % 11} fathoms. Grüße €{i}\n" * (1 + i % 5) for i in range(400)]


@pytest.fixture
def stories(tmp_path: Path) -> Path:
    path = tmp_path / "stories.jsonl"
    path.write_text("".join(json.dumps({"text": s}) + "\n" for s in STORIES))
    return path


def texts(dataset: DataSet, split: str) -> list[str]:
    part = dataset.train if split == "train" else dataset.heldout
    tokens = part.read(0, part.tokens)
    ends = np.flatnonzero(tokens == dataset.tokenizer.separator)
    starts = np.concatenate([[0], ends + 1])
    return [dataset.tokenizer.decode(tokens[a:b]) for a, b in zip(starts[:-1], ends, strict=True)]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_every_document_is_on_one_side_and_comes_back(stories: Path, tmp_path: Path, tokenizer: str) -> None:
    dataset = prepare(stories, tmp_path / "out", tokenizer, heldout=0.1, shard_tokens=1000).open()
    train, heldout = texts(dataset, "train"), texts(dataset, "heldout")
    assert sorted(train + heldout) == sorted(STORIES)
    assert [s for s in STORIES if s in set(train)] == train
    assert 15 <= len(heldout) <= 70
    for split, found in ((dataset.train, train), (dataset.heldout, heldout)):
        assert (split.documents, split.bytes) == (len(found), sum(len(t.encode()) for t in found))
    assert dataset.bytes_per_token("train") == dataset.train.bytes / dataset.train.tokens
    assert len(dataset.index.train.shards) == -(-dataset.train.tokens // 1000)
    assert dataset.index.dtype == ("uint8" if tokenizer == "bytes" else "uint16")


def test_the_choice_is_the_tokenizers_and_the_orders_business_not(stories: Path, tmp_path: Path) -> None:
    bytes_ = prepare(stories, tmp_path / "a", heldout=0.1).open()
    bpe = prepare(stories, tmp_path / "b", "bpe:300", heldout=0.1).open()
    assert texts(bytes_, "heldout") == texts(bpe, "heldout")
    backwards = prepare_corpus(Documents(lambda: STORIES[::-1]), tmp_path / "c", heldout=0.1).open()
    assert sorted(texts(backwards, "heldout")) == sorted(texts(bytes_, "heldout"))
    other = prepare(stories, tmp_path / "d", heldout=0.1, seed=-1).open()
    assert texts(other, "heldout") != texts(bytes_, "heldout")


def test_the_same_input_gives_the_same_hash(stories: Path, tmp_path: Path) -> None:
    first = prepare(stories, tmp_path / "a", "bpe:280")
    again = prepare(stories, tmp_path / "b", "bpe:280")
    assert first.index.hash == again.index.hash
    assert first.index.name == "a"
    assert prepare(stories, tmp_path / "c", "bpe:281").index.hash != first.index.hash


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
@pytest.mark.parametrize("shard_tokens", [997, 1 << 20])
def test_the_last_documents_can_be_held_out(stories: Path, tmp_path: Path, tokenizer: str, shard_tokens: int) -> None:
    dataset = prepare(stories, tmp_path / "out", tokenizer, heldout_last=7, shard_tokens=shard_tokens).open()
    assert texts(dataset, "heldout") == STORIES[-7:]
    assert texts(dataset, "train") == STORIES[:-7]
    assert dataset.train.bytes == sum(len(s.encode()) for s in STORIES[:-7])
    assert (dataset.train.documents, dataset.heldout.documents) == (393, 7)
    assert dataset.index.heldout_rule == "the last 7 documents"
    dataset.verify()


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
@pytest.mark.parametrize("share", [0.02, 0.25, 0.9])
def test_one_long_document_gives_its_end(tmp_path: Path, tokenizer: str, share: float) -> None:
    text = "".join(STORIES) * 3
    (tmp_path / "a.txt").write_text(text)
    options = {"heldout": share, "heldout_bytes": 1, "shard_tokens": 30_000}
    dataset = prepare(tmp_path / "a.txt", tmp_path / "out", tokenizer, **options).open()
    parts = [dataset.tokenizer.decode(s.read(0, s.tokens)) for s in (dataset.train, dataset.heldout)]
    assert "".join(parts) == text
    assert [s.bytes for s in (dataset.train, dataset.heldout)] == [len(p.encode()) for p in parts]
    assert abs(len(parts[1]) / len(text) - share) < (0.001 if tokenizer == "bytes" else 0.03)
    assert (dataset.train.documents, dataset.heldout.documents) == (1, 1)
    assert "too few documents" in dataset.index.heldout_rule
    dataset.verify()


def _held(tmp_path: Path, documents: list[str], **options: object) -> tuple[DataSet, list[str], list[str]]:
    """The data set of these documents, and those of either split; every one of them is in one."""
    prepared = prepare_corpus(Documents(lambda: documents), tmp_path / "held", existing="replace", **options)
    dataset = prepared.open()
    dataset.verify()
    train, heldout = texts(dataset, "train"), texts(dataset, "heldout")
    assert sorted(train + heldout) == sorted(documents)
    for split, found in ((dataset.train, train), (dataset.heldout, heldout)):
        assert (split.documents, split.bytes) == (len(found), sum(len(t.encode()) for t in found))
    return dataset, train, heldout


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_enough_bytes_are_held_out_in_whole_documents(tmp_path: Path, tokenizer: str) -> None:
    """Fifteen long documents and many short ones: two in a hundred of the documents may be next to nothing."""
    long = ["".join(STORIES[i : i + 40]) * 2 for i in range(0, 300, 20)]
    documents = [*long, *STORIES]
    total = sum(len(d.encode()) for d in documents)
    for seed in range(6):
        dataset, train, heldout = _held(tmp_path, documents, tokenizer=tokenizer, seed=seed, shard_tokens=20_000)
        assert total / 10 - 1 <= dataset.heldout.bytes <= 0.3 * total
        assert not set(train) & set(heldout), "copies stay on one side"
        assert [d for d in documents if d in set(train)] == train


def test_the_least_is_in_bytes_and_a_tenth_of_a_short_text(tmp_path: Path) -> None:
    documents = [f"{i} " * 500 for i in range(2000)]
    total = sum(map(len, documents))
    assert total > 1_000_000
    options = {"heldout": 1e-6}
    for wanted in (64_000, 3000, 10**6):
        dataset, _, heldout = _held(tmp_path, documents, heldout_bytes=wanted, **options)
        assert 0 <= dataset.heldout.bytes - min(wanted, total // 10) <= max(map(len, heldout))
        rule = dataset.index.heldout_rule
        assert rule == f"whole documents, chosen by a hash of their start, of {min(wanted, total // 10):,} bytes"
    notes = prepare_corpus(Documents(lambda: documents), tmp_path / "x", heldout_bytes=10**6).notes
    assert any("bytes are held out, less than 1,000,000: too little to tell" in note for note in notes)
    assert prepare_corpus(Documents(lambda: documents), tmp_path / "y").notes == ()


def test_what_a_hash_holds_out_in_plenty_is_left_as_it_is(tmp_path: Path) -> None:
    """So the hash of data that was prepared before does not change."""
    documents = [f"{i} " * 500 for i in range(2000)]
    one, _, heldout = _held(tmp_path, documents, heldout=0.1)
    rule = heldout_module.HeldOut(share=0.1)
    assert heldout == [d for d in documents[1:] if rule.chooses(rule.number(d.encode()))]
    assert one.index.heldout_rule == "10.0% of the documents, chosen by a hash of their start"
    assert one.hash == _held(tmp_path, documents, heldout=0.1, heldout_bytes=1)[0].hash


def test_copies_of_a_document_are_moved_together(tmp_path: Path) -> None:
    documents = ["first " * 300, *(f"{i % 40} " * 200 for i in range(400))]
    for seed in range(5):
        _, train, heldout = _held(tmp_path, documents, heldout=1e-9, seed=seed)
        assert heldout
        assert not set(train) & set(heldout)
        assert len(heldout) % 10 == 0


def test_a_large_document_is_not_held_out_to_reach_the_least(tmp_path: Path) -> None:
    """The end of the text is, where no other documents are enough."""
    documents = ["a" * 1000, "b" * 90_000, "c" * 1000, "d" * 90_000]
    prepared = prepare_corpus(Documents(lambda: documents), tmp_path / "out")
    index = prepared.index
    assert index.heldout.bytes == pytest.approx(18_200, abs=2)
    assert (index.train.documents, index.heldout.documents) == (4, 1)
    assert "the last 10.0% of the text, because there are too few documents" in index.heldout_rule
    assert index.train.bytes + index.heldout.bytes == 182_000
    prepared.open().verify()


def test_the_end_is_added_to_what_a_hash_chose(tmp_path: Path) -> None:
    rule = heldout_module.HeldOut(share=0.5)
    small = next(s for s in STORIES if rule.chooses(rule.number(s.encode())))
    large = [c * 90_000 for c in "abcdefgh" if not rule.chooses(rule.number(c.encode() * 4096))][:3]
    index = prepare_corpus(Documents(lambda: [large[0], small, *large[1:]]), tmp_path / "out", heldout=0.5).index
    total = sum(len(d.encode()) for d in [small, *large])
    assert index.heldout.bytes == pytest.approx(total / 10, abs=2)
    assert (index.train.documents, index.heldout.documents) == (3, 2)
    assert index.train.bytes + index.heldout.bytes == total


def test_candidates_stay_few(tmp_path: Path) -> None:
    """What is remembered depends on what is needed, and is what the smallest hashes name."""
    pool = heldout_module.Candidates(1000)
    numbers = [i * 0x9E3779B97F4A7C15 % 2**64 for i in range(1, 20_001)]
    for at, number in enumerate(numbers):
        pool.add(heldout_module.Candidate(number, at, at + 1, 100))
    assert len(pool._groups) == 80
    assert [d.number for d in sorted(pool.choose(1000, 100))] == sorted(numbers)[:10]
    assert pool.choose(10**6, 100) == pool.choose(1000, 99) == []


def test_a_tail_never_cuts_a_character(tmp_path: Path) -> None:
    for length in range(2, 30):
        dataset = prepare_corpus(Documents(lambda n=length: ["🌊" * n]), tmp_path / str(length), heldout=0.3).open()
        assert dataset.train.bytes % 4 == 0
        assert dataset.heldout.bytes % 4 == 0
        assert dataset.train.bytes + dataset.heldout.bytes == 4 * length


def test_nothing_held_out(stories: Path, tmp_path: Path) -> None:
    index = prepare(stories, tmp_path / "a", heldout=0.0).index
    assert (index.heldout.tokens, index.heldout.shards, index.heldout_rule) == (0, (), "nothing held out")
    short = prepare_corpus(Documents(lambda: ["ab"]), tmp_path / "b", "bytes").index
    assert short.train.tokens + short.heldout.tokens == 3


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_a_limit_stops_early_even_inside_a_document(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "a.txt").write_text("".join(STORIES) * 20)
    dataset = prepare(tmp_path / "a.txt", tmp_path / "out", tokenizer, limit_tokens=20_000).open()
    assert 20_000 <= dataset.train.tokens + dataset.heldout.tokens <= 25_000


def test_a_vocabulary_chooses_the_dtype() -> None:
    assert [choose_dtype(n) for n in (256, 257, 65_536, 65_537)] == ["uint8", "uint16", "uint16", "uint32"]
    assert choose_dtype(256, "uint32") == "uint32"
    with pytest.raises(UsageError, match="--dtype uint8 cannot hold a vocabulary of 257; it can be uint16, uint32"):
        choose_dtype(257, "uint8")
    with pytest.raises(UsageError, match="--dtype int8 is unknown"):
        choose_dtype(256, "int8")
    with pytest.raises(UsageError, match="does not fit into any"):
        choose_dtype(2**32 + 1)


def test_wide_tokens_are_little_endian(stories: Path, tmp_path: Path) -> None:
    dataset = prepare(stories, tmp_path / "out", "bpe:300", dtype="uint32").open()
    raw = (tmp_path / "out" / "train-00000.bin").read_bytes()
    assert int.from_bytes(raw[:4], "little") == dataset.train.read(0, 1)[0]


def _listing(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the input is empty"),
        (b'{"text": ""}\n', "the input is empty"),
        (b'{"text": "a"}\n{"text": 1}\n', "line 2: the field"),
        (b'{"text": "a"}\n\xff', "is not UTF-8"),
    ],
)
def test_broken_input_leaves_nothing(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(LeadlineError, match=message):
        prepare(tmp_path / "a.jsonl", tmp_path / "out")
    assert _listing(tmp_path) == ["a.jsonl"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heldout": 1.0}, r"--heldout 1\.0 is wrong; it is a share from 0"),
        ({"heldout": float("nan")}, "--heldout nan is wrong"),
        ({"heldout_last": 0}, "--heldout-last 0 is too small"),
        ({"heldout_last": 400}, "--heldout-last 400 leaves nothing to train on: there are 400 documents"),
        ({"heldout_bytes": 0}, "--heldout-bytes 0 is too small"),
        ({"max_record_bytes": 0}, "--max-record-bytes 0 is too small"),
        ({"limit_tokens": 0}, "--limit-tokens 0 is too small"),
        ({"shard_tokens": 0}, "--shard-tokens 0 is too small"),
        ({"tokenizer": "bpe:many"}, r"--tokenizer bpe:many is wrong; .* bpe:2048"),
        ({"tokenizer": "byte"}, "it can be bytes, bpe:2048 or a tokenizer.json"),
        ({"tokenizer": "bpe:300", "dtype": "uint8"}, "--dtype uint8 cannot hold"),
    ],
)
def test_wrong_options_leave_nothing(stories: Path, tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(LeadlineError, match=message):
        prepare(stories, tmp_path / "out", **options)
    assert _listing(tmp_path) == ["stories.jsonl"]


def test_the_first_document_and_its_copies_are_for_training(tmp_path: Path) -> None:
    rule = heldout_module.HeldOut(share=0.5)
    first, second = [s for s in STORIES if rule.chooses(rule.number(s.encode()))][:2]
    dataset = prepare_corpus(Documents(lambda: [first, second, first]), tmp_path / "out", heldout=0.5).open()
    assert (texts(dataset, "train"), texts(dataset, "heldout")) == ([first, first], [second])


def test_a_data_set_is_replaced_only_when_asked(stories: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    first = prepare(stories, out).index
    with pytest.raises(UsageError, match="already holds a data set; name another folder or add --overwrite"):
        prepare(stories, out)
    second = prepare(stories, out, heldout_last=3, overwrite=True).index
    assert DataSet.open(out, verify=True).hash == second.hash != first.hash
    assert _listing(tmp_path) == ["out", "stories.jsonl"]


def test_what_is_no_data_set_is_never_replaced(stories: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not empty and not a data set; name another folder"):
        prepare(stories, tmp_path, overwrite=True)
    with pytest.raises(UsageError, match="is a file; name a folder"):
        prepare(stories, stories, overwrite=True)
    assert _listing(tmp_path) == ["stories.jsonl"]


def test_the_current_folder_can_be_the_output(stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert prepare(stories, ".").index.name == "here"
    assert DataSet.open(tmp_path / "here").train.tokens > 0


def _failing_write(error: BaseException, after: int) -> Callable[..., None]:
    calls = iter(range(after))
    original = ShardWriter.write

    def write(self: ShardWriter, tokens: np.ndarray) -> None:
        if next(calls, None) is None:
            raise error
        original(self, tokens)

    return write


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), LeadlineError, "the disk is full: .*out was not written"),
        (OSError(errno.EACCES, os.strerror(errno.EACCES)), LeadlineError, "cannot be written: Permission denied"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), LeadlineError, "cannot be written: Read-only"),
        (OSError(errno.EIO, os.strerror(errno.EIO)), LeadlineError, "could not be written"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
@pytest.mark.parametrize("there", [False, True])
def test_an_interruption_leaves_what_was_there(
    stories: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    raised: type[BaseException],
    message: str | None,
    there: bool,
) -> None:
    out = tmp_path / "out"
    if there:
        prepare(stories, out, heldout_last=5)
    monkeypatch.setattr(ShardWriter, "write", _failing_write(error, after=300))
    with pytest.raises(raised, match=message):
        prepare(stories, out, overwrite=True, shard_tokens=1000)
    assert _listing(tmp_path) == (["out", "stories.jsonl"] if there else ["stories.jsonl"])
    if there:
        assert DataSet.open(out, verify=True).index.heldout_rule == "the last 5 documents"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_really_full_disk(stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leadline.data import shards

    def to_full(path: Path, mode: str, buffering: int) -> object:
        return open("/dev/full", mode, buffering=buffering)

    monkeypatch.setattr(shards, "open", to_full, raising=False)
    with pytest.raises(LeadlineError, match="the disk is full"):
        prepare(stories, tmp_path / "out")
    assert _listing(tmp_path) == ["stories.jsonl"]


def test_what_a_killed_process_left_is_removed_by_the_next_run(stories: Path, tmp_path: Path) -> None:
    """But not what another process still writes, nor what belongs to other data."""
    code = (
        "import sys, time; from pathlib import Path; from leadline.data.prepare import new_folder\n"
        "with new_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'x').touch(); print(folder, flush=True); time.sleep(600)"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path / name], stdout=subprocess.PIPE, text=True)
        for name in ("out", "out", "other")
    ]
    try:
        folders = [Path(process.stdout.readline().strip()) for process in running]
        for process in running[1:]:
            process.kill()
            process.wait()
        assert all(folder.is_dir() for folder in folders)
        prepare(stories, tmp_path / "out")
        assert [folder.is_dir() for folder in folders] == [True, False, True]
    finally:
        for process in running:
            process.kill()
            process.wait()
            process.stdout.close()
    prepare(stories, tmp_path / "out", overwrite=True)
    assert [folder.is_dir() for folder in folders] == [False, False, True]


def test_a_folder_below_a_file_cannot_be_made(stories: Path) -> None:
    with pytest.raises(LeadlineError, match="which is a file"):
        prepare(stories, stories / "below" / "out")


def _peak(path: Path, out: Path, tokenizer: object) -> int:
    tracemalloc.start()
    prepare(path, out, tokenizer, separator="\n\n")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_memory_does_not_grow_with_the_input(tmp_path: Path, kind: str) -> None:
    block = ("".join(STORIES) + "\n\n").encode()
    sizes = (3_000_000, 24_000_000) if kind == "bytes" else (1_000_000, 3_000_000)
    tokenizer = "bytes" if kind == "bytes" else train_bpe(Documents(lambda: STORIES), 300)
    peaks = []
    for size in sizes:
        path = tmp_path / f"{size}.txt"
        path.write_bytes(block * (size // len(block)))
        peaks.append(_peak(path, tmp_path / f"out-{size}", tokenizer))
    assert peaks[1] < max(1.3 * peaks[0], peaks[0] + 2_000_000)
    assert peaks[1] < 16_000_000


def test_marks_stay_few_and_near() -> None:
    marks = heldout_module.Marks()
    for i in range(100_000):
        marks.add((i * 10, i * 30))
    assert len(marks._marks) < 8192
    found = marks.nearest(654_321)
    assert found is not None
    assert abs(found[0] - 654_321) <= 10 * 32
    assert found[1] == 3 * found[0]


def test_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_module, "_PROGRESS_BYTES", 10_000)
    seen: list[int] = []
    prepare_corpus(Documents(lambda: STORIES), tmp_path / "out", on_progress=seen.append)
    assert seen == sorted(seen)
    assert len(seen) > 3
