"""The gradient share over ranks: whole gradients of sharded parameters, and None where there is none."""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leadline.designs import ShapeConfig, resolve
from leadline.errors import UsageError
from leadline.models import Decoder
from leadline.training import Diversity, GradientShare, effective_ranks

RANKS = 2
PATIENCE_S = 200
"""A rank that takes longer says where it stands, and ends."""


def decoder() -> Decoder:
    shape = ShapeConfig(dim=8, blocks=3, heads=2, kv_heads=2, head_dim=4, hidden=12, context=16)
    model = Decoder(resolve("mgr(gate_init=prenorm)").decoder(shape, vocab_size=11), seed=1)
    for parameter in model.blocks[1].mlp.parameters():
        parameter.requires_grad_(False)
    return model


def tokens() -> Tensor:
    return torch.randint(11, (2 * RANKS, 17), generator=torch.Generator().manual_seed(0))


def backward(model: nn.Module, rows: Tensor, *, skip: tuple[int, ...] = ()) -> None:
    logits = model(rows[:, :-1], skip=skip).flatten(0, 1)
    nn.functional.cross_entropy(logits, rows[:, 1:].flatten()).backward()


def shares(model: nn.Module, rows: Tensor) -> dict[str, Any]:
    """Two steps; the second without block 2."""
    share = GradientShare(model)
    backward(model, rows)
    share.add(share.measure())
    diversity = Diversity(share)
    diversity.add()
    share.note({"effective_rank": effective_ranks(share)})
    model.zero_grad()
    backward(model, rows, skip=(4, 5))
    share.add(share.measure())
    share.note({"last": share.last})
    diversity.add()
    share.note({"cosine": diversity.cosines()})
    return share.report()


def worker(kind: str, rank: int, out: Path) -> None:
    """One rank."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    # They meet in a file: a port that was free may be taken by now, and a server would end with the rank that has it.
    torch.distributed.init_process_group("gloo", init_method=f"file://{out}/ranks", rank=rank, world_size=RANKS)
    model: nn.Module = decoder()
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    else:
        mesh = init_device_mesh("cpu", (RANKS,))
        # Parameters that FSDP leaves alone are not reduced, so then every rank has to see the same rows.
        sites = {p for name, p in model.named_parameters() if "_site." in name} if kind == "fsdp-mixed" else set()
        for block in model.blocks:
            fully_shard(block, mesh=mesh, ignored_params=sites)
        fully_shard(model, mesh=mesh, ignored_params=sites)
    report = shares(model, tokens() if kind == "fsdp-mixed" else tokens().chunk(RANKS)[rank])
    (out / f"{rank}.json").write_text(json.dumps(report))
    while not all((out / f"{other}.json").exists() for other in range(RANKS)):
        time.sleep(0.05)
    # PyTorch's own end of DDP waits for ever at times where a rank has already left.
    os._exit(0)


def run(kind: str, out: Path) -> list[dict[str, Any]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [[sys.executable, __file__, kind, str(rank), str(out)] for rank in range(RANKS)]
    processes = [subprocess.Popen(rank, env=environment, stderr=subprocess.PIPE, text=True) for rank in ranks]
    try:
        for process in processes:
            _, said = process.communicate(timeout=PATIENCE_S + 40)
            assert process.returncode == 0, said
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return json.loads(json.dumps(shares(decoder(), tokens())))


def nearly(value: Any) -> Any:
    if isinstance(value, list):
        return [nearly(each) for each in value]
    if isinstance(value, dict):
        return {name: nearly(each) for name, each in value.items()}
    return pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, float) else value


@pytest.mark.parametrize("kind", ["fsdp", "fsdp-mixed", "ddp"])
def test_the_share_is_that_of_one_process(kind: str, tmp_path: Path, alone: dict[str, Any]) -> None:
    assert alone["sublayer_share"][3] is not None  # its norm and its site have gradients
    assert alone["details"][1]["last"][2] is None
    assert alone["steps_without_gradient"]["block"] == [0, 0, 1]
    for report in run(kind, tmp_path):
        assert report == nearly(alone)


def test_the_first_fsdp_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed.fsdp as fsdp

    model = decoder()
    monkeypatch.setattr(fsdp, "FullyShardedDataParallel", type(model.blocks[0]))
    with pytest.raises(UsageError, match="fully_shard"):
        GradientShare(model)


if __name__ == "__main__":
    worker(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
