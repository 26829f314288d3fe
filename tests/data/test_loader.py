"""The loader: order, exact resume, epochs, ranks, and the evaluation's windows."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leadline.data import DataSet, Documents, Loader, bits_per_byte, evaluation_batches, prepare_corpus
from leadline.data.loader import key_of, permute
from leadline.errors import LeadlineError, UsageError

CONTEXT = 16
GOLDEN_ORDER = [282, 626, 599, 470, 639, 949, 124, 841, 250, 802]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """Tokens that tell their own place: two bytes of a counter each."""
    text = "".join(chr(33 + i % 90) + chr(33 + i // 90) for i in range(600))
    out = tmp_path_factory.mktemp("data") / "out"
    return prepare_corpus(Documents(lambda: [text, "held out " * 20]), out, heldout_last=1, shard_tokens=500).open()


def rows(loader: Loader, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        batch = loader.next()
        whole = torch.cat([batch.tokens, batch.targets[:, -1:]], dim=1)
        found += [bytes(row.tolist()) for row in whole]
    return found[:count]


def test_batches_are_windows_shifted_by_one(dataset: DataSet) -> None:
    batch = Loader(dataset.train, 4, CONTEXT, seed=0).next()
    assert batch.tokens.shape == batch.targets.shape == (4, CONTEXT)
    assert batch.tokens.dtype == batch.targets.dtype == torch.int64
    assert batch.tokens.is_contiguous()
    assert batch.targets.is_contiguous()
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    text = bytes(dataset.train.read(0, dataset.train.tokens).tolist())
    assert all(row in text for row in rows(Loader(dataset.train, 4, CONTEXT), 9))


def test_an_epoch_takes_every_window_once_and_epochs_differ(dataset: DataSet) -> None:
    loader = Loader(dataset.train, 5, CONTEXT, seed=3)
    assert loader.windows == (dataset.train.tokens - 1) // CONTEXT
    taken = rows(loader, 4 * loader.windows)
    epochs = [taken[i * loader.windows : (i + 1) * loader.windows] for i in range(4)]
    text = bytes(dataset.train.read(0, dataset.train.tokens).tolist())
    for epoch in epochs:
        starts = sorted(text.index(row) for row in epoch)
        assert np.diff(starts).tolist() == [CONTEXT] * (loader.windows - 1)
    assert len({tuple(e) for e in epochs}) == 4


def test_no_token_is_left_out_for_good(dataset: DataSet) -> None:
    loader = Loader(dataset.train, 1, 500, seed=0)
    text = bytes(dataset.train.read(0, dataset.train.tokens).tolist())
    ends = {text.index(row) + len(row) for row in rows(loader, 60 * loader.windows)}
    assert max(ends) > dataset.train.tokens - 40


@pytest.mark.parametrize("after", [0, 1, 7, 100])
def test_resume_is_exact_across_epochs(dataset: DataSet, after: int) -> None:
    loader = Loader(dataset.train, 3, CONTEXT, seed=1)
    for _ in range(after):
        loader.next()
    state = json.loads(json.dumps(loader.state()))
    assert all(type(v) is int for v in state.values())
    assert loader.epoch == state["epoch"] == after * 3 // loader.windows
    expected = rows(loader, 200)
    again = Loader(dataset.train, 3, CONTEXT, seed=1)
    again.load(state)
    assert rows(again, 200) == expected
    skipped = Loader(dataset.train, 3, CONTEXT, seed=1)
    skipped.skip(after)
    assert skipped.state() == state


def test_the_order_is_that_of_seed_data_and_context_alone(dataset: DataSet, tmp_path: Path) -> None:
    reference = rows(Loader(dataset.train, 1, CONTEXT, seed=5), 300)
    assert rows(Loader(dataset.train, 7, CONTEXT, seed=5), 300) == reference
    assert rows(Loader(dataset.train, 1, CONTEXT, seed=6), 300) != reference
    ranks = [Loader(dataset.train, 2, CONTEXT, seed=5, rank=r, world=3) for r in range(3)]
    together = [row for _ in range(50) for rank in ranks for row in rows(rank, 2)]
    assert together == reference
    assert len({tuple(r.state().items()) for r in ranks}) == 1
    alone = Loader(dataset.train, 4, CONTEXT, seed=5)
    alone.load(ranks[0].state())
    assert rows(alone, 40) == rows(Loader(dataset.train, 1, CONTEXT, seed=5), 340)[300:]


def test_the_order_never_changes() -> None:
    order = permute(np.arange(10, dtype=np.uint64), 1000, key_of(7, 1, 2, 3))
    assert order.tolist() == GOLDEN_ORDER


@given(count=st.integers(1, 3000), key=st.tuples(*[st.integers(0, 2**64 - 1)] * 6))
def test_permute_is_a_permutation(count: int, key: tuple[int, ...]) -> None:
    order = permute(np.arange(count, dtype=np.uint64), count, key)
    assert np.array_equal(np.sort(order), np.arange(count))


def test_permute_scatters_and_needs_no_table() -> None:
    count = 10**12 + 7
    out = permute(np.arange(20_000, dtype=np.uint64), count, (9, 8, 7, 6, 5, 4)).astype(np.float64) / count
    assert abs(out.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(out[:-1], out[1:])[0, 1]) < 0.03
    assert np.abs(np.histogram(out, 20, (0, 1))[0] - 1000).max() < 150


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 9}, r"seed=9, not seed=0"),
        ({"context": 8}, r"context=8, not context=16"),
        ({"data": 1}, "another data set"),
        ({"index": 10**9}, "state is broken"),
        ({"epoch": -1}, "state is broken"),
        ({"more": 1}, "a loader's state has epoch, index"),
    ],
)
def test_a_state_of_something_else_is_refused(dataset: DataSet, change: dict[str, int], message: str) -> None:
    loader = Loader(dataset.train, 2, CONTEXT, seed=0)
    with pytest.raises(LeadlineError, match=message):
        loader.load(loader.state() | change)
    assert loader.state()["index"] == 0


def test_numbers_out_of_range_and_short_text(dataset: DataSet) -> None:
    with pytest.raises(UsageError, match="batch_size=0"):
        Loader(dataset.train, 0, CONTEXT)
    with pytest.raises(UsageError, match="rank=2 of world=2"):
        Loader(dataset.train, 1, CONTEXT, rank=2, world=2)
    with pytest.raises(UsageError, match="context=0"):
        Loader(dataset.train, 1, 0)
    with pytest.raises(UsageError, match=r"training split has 1201 tokens, too short for one sequence: .*needs 1202"):
        Loader(dataset.train, 1, 1201)
    assert Loader(dataset.train, 3, 1200).next().tokens.shape == (3, 1200)
    with pytest.raises(UsageError, match=r"validation split \(held-out\) has 181 tokens, .* larger --heldout"):
        evaluation_batches(dataset.heldout, 1, 200)
    with pytest.raises(UsageError, match="batch_size=0"):
        evaluation_batches(dataset.heldout, 0, 5)


def test_evaluation_takes_the_same_windows_every_time(dataset: DataSet) -> None:
    whole = list(evaluation_batches(dataset.heldout, 4, CONTEXT))
    assert [len(b.tokens) for b in whole] == [4, 4, 3]
    flat = torch.cat([b.targets.flatten() for b in whole])
    assert np.array_equal(flat.numpy(), dataset.heldout.read(1, 11 * CONTEXT))
    some = list(evaluation_batches(dataset.heldout, 4, CONTEXT, limit_tokens=5 * CONTEXT + 3))
    assert sum(b.tokens.numel() for b in some) == 5 * CONTEXT
    starts = [0, 2, 4, 6, 8]
    everything = torch.cat([b.tokens for b in whole])
    assert torch.equal(torch.cat([b.tokens for b in some]), everything[starts])
    assert sum(len(b.tokens) for b in evaluation_batches(dataset.heldout, 4, CONTEXT, limit_tokens=1)) == 1


def test_bits_per_byte() -> None:
    assert bits_per_byte(math.log(2), 1.0) == pytest.approx(1.0)
    assert bits_per_byte(math.log(16), 4.0) == pytest.approx(1.0)
