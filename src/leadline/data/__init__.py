"""Text to token shards to batches, with exact resume."""

from __future__ import annotations

from leadline.data.dataset import DataSet, Split
from leadline.data.loader import Batch, Loader, bits_per_byte, evaluation_batches
from leadline.data.named import NAMED, fetch, load_sotu, resolve
from leadline.data.prepare import Prepared, prepare, prepare_corpus
from leadline.data.records import Piece
from leadline.data.sources import Corpus, Documents, Files
from leadline.data.tokenizers import ByteTokenizer, FileTokenizer, Tokenizer, load_tokenizer, train_bpe

__all__ = [
    "NAMED",
    "Batch",
    "ByteTokenizer",
    "Corpus",
    "DataSet",
    "Documents",
    "FileTokenizer",
    "Files",
    "Loader",
    "Piece",
    "Prepared",
    "Split",
    "Tokenizer",
    "bits_per_byte",
    "evaluation_batches",
    "fetch",
    "load_sotu",
    "load_tokenizer",
    "prepare",
    "prepare_corpus",
    "resolve",
    "train_bpe",
]
