"""Text to token numbers and back: bytes, byte-level BPE trained here, or any `tokenizer.json`."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.data.json_lines import read_json
from leadline.data.records import Piece
from leadline.data.sources import Corpus
from leadline.errors import LeadlineError, UsageError
from leadline.files import write_text

Tokens = NDArray[Any]

FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SEPARATOR = "<|endoftext|>"
KNOWN_SEPARATORS = (SEPARATOR, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
PIECE_CHARACTERS = 4_096
BPE_SAMPLE_BYTES = 100_000_000
_BATCH_BYTES = 1 << 18
_BATCH_PARTS = 1024


class Tokenizer(ABC):
    """Turns text into token numbers below `vocab_size`.

    Attributes:
        name: `bytes`, `bpe:2048` or a file's name.
        vocab_size: the model's vocabulary: one more than the largest token.
        separator: the token that ends each document.
        hash: identifies the tokenizer; the same file with the same separator has the same hash.
    """

    name: str
    vocab_size: int
    separator: int
    hash: str

    @abstractmethod
    def encode(self, text: str) -> Tokens:
        """The tokens of `text`, (count,) integers. The separator's own text has no special meaning in it."""

    @abstractmethod
    def decode(self, tokens: Sequence[int] | Tokens) -> str:
        """The text of `tokens`; separators are left out and broken characters replaced."""

    @abstractmethod
    def encode_stream(self, pieces: Iterator[Piece]) -> Iterator[tuple[Piece, Tokens]]:
        """The pieces, possibly cut smaller, each with its tokens (separators not included)."""

    @abstractmethod
    def content(self) -> tuple[str, str]:
        """The text of `tokenizer.json` and the name of the separator in it."""

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.json` and `tokenizer_config.json`, which Hugging Face's libraries read too."""
        content, separator = self.content()
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": separator, "leadline_name": self.name}
        write_text(folder / FILE, content)
        write_text(folder / CONFIG_FILE, json.dumps(config, indent=2) + "\n")


class ByteTokenizer(Tokenizer):
    """A token is a byte of UTF-8. Byte 255 never occurs in UTF-8, so it is the separator: 256 tokens in all."""

    def __init__(self) -> None:
        self.name = "bytes"
        self.vocab_size = 256
        self.separator = 255
        self.hash = _hash(*self.content())

    def encode(self, text: str) -> Tokens:
        """The bytes of `text` in UTF-8, (count,) uint8."""
        return np.frombuffer(text.encode(), dtype=np.uint8)

    def decode(self, tokens: Sequence[int] | Tokens) -> str:
        """The text; bytes that are not UTF-8 become U+FFFD."""
        return bytes(int(t) for t in tokens if t != self.separator).decode("utf-8", errors="replace")

    def encode_stream(self, pieces: Iterator[Piece]) -> Iterator[tuple[Piece, Tokens]]:
        """Each piece with a view of its own bytes."""
        for piece in pieces:
            yield piece, np.frombuffer(piece.data, dtype=np.uint8)

    def content(self) -> tuple[str, str]:
        """A `tokenizer.json` that does the same: byte-level BPE without merges."""
        vocab = {character: byte for byte, character in enumerate(_byte_characters()[:255])} | {SEPARATOR: 255}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        data: dict[str, Any] = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": 255, "content": SEPARATOR} | special],
            "normalizer": None,
            "pre_tokenizer": level,
            "post_processor": None,
            "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": vocab, "merges": []},
        }
        return json.dumps(data, ensure_ascii=False, indent=1) + "\n", SEPARATOR


class FileTokenizer(Tokenizer):
    """A tokenizer from the text of a `tokenizer.json`.

    A document is tokenised in parts of about 4,000 characters, cut after a line or before a word (ours), so a
    token never lies across two parts. Truncation, padding and added special tokens in the file are switched off.

    Args:
        content: the text of `tokenizer.json`.
        separator: the token that ends a document; by default the first of the usual names that the file knows.
        where: what errors call the file; its name unless given.

    Raises:
        LeadlineError: the file is not a tokenizer.
        UsageError: it has no token called `separator`.
    """

    def __init__(
        self, content: str, *, separator: str | None = None, name: str = FILE, where: str | None = None
    ) -> None:
        import tokenizers

        where = where or name
        try:
            self._inner = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # tokenizers raises plain Exception
            raise LeadlineError(f"{where} is not a tokenizer.json: {error}") from error
        self._inner.no_truncation()
        self._inner.no_padding()
        self._inner.encode_special_tokens = True
        names = [separator] if separator is not None else list(KNOWN_SEPARATORS)
        known = [n for n in names if self._inner.token_to_id(n) is not None]
        if not known:
            raise UsageError(
                f"{where} has no token {' or '.join(names)} to stand between documents; "
                "name one of its tokens with --separator-token"
            )
        self.name = name
        self._separator_name = known[0]
        self._content = content
        self.separator = self._inner.get_vocab(with_added_tokens=True)[known[0]]
        self.vocab_size = max(self._inner.get_vocab(with_added_tokens=True).values()) + 1
        self.hash = _hash(content, known[0])

    def encode(self, text: str) -> Tokens:
        """The tokens of `text`, (count,) int64."""
        return np.asarray(self._inner.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def decode(self, tokens: Sequence[int] | Tokens) -> str:
        """The text, special tokens left out."""
        return self._inner.decode([int(t) for t in tokens], skip_special_tokens=True)

    def encode_stream(self, pieces: Iterator[Piece]) -> Iterator[tuple[Piece, Tokens]]:
        """Parts of documents with their tokens, encoded many at a time."""
        waiting: list[Piece] = []
        size = 0
        for part in cut(pieces):
            waiting.append(part)
            size += len(part.data)
            if size >= _BATCH_BYTES or len(waiting) >= _BATCH_PARTS:
                yield from self._encode_all(waiting)
                waiting, size = [], 0
        yield from self._encode_all(waiting)

    def _encode_all(self, parts: list[Piece]) -> Iterator[tuple[Piece, Tokens]]:
        encoded = self._inner.encode_batch_fast([p.data.decode() for p in parts], add_special_tokens=False)
        for part, tokens in zip(parts, encoded, strict=True):
            yield part, np.asarray(tokens.ids, dtype=np.int64)

    def content(self) -> tuple[str, str]:
        """The file's text as it was given, and the separator's name."""
        return self._content, self._separator_name


def load_tokenizer(path: str | Path, *, separator: str | None = None) -> Tokenizer:
    """A tokenizer from a `tokenizer.json`, or from a folder that holds one.

    A `tokenizer_config.json` beside it names the separator (its `eos_token`) unless `separator` is given.

    Raises:
        UsageError: there is no such file, or it has no separator.
        LeadlineError: it is not a tokenizer.
    """
    path = Path(path)
    file = path / FILE if path.is_dir() else path
    try:
        content = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError(f"there is no tokenizer at {file}; it can be bytes, bpe:2048 or a tokenizer.json") from error
    except (OSError, UnicodeDecodeError) as error:
        raise LeadlineError(f"{file} cannot be read: {error}") from error
    config = _read_config(file.with_name(CONFIG_FILE))
    if separator is None:
        eos = config.get("eos_token")
        separator = eos.get("content") if isinstance(eos, dict) else eos
        if not isinstance(separator, str | None):
            raise LeadlineError(f"{file.with_name(CONFIG_FILE)}: eos_token should be text, not {separator!r}")
    if (content, separator or SEPARATOR) == ByteTokenizer().content():
        return ByteTokenizer()
    name = str(config.get("leadline_name") or file.name)
    return FileTokenizer(content, separator=separator, name=name, where=str(file))


def train_bpe(corpus: Corpus, vocab_size: int, *, sample_bytes: int = BPE_SAMPLE_BYTES) -> FileTokenizer:
    """Byte-level BPE from the corpus's own text; the same text gives the same tokenizer.

    A corpus larger than `sample_bytes` is sampled evenly, so that memory stays flat (ours).

    Raises:
        UsageError: `vocab_size` has no room for 256 bytes and the separator.
        LeadlineError: the text has too few different pairs for that many tokens.
    """
    if vocab_size < 257:
        raise UsageError(f"bpe:{vocab_size} is too small; 256 bytes and the separator need bpe:257 or more")
    import tokenizers

    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        special_tokens=[SEPARATOR],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    inner.train_from_iterator(_sample(corpus, sample_bytes), trainer)
    trained = inner.get_vocab_size()
    if trained != vocab_size:
        raise LeadlineError(
            f"the text gives only {trained} BPE tokens, not {vocab_size}; use --tokenizer bpe:{trained}"
        )
    return FileTokenizer(inner.to_str(pretty=True), separator=SEPARATOR, name=f"bpe:{vocab_size}")


def cut(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The same documents in parts of at most about `PIECE_CHARACTERS`, cut after a line or before a word."""
    rest = ""
    first = True
    for piece in pieces:
        text = rest + piece.data.decode()
        start = 0
        while len(text) - start > PIECE_CHARACTERS:
            end = start + PIECE_CHARACTERS
            after = (text.rfind("\n", start + 1, end) + 1, text.rfind(" ", start + 1, end))
            end = next((place for place in after if place > start), end)
            yield Piece(text[start:end].encode(), first, False)
            start, first = end, False
        rest = text[start:]
        if piece.last:
            yield Piece(rest.encode(), first, True)
            rest, first = "", True


def _sample(corpus: Corpus, sample_bytes: int) -> Iterator[str]:
    size = corpus.size
    share = min(1.0, sample_bytes / size) if size else 1.0
    taken = 0
    for number, part in enumerate(cut(corpus.pieces())):
        if int((number + 1) * share) != int(number * share) or number == 0:
            yield part.data.decode()
            taken += len(part.data)
            if taken >= sample_bytes:
                return


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    if not isinstance(config, dict):
        raise LeadlineError(f"{path} is damaged: it holds {type(config).__name__}, not an object")
    return config


def _hash(content: str, separator: str) -> str:
    return hashlib.blake2b(f"{separator}\0{content}".encode(), digest_size=16).hexdigest()


def _byte_characters() -> list[str]:
    """GPT-2's printable stand-in for each byte: itself where it is printable, else the next free one from U+0100."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    free = iter(range(256, 512))
    return [chr(byte if byte in printable else next(free)) for byte in range(256)]
