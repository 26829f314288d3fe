"""Tokenizers: round trips, identity, determinism, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from leadline.data import ByteTokenizer, Documents, FileTokenizer, Piece, load_tokenizer, train_bpe
from leadline.data.tokenizers import PIECE_CHARACTERS, SEPARATOR, cut
from leadline.errors import LeadlineError, UsageError

TEXT = "Fellow citizens,\n\nGrüße an die 世界 🌊 — the lead line measures depth.\n" * 200


@pytest.fixture(scope="module")
def bpe() -> FileTokenizer:
    return train_bpe(Documents(lambda: [TEXT]), 300)


def test_bytes_are_their_own_tokens() -> None:
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode(TEXT)
    assert tokens.tobytes() == TEXT.encode()
    assert tokenizer.decode(tokens) == TEXT
    assert (tokenizer.vocab_size, tokenizer.separator) == (256, 255)
    assert tokenizer.decode([72, 255, 105, 0xC3]) == "Hi\ufffd"


def test_the_byte_tokenizers_file_means_the_same_to_other_libraries(tmp_path: Path) -> None:
    ByteTokenizer().save(tmp_path)
    other = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x10000, 97), 0x10FFFF]))
    assert other.encode(every).ids == list(every.encode())
    assert other.decode(list(TEXT.encode())) == TEXT
    assert other.token_to_id(SEPARATOR) == 255
    assert isinstance(load_tokenizer(tmp_path), ByteTokenizer)


def test_bpe_round_trips_and_is_the_same_every_time(bpe: FileTokenizer) -> None:
    assert bpe.vocab_size == 300
    assert bpe.decode(bpe.encode(TEXT)) == TEXT
    assert bpe.decode(bpe.encode("Ωmega\x00\r\n\t ")) == "Ωmega\x00\r\n\t "
    assert len(bpe.encode(TEXT)) < 0.6 * len(TEXT.encode())
    again = train_bpe(Documents(lambda: [TEXT]), 300)
    assert again.hash == bpe.hash
    assert again.content() == bpe.content()


def test_bpe_samples_a_large_corpus_evenly() -> None:
    halves = Documents(lambda: ["aaaa bbbb " * 2000, "yyyy zzzz " * 2000], size=40_000)
    small = train_bpe(halves, 260, sample_bytes=20_000)
    assert len(small.encode("yyyy zzzz")) < 9


def test_a_saved_tokenizer_is_the_same_one(bpe: FileTokenizer, tmp_path: Path) -> None:
    bpe.save(tmp_path)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        loaded = load_tokenizer(path)
        assert (loaded.hash, loaded.name, loaded.separator) == (bpe.hash, "bpe:300", bpe.separator)


def test_the_separators_text_has_no_power_in_documents(bpe: FileTokenizer) -> None:
    tokens = bpe.encode(f"a{SEPARATOR}b")
    assert bpe.separator not in tokens
    assert bpe.decode(tokens) == f"a{SEPARATOR}b"


def test_truncation_and_padding_in_the_file_are_off(bpe: FileTokenizer) -> None:
    inner = tokenizers.Tokenizer.from_str(bpe.content()[0])
    inner.enable_truncation(4)
    inner.enable_padding(length=64)
    loaded = FileTokenizer(inner.to_str())
    assert np.array_equal(loaded.encode(TEXT), bpe.encode(TEXT))
    assert len(loaded.encode("a")) == 1


def test_a_separator_can_be_named(bpe: FileTokenizer, tmp_path: Path) -> None:
    word = "the"
    content = bpe.content()[0]
    inner = tokenizers.Tokenizer.from_str(content)
    inner.add_tokens([word])
    (tmp_path / "own.json").write_text(inner.to_str())
    named = load_tokenizer(tmp_path / "own.json", separator=word)
    assert (named.separator, named.vocab_size, named.name) == (300, 301, "own.json")
    assert named.hash != load_tokenizer(tmp_path / "own.json").hash


def test_long_documents_are_cut_at_lines_or_words() -> None:
    lines = "word " * 7 + "\n"
    for text in (lines * 999, "word " * 9999, "x" * 20_000, "ab"):
        parts = list(cut(iter([Piece(text[:99].encode(), True, False), Piece(text[99:].encode(), False, True)])))
        assert b"".join(p.data for p in parts).decode() == text
        assert [p.first for p in parts] == [True] + [False] * (len(parts) - 1)
        assert [p.last for p in parts] == [False] * (len(parts) - 1) + [True]
        assert all(len(p.data) <= PIECE_CHARACTERS for p in parts)
    assert all(p.data.endswith(b"\n") for p in cut(iter([Piece(lines.encode() * 999, True, True)])))


def test_wrong_tokenizers_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"bpe:100 is too small; .* bpe:257"):
        train_bpe(Documents(lambda: [TEXT]), 100)
    with pytest.raises(LeadlineError, match=r"only \d+ BPE tokens, not 9999; use --tokenizer bpe:\d+"):
        train_bpe(Documents(lambda: [TEXT]), 9999)
    with pytest.raises(UsageError, match=r"no tokenizer at .*; it can be bytes, bpe:2048 or a tokenizer.json"):
        load_tokenizer(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(LeadlineError, match=r"bad\.json is not a tokenizer\.json"):
        load_tokenizer(tmp_path / "bad.json")
    (tmp_path / "noise.json").write_bytes(b"\xff\xfe")
    with pytest.raises(LeadlineError, match=r"noise\.json cannot be read"):
        load_tokenizer(tmp_path / "noise.json")
    plain = json.loads(ByteTokenizer().content()[0])
    plain["added_tokens"] = []
    plain["model"]["vocab"].pop(SEPARATOR)
    (tmp_path / "plain.json").write_text(json.dumps(plain))
    with pytest.raises(UsageError, match="name one of its tokens with --separator-token"):
        load_tokenizer(tmp_path / "plain.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"eos_token": 5}', "eos_token should be text, not 5"),
        ('{"eos_token": {"content": 5}}', "eos_token should be text, not 5"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "is damaged: it holds list"),
        ("{", r"tokenizer_config\.json is not JSON"),
        (b"\xff", r"tokenizer_config\.json cannot be read"),
    ],
)
def test_a_damaged_configuration_is_named(tmp_path: Path, content: str | bytes, message: str) -> None:
    """Passed over, it would change the separator."""
    ByteTokenizer().save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(LeadlineError, match=message):
        load_tokenizer(tmp_path)


def test_a_byte_order_mark_changes_nothing(bpe: FileTokenizer, tmp_path: Path) -> None:
    bpe.save(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = tmp_path / name
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"endoftext", b"end"))
    loaded = load_tokenizer(tmp_path)
    assert (loaded.content()[1], loaded.name) == ("<|end|>", "bpe:300")
    assert loaded.hash != bpe.hash
