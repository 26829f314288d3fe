"""Text to a data set's folder: tokenise, pack, hold out, write. Whole or not at all."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import glob
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from leadline.config import to_dict
from leadline.data.cache import WriteError
from leadline.data.dataset import FORMAT, INDEX, DataSet, Index, TokenizerIndex, data_hash, is_dataset
from leadline.data.heldout import HELDOUT_BYTES, HeldOut
from leadline.data.json_lines import MAX_RECORD_BYTES
from leadline.data.packing import Packer
from leadline.data.shards import SHARD_TOKENS, choose_dtype
from leadline.data.sources import Corpus, Files
from leadline.data.tokenizers import ByteTokenizer, Tokenizer, load_tokenizer, train_bpe
from leadline.errors import UsageError
from leadline.files import check_folder, sync_folder, write_json

HELDOUT = 0.02
MOST = 10**18
LARGEST_BPE = 1 << 24
Existing = Literal["refuse", "replace", "keep"]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What `prepare` wrote: the folder, its index, and what was read and left out, a sentence each."""

    folder: Path
    index: Index
    notes: tuple[str, ...] = ()

    def open(self) -> DataSet:
        """The data set."""
        return DataSet.open(self.folder)


def prepare(
    inputs: Sequence[str | Path] | str | Path,
    out: str | Path,
    tokenizer: str | Tokenizer = "bytes",
    *,
    field: str = "text",
    separator: str | None = None,
    separator_token: str | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    heldout: float = HELDOUT,
    heldout_bytes: int = HELDOUT_BYTES,
    heldout_last: int | None = None,
    limit_tokens: int | None = None,
    seed: int = 0,
    dtype: str = "auto",
    shard_tokens: int = SHARD_TOKENS,
    overwrite: bool = False,
    name: str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Prepared:
    """Turns files into a data set's folder. Memory stays flat whatever the files' size.

    Args:
        inputs: files, folders or globs (see `Files`).
        out: the folder to write; it appears when it is complete.
        tokenizer: `bytes`, `bpe:SIZE`, the path of a `tokenizer.json`, or a `Tokenizer`.
        field: the JSONL field or parquet column that holds the text.
        separator: what stands between the documents of a text file.
        separator_token: the token of a `tokenizer.json` that ends a document.
        max_record_bytes: the longest JSONL line or parquet value that is read; a longer one is an error.
        heldout: the share of documents to hold out, chosen by a hash of their first bytes and `seed`, so that a
            document's copies stay on one side.
        heldout_bytes: hold out at least so many bytes of text, or a tenth of the text where that is less: more whole
            documents in the order of their hashes; where there are too few, the end of the text.
        heldout_last: hold out the last so many documents instead.
        limit_tokens: stop after about this many tokens; the last document may be cut.
        overwrite: replace a data set that is there. A folder that is not a data set is never replaced.
        on_progress: called now and then with the bytes of text read so far.

    Raises:
        UsageError: an option, an input's name or `out` is wrong.
        LeadlineError: an input is broken or empty, or the disk is full.
    """
    if max_record_bytes < 1:
        raise UsageError(f"--max-record-bytes {max_record_bytes} is too small; it can be 1 or more")
    inputs = [inputs] if isinstance(inputs, str | Path) else inputs
    files = Files(inputs, field=field, separator=separator, max_record_bytes=max_record_bytes)
    prepared = prepare_corpus(
        files,
        out,
        tokenizer,
        separator_token=separator_token,
        heldout=heldout,
        heldout_bytes=heldout_bytes,
        heldout_last=heldout_last,
        limit_tokens=limit_tokens,
        seed=seed,
        dtype=dtype,
        shard_tokens=shard_tokens,
        existing="replace" if overwrite else "refuse",
        name=name,
        on_progress=on_progress,
    )
    return dataclasses.replace(prepared, notes=(*files.summary(), *prepared.notes))


def prepare_corpus(
    corpus: Corpus,
    out: str | Path,
    tokenizer: str | Tokenizer = "bytes",
    *,
    separator_token: str | None = None,
    heldout: float = HELDOUT,
    heldout_bytes: int = HELDOUT_BYTES,
    heldout_last: int | None = None,
    limit_tokens: int | None = None,
    seed: int = 0,
    dtype: str = "auto",
    shard_tokens: int = SHARD_TOKENS,
    existing: Existing = "refuse",
    name: str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Prepared:
    """`prepare` for documents from anywhere.

    Args:
        existing: what to do with a data set that `out` already holds: refuse, replace it, or keep it if another process
            put it there meanwhile.
    """
    out = Path(out).resolve()
    check_options(heldout, heldout_last, limit_tokens, shard_tokens, heldout_bytes)
    if not -(2**63) <= seed < 2**63:
        raise UsageError(f"--seed {seed} is out of range; it can be a number of 64 bits, such as 0")
    check_out(out, existing)
    chosen = choose_tokenizer(tokenizer, corpus, separator_token)
    kind = choose_dtype(chosen.vocab_size, dtype)
    with new_folder(out, existing) as folder:
        share = heldout if heldout_last is None else 0.0
        rule = HeldOut(share=share, least_bytes=heldout_bytes, last=heldout_last, seed=seed)
        packer = Packer(folder, chosen, kind, shard_tokens, rule)
        try:
            packer.pack(corpus, limit_tokens, on_progress)
            train, held, applied = packer.finish()
        finally:
            packer.abandon()
        index = Index(
            format=FORMAT,
            name=name or out.name,
            hash="",
            dtype=kind,
            heldout_rule=applied,
            tokenizer=TokenizerIndex(
                name=chosen.name, hash=chosen.hash, vocab_size=chosen.vocab_size, separator=chosen.separator
            ),
            train=train,
            heldout=held,
        )
        index = dataclasses.replace(index, hash=data_hash(index))
        chosen.save(folder)
        write_json(folder / INDEX, to_dict(index))
    notes: tuple[str, ...] = ()
    if held.bytes < 0.95 * heldout_bytes and (share or heldout_last):  # the end of a text is cut near the mark
        notes = (
            f"only {held.bytes:,} bytes are held out, less than {heldout_bytes:,}: too little to tell models apart "
            "that differ by little; more text helps",
        )
    return Prepared(folder=out, index=index, notes=notes)


def choose_tokenizer(tokenizer: str | Tokenizer, corpus: Corpus, separator_token: str | None = None) -> Tokenizer:
    """`bytes`, `bpe:SIZE` (trained on the corpus) or the path of a `tokenizer.json`."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if separator_token is not None and (tokenizer == "bytes" or tokenizer.startswith("bpe:")):
        raise UsageError(f"--separator-token goes with a tokenizer.json; {tokenizer} has a separator of its own")
    if tokenizer == "bytes":
        return ByteTokenizer()
    if tokenizer.startswith("bpe:"):
        size = tokenizer.removeprefix("bpe:")
        if not size.isdecimal():
            raise UsageError(f"--tokenizer {tokenizer} is wrong; write the vocabulary's size, for example bpe:2048")
        if int(size) > LARGEST_BPE:
            raise UsageError(f"--tokenizer {tokenizer} is too large; bpe:{LARGEST_BPE} is the most")
        return train_bpe(corpus, int(size))
    return load_tokenizer(tokenizer, separator=separator_token)


def check_out(out: Path, existing: Existing) -> None:
    """Raises UsageError where `out` holds something that may not be replaced."""
    check_folder(out, "--out")
    if not out.exists() or not any(out.iterdir()):
        return
    if not is_dataset(out):
        raise UsageError(f"--out {out} is not empty and not a data set; name another folder")
    if existing == "refuse":
        raise UsageError(f"--out {out} already holds a data set; name another folder or add --overwrite")


@contextmanager
def new_folder(out: Path, existing: Existing = "refuse") -> Iterator[Path]:
    """A folder to fill, which becomes `out` at the end; after an error nothing is left.

    What a killed process left under a name of this kind is removed first.

    Raises:
        WriteError: the disk is full, or `out` cannot be written.
    """
    temporary, handle = None, None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(out)
        temporary, handle = _make_locked(out)
        yield temporary
        sync_folder(temporary)
        _rename(temporary, out, existing)
        sync_folder(out.parent)
    except OSError as error:
        raise _disk_error(error, out) from error
    finally:
        if temporary is not None and handle is not None:
            shutil.rmtree(temporary, ignore_errors=True)
            os.close(handle)


def _make_locked(out: Path) -> tuple[Path, int]:
    """A hidden folder beside `out` and the handle that holds its lock, until the process ends or closes it."""
    while True:
        folder = _hidden(out, "partial")
        folder.mkdir()
        with suppress(FileNotFoundError):  # another process has just taken it for an abandoned one
            handle = os.open(folder, os.O_RDONLY)
            _lock(handle)
            if folder.exists():
                return folder, handle
            os.close(handle)


def _remove_abandoned(out: Path) -> None:
    """Removes unfinished folders of this name that no process holds."""
    for folder in out.parent.glob(f".{glob.escape(out.name)}.{'[0-9a-f]' * 8}.partial"):
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            try:
                if _lock(handle):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


def _lock(handle: int) -> bool:
    """Takes the lock of an open folder; False where another process has it, or where there are no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _hidden(out: Path, ending: str) -> Path:
    return out.with_name(f".{out.name}.{os.urandom(4).hex()}.{ending}")


def _rename(temporary: Path, out: Path, existing: Existing) -> None:
    old = _hidden(out, "old")
    if existing == "replace" and is_dataset(out):
        os.rename(out, old)
    try:
        os.rename(temporary, out)
    except OSError:
        if old.exists():
            os.rename(old, out)
        if not (existing == "keep" and is_dataset(out)):
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _disk_error(error: OSError, out: Path) -> WriteError:
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason = "the disk is full"
        return WriteError(f"{reason}: {out} was not written; free some space or choose another --out", reason)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return WriteError(f"--out {out} cannot be written: {reason}; choose a folder you may write to", reason)
    return WriteError(f"--out {out} could not be written: {reason}", reason)


def check_options(
    heldout: float,
    heldout_last: int | None = None,
    limit_tokens: int | None = None,
    shard_tokens: int = SHARD_TOKENS,
    heldout_bytes: int = HELDOUT_BYTES,
) -> None:
    """Raises UsageError where a value is out of range."""
    if not 0.0 <= heldout < 1.0:
        raise UsageError(f"--heldout {heldout} is wrong; it is a share from 0 up to, but not including, 1")
    for option, value in (
        ("--heldout-last", heldout_last),
        ("--heldout-bytes", heldout_bytes),
        ("--limit-tokens", limit_tokens),
        ("--shard-tokens", shard_tokens),
    ):
        if value is not None and value < 1:
            raise UsageError(f"{option} {value} is too small; it can be 1 or more")
        if value is not None and value > MOST:
            raise UsageError(f"{option} {value} is too large; it can be {MOST:.0e} at most")
