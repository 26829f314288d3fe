"""What a pipeline sends, waits for and holds: against golden counts, closed forms, and what autograd keeps."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from leadline.bench.memory import saved_for_backward
from leadline.bench.pipeline import (
    POLICIES,
    Chunk,
    Hop,
    Policy,
    held_states,
    order,
    plan,
    predict,
    split,
    with_blocks_every,
)
from leadline.cli.main import main
from leadline.designs import PRESETS, resolve
from leadline.errors import UsageError
from leadline.models import Decoder, DecoderConfig

TABLE = json.loads((Path(__file__).parents[1] / "golden" / "tables.json").read_text())["pipeline_blocks_sent"]
DIM = 24


def config_of(design: str, blocks: int) -> DecoderConfig:
    shape = dataclasses.replace(
        PRESETS["tiny"].shape, blocks=blocks, dim=DIM, heads=2, kv_heads=2, head_dim=12, hidden=32
    )
    return resolve(design).decoder(shape, 64)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row['stages']}x{row['virtual']}:{row['chunks_per_block']}")
def test_golden(row: dict[str, Any]) -> None:
    """Blocks and the embedding; a partial sum, where a block is not finished at a hop, always travels and is apart."""
    ranks, virtual, every = row["stages"], row["virtual"], row["chunks_per_block"]
    chunks = ranks * virtual
    config = with_blocks_every(config_of("attnres-block", chunks), chunks, every)
    _, hops = plan(config, ranks, virtual, context=4)
    partial = sum((place + 1) % every > 0 for place in range(chunks - 1))
    found = [sum(len(hop.sent[policy]) for hop in hops) - partial for policy in POLICIES]
    assert found == [row["no_cache"], row["received"], row["received_and_own"]]


def test_fifteen_slices() -> None:
    """P = 4, V = 2, a block every second chunk: 11 blocks and 4 partial sums, at their true width."""
    config = with_blocks_every(config_of("attnres-block", 8), 8, 2)
    _, hops = plan(config, 4, 2)
    assert sum(len(hop.sent["own"]) for hop in hops) == 15
    assert sum(hop.bytes("own") for hop in hops) == 15 * 4 * DIM


@pytest.mark.parametrize(
    ("design", "tensors"),
    [("prenorm", [1] * 7), ("mgr(streams=4)", [3, *[4] * 6]), ("hc", [4] * 7), ("attnres", [*range(3, 17, 2)])],
)
def test_what_a_hop_has(design: str, tensors: list[int]) -> None:
    """Of PreNorm one tensor, of streams n, of Attention Residuals all sources: two a block here."""
    _, hops = plan(config_of(design, 8), 8, 1)
    assert [hop.bytes("naive") for hop in hops] == [4 * DIM * count for count in tensors]
    for hop in hops:
        assert hop.bytes("own") == hop.bytes("received") == hop.bytes("naive"), "every rank is visited once"


def test_uneven_splits() -> None:
    assert split(30, 4) == [8, 8, 7, 7]
    assert split(93, 16) == [*[6] * 13, *[5] * 3]
    chunks, _ = plan(config_of("prenorm", 7), 2, 2)
    assert [chunk.blocks for chunk in chunks] == [2, 2, 2, 1]
    with pytest.raises(UsageError, match="ranks × virtual is 8 chunks, and the model has 7 blocks; 7 is the most"):
        plan(config_of("prenorm", 7), 4, 2)


@pytest.mark.parametrize("design", ["prenorm", "attnres", "mgr", "hc", "mhc-lite", "bhyt"])
def test_what_autograd_keeps_is_what_it_keeps_on_a_cpu(design: str) -> None:
    config, context = config_of(design, 4), 32
    chunks, _ = plan(config, 2, 1, context=context)
    model = Decoder(config)
    tokens = torch.zeros(1, context, dtype=torch.int64)

    def forward() -> object:
        state, at = model.begin(tokens), model.at(0, context)
        return model.run(state, at, range(4)), at

    kept = saved_for_backward(forward, [*model.parameters(), *model.buffers()])
    assert sum(chunk.saved for chunk in chunks) * context == pytest.approx(kept, rel=0.05)


def played(ranks: int, virtual: int, micro_batches: int, kind: str = "1f1b", **more: Any) -> Any:
    """Chunks that are all alike, and hops that take no time."""
    chunks = [Chunk(blocks=1, saved=10, flops=1)] * (ranks * virtual)
    nothing: dict[Policy, list[Any]] = {policy: [] for policy in POLICIES}
    hops = [Hop(c % ranks, (c + 1) % ranks, {}, nothing) for c in range(len(chunks) - 1)]
    sizes = {"ranks": ranks, "virtual": virtual, "micro_batches": micro_batches, "tokens": 1, "kind": kind}
    speed = {"flops_per_second": 1.0, "bytes_per_second": 1.0}
    return predict(chunks, hops, policy="naive", **{**sizes, **speed, **more})


@pytest.mark.parametrize(
    ("ranks", "virtual", "micro"), [(2, 1, 4), (4, 1, 8), (8, 1, 8), (4, 2, 8), (4, 4, 16), (2, 3, 6)]
)
def test_bubbles_are_those_of_the_closed_form(ranks: int, virtual: int, micro: int) -> None:
    """(P − 1) / (V M + P − 1), and each step takes (V M + P − 1) / V forward and backward passes of a rank."""
    found = played(ranks, virtual, micro)
    assert found.bubble == pytest.approx((ranks - 1) / (virtual * micro + ranks - 1))
    assert found.time == pytest.approx(3 * (virtual * micro + ranks - 1))


def test_what_ranks_hold() -> None:
    """1F1B keeps at most P − r micro-batches on rank r, GPipe all of them."""
    assert played(4, 1, 8).peak_bytes == [40, 30, 20, 10]
    assert played(4, 1, 8, "gpipe").peak_bytes == [80] * 4


def test_every_rank_does_everything_once() -> None:
    for kind in ("1f1b", "gpipe"):
        for rank in range(4):
            done = order(rank, 4, 2, 8, kind)
            assert len(set(done)) == len(done) == 2 * 2 * 8
            assert all(done.index(("forward", m, c)) < done.index(("backward", m, c)) for _, m, c in done)


def test_hops_take_time_and_cached_blocks_memory() -> None:
    chunks, hops = plan(config_of("attnres", 8), 4, 2)
    options: dict[str, Any] = {"ranks": 4, "virtual": 2, "micro_batches": 8, "tokens": 10, "kind": "1f1b"}
    slow: dict[str, Any] = {**options, "flops_per_second": 1e6, "bytes_per_second": 1e5}
    times = [predict(chunks, hops, policy=policy, **slow).time for policy in POLICIES]
    assert times[0] > times[1] > times[2]
    assert held_states(chunks, hops, 4)[3] == max(held_states(chunks, hops, 4)) == 4 * DIM * 15
    with pytest.raises(UsageError, match="--micro-batches 6 with --virtual 2: a multiple of 4 works"):
        predict(chunks, hops, policy="own", **{**slow, "micro_batches": 6})


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--preset", "tiny", "--blocks", "8", "--vocab", "64", "--ranks", "2", "--virtual", "2"]
    target = tmp_path / "pipeline.json"
    assert (
        main(["bench", "pipeline", "prenorm", "attnres-block", *small, "--blocks-every", "2", "--json", str(target)])
        == 2
    )
    assert "--blocks-every sets the blocks of Attention Residuals" in capsys.readouterr().err
    assert main(["bench", "pipeline", "prenorm", "attnres", *small, "--json", str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["prenorm", "naive"],
        *(["attnres", policy] for policy in POLICIES),
    ]
    written = json.loads(target.read_text())
    assert [row["design"] for row in written["designs"]] == ["prenorm", "attnres"]
    assert len(written["designs"][1]["hops"]) == 3
    assert main(["bench", "pipeline", "--ranks", "0"]) == 2
    assert "--ranks 0 does not work; more than 0 does" in capsys.readouterr().err
