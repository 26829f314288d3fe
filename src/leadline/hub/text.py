"""Text for an opened model, in its own tokens: held out to measure on, and training text for gradients and healing.

A window holds `context` predictions, of which the last `stride` count. With `stride == context` windows don't overlap
and every prediction counts. A perplexity depends on both numbers, so both stand in the result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from leadline.data import Batch, DataSet, Files, Loader, Split, fetch, prepare_corpus, resolve
from leadline.data.dataset import is_dataset
from leadline.data.named import NAMED, SOTU, from_cache
from leadline.errors import LeadlineError, UsageError
from leadline.hub.open import OpenedModel
from leadline.probes.watch import IGNORED

LONGEST_CONTEXT = 512
"""Of a measurement, unless one is given: models made for longer texts need much more time and memory. [ours]"""

TEXT_HELDOUT = 0.1
"""The share of plain text files that is held out. [ours]"""

TEXT_VERSION = 2
"""Of how text files are read and split: another one is prepared again."""

ONCE = "tokenizing the text (cached)"


@dataclass(frozen=True, kw_only=True)
class Text:
    """Windows of held-out text.

    Attributes:
        batches: tokens and targets, (B, T) int64 on the CPU. Where `stride < context`, the targets that don't count are
            `IGNORED`.
        bytes_per_token: of the text.
        context: predictions in a window.
        stride: how many of them count, the last ones.
        tokens: predictions that count, in all.
        begins: the token put before every window, if any.
    """

    batches: list[Batch]
    bytes_per_token: float
    context: int
    stride: int
    tokens: int
    begins: int | None


def dataset_for(opened: OpenedModel, data: str | Path, progress: Callable[[str], None] = lambda text: None) -> DataSet:
    """A data set in the model's own tokens.

    Args:
        data: `sotu`, a prepared folder whose tokenizer is the model's, or text files (.txt, .jsonl, .parquet; a file,
            a folder or a pattern). Speeches and files are tokenized once and kept in the cache.
        progress: receives a line before that, which takes a while.

    Raises:
        UsageError: there is no such data, or it was prepared with another tokenizer.
        LeadlineError: a file is damaged.
    """
    tokenizer = opened.tokenizer
    if str(data) == SOTU:
        if tokenizer.name == "bytes":
            return resolve(SOTU)

        def speeches(folder: Path) -> None:
            progress(ONCE)
            fetch(SOTU, folder, tokenizer)

        return from_cache(f"{SOTU}-{tokenizer.hash[:16]}", speeches)
    if str(data) in NAMED or is_dataset(Path(data)):
        found = resolve(data)
        found.require_tokenizer(tokenizer.hash, str(opened.path))
        return found
    try:
        files = Files([data], command="leadline data prepare")
    except UsageError as error:
        raise UsageError(f"--data {str(data) or repr('')}: {error}; sotu and prepared folders work too") from None

    def text(folder: Path) -> None:
        progress(ONCE)
        prepared = prepare_corpus(files, folder, tokenizer, heldout=TEXT_HELDOUT, existing="keep")
        for note in (*files.summary(), *prepared.notes):
            progress(note)

    found = from_cache(f"text-{TEXT_VERSION}-{_hash(files.paths)}-{tokenizer.hash[:16]}", text)
    found.name = str(data)
    return found


def default_context(opened: OpenedModel) -> int:
    """Predictions in a window, unless a number is given: what the model was made for, up to 512."""
    return min(opened.stack.context, LONGEST_CONTEXT)


def heldout_batches(
    opened: OpenedModel,
    data: str | Path | DataSet,
    *,
    context: int | None = None,
    tokens: int | None = None,
    batch_size: int = 8,
    stride: int | None = None,
) -> Text:
    """Windows of the validation split (held-out), spread evenly over it: the same ones every time.

    Args:
        data: see `dataset_for`; or a data set.
        context: predictions in a window; `default_context` unless given.
        tokens: predictions that count, at most; at least one window comes. None is all.
        batch_size: windows in a batch; the last batch may hold fewer.
        stride: how many predictions of a window count; `context` unless given.

    Raises:
        UsageError: a number out of range, or a split too short for one window.
    """
    split = (data if isinstance(data, DataSet) else dataset_for(opened, data)).heldout
    context = default_context(opened) if context is None else context
    stride = context if stride is None else stride
    if not 1 <= stride <= context:
        raise UsageError(f"--stride {stride} is out of range; with --context {context} it can be 1 to {context}")
    if batch_size < 1:
        raise UsageError(f"--batch-size {batch_size} must be at least 1")
    split.windows(context)
    _check_context(opened, context)
    starts = _starts(split, context, stride, tokens)
    batches = []
    for first in range(0, len(starts), batch_size):
        rows = [split.read(start, context + 1) for start in starts[first : first + batch_size]]
        whole = torch.from_numpy(np.stack(rows))
        _check_vocabulary(opened, whole)
        batch = begun(Batch(whole[:, :-1].contiguous(), whole[:, 1:].contiguous()), opened.begins)
        batch.targets[:, : context - stride] = IGNORED
        batches.append(batch)
    counted, begins, ratio = len(starts) * stride, opened.begins, split.bytes_per_token
    return Text(batches=batches, bytes_per_token=ratio, context=context, stride=stride, tokens=counted, begins=begins)


def training_batches(
    opened: OpenedModel,
    data: str | Path | DataSet,
    *,
    context: int | None = None,
    tokens: int,
    batch_size: int = 8,
    seed: int = 0,
) -> list[Batch]:
    """Predictions of the training split, in windows that the seed chooses; none of them is held out.

    Args:
        context: see `heldout_batches`.
        tokens: predictions at most, in whole windows; at least one window comes, and each comes once.
        batch_size: windows in a batch; the last batch may hold fewer, so that it doesn't decide what is read.

    Raises:
        UsageError: a number out of range, or a split too short for one window.
    """
    split = (data if isinstance(data, DataSet) else dataset_for(opened, data)).train
    context = default_context(opened) if context is None else context
    windows = min(max(1, tokens // context), split.windows(context))
    _check_context(opened, context)
    size = min(batch_size, windows)
    loader = Loader(split, size, context, seed)
    batches = []
    for first in range(0, windows, size):
        whole = loader.next()
        _check_vocabulary(opened, whole.targets)
        batch = Batch(*(part[: windows - first] for part in whole))
        batches.append(begun(batch, opened.begins))
    return batches


def begun(batch: Batch, begins: int | None) -> Batch:
    """The batch with `begins` before every window, whose first token is predicted too; as it is without one."""
    if begins is None:
        return batch
    first = torch.full_like(batch.tokens[:, :1], begins)
    return Batch(torch.cat((first, batch.tokens[:, :-1]), dim=1), batch.tokens.clone())


def _check_context(opened: OpenedModel, context: int) -> None:
    """Makes sure that a model runs on more tokens than it was made for: rotary ones do, those with a table don't.

    Raises:
        UsageError: it doesn't.
    """
    stack = opened.stack
    if context <= stack.context:
        return
    tokens = torch.full((1, context), stack.vocab_size // 2, device=stack.device)
    try:
        with torch.no_grad():
            stack.logits(tokens)
    except (IndexError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"--context {context}: {type(stack.model).__name__} was made for {stack.context} tokens and doesn't run on "
            f"more; 1 to {stack.context} work"
        ) from error


def _check_vocabulary(opened: OpenedModel, tokens: torch.Tensor) -> None:
    """Raises LeadlineError where the tokenizer returns a token that the model has no embedding for."""
    if (largest := int(tokens.max())) >= opened.stack.vocab_size:
        raise LeadlineError(
            f"the tokenizer of {opened.path} returns the token {largest}, and the model has {opened.stack.vocab_size}; "
            "put the model's own tokenizer beside it"
        )


def _starts(split: Split, context: int, stride: int, tokens: int | None) -> list[int]:
    """Where the windows begin."""
    count = (split.tokens - 1 - (context - stride)) // stride
    wanted = count if tokens is None else max(1, min(count, tokens // stride))
    return [index * count // wanted * stride for index in range(wanted)]


def _hash(paths: list[Path]) -> str:
    """Identifies the files by their names and content."""
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
    return digest.hexdigest()
