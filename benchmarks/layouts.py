"""The same training in one process and in several: losses, bytes sent and memory, by layout and design.

    python benchmarks/layouts.py                       all designs on 1, 2 and 4 processes, 20 steps each
    python benchmarks/layouts.py --designs mgr --sizes 2 --steps 5 --json layouts.json
    python benchmarks/layouts.py --device cuda --sizes 2,4,8      on GPUs, one process each

Loss is that of the last step, against one process that accumulates the parts of a batch. Bytes are those that a process
sends in a step, counted from the collectives of one step, as ring algorithms send them. Memory is the first process's
peak. Exit code 1 where a loss differs from one process's by more than TOLERANCE.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from leadline.distributed.world import STORE, joined
from leadline.training import RunConfig, train
from leadline.training.loop import Trainer
from leadline.training.records import STEPS
from leadline.training.resolve import decide

DESIGNS = ("prenorm", "attnres", "attnres-block", "mgr", "hc", "mhc-lite", "bhyt")
TOLERANCE = 1e-4
"""Nats a token, after 20 steps in float32."""
PATIENCE_S = 900


COLLECTIVES = {"_allgather_base_": (0, 2, 1), "_reduce_scatter_base_": (1, 2, 1), "allreduce_": (0, 1, 2)}
"""Which argument is the whole tensor, which the group, and how many times a ring sends it."""


class Traffic(TorchDispatchMode):
    """Counts the bytes that this process sends in collectives, by ring algorithms."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.name().removeprefix("c10d::").partition(".")[0]
        if name in COLLECTIVES:
            place, group, rounds = COLLECTIVES[name]
            whole = args[place] if isinstance(args[place], torch.Tensor) else args[place][0]
            size = torch.distributed.ProcessGroup.unbox(args[group]).size()
            self.bytes += rounds * whole.numel() * whole.element_size() * (size - 1) // size
        return function(*args, **(kwargs or {}))


def options(design: str, steps: int, device: str, preset: str) -> dict[str, Any]:
    """Of the run that every layout trains."""
    base = {"data": "sotu", "preset": preset, "steps": steps, "evaluate_tokens": 2048, "device": device}
    return {"design": design, "evaluate_every": steps, "record_every": 0} | base


def bytes_of_a_step(chosen: dict[str, Any], layout: dict[str, int]) -> int:
    """What a process sends in one step; all call this."""
    given = dict(chosen) | layout
    run = decide(RunConfig.of(given.pop("design"), **given))
    device = torch.device("cuda" if given["device"] == "cuda" else "cpu")
    with joined(device, **layout) as world, tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(run, Path(folder), world=world)
        trainer._one_step()
        with Traffic() as traffic:
            trainer._one_step()
        for lines in trainer.files.values():
            lines.close()
        return traffic.bytes


def worker(folder: Path) -> None:
    """One process of a layout."""
    case = json.loads((folder / "case.json").read_text())
    os.environ[STORE] = str(folder / "first")
    given = dict(case["options"]) | case["layout"]
    summary = train(given.pop("design"), folder / "run", **given)
    os.environ[STORE] = str(folder / "second")
    sent = bytes_of_a_step(case["options"], case["layout"])
    if os.environ["RANK"] == "0":
        found = {"bytes": sent, "memory": summary.peak_memory_bytes}
        (folder / "found.json").write_text(json.dumps(found))


def last_loss(out: Path) -> float:
    """Of the last step."""
    return float(json.loads((out / STEPS).read_text().splitlines()[-1])["loss"])


def measure(chosen: dict[str, Any], layout: dict[str, int], size: int) -> dict[str, Any]:
    """Trains in `size` processes; the last loss, bytes and memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "case.json").write_text(json.dumps({"options": chosen, "layout": layout}))
        command = [sys.executable, __file__, "--worker", name]
        ranks = [
            subprocess.Popen(
                command,
                env={
                    **os.environ,
                    "RANK": str(r),
                    "LOCAL_RANK": str(r),
                    "WORLD_SIZE": str(size),
                    "OMP_NUM_THREADS": "1",
                },
            )
            for r in range(size)
        ]
        codes = [rank.wait(timeout=PATIENCE_S) for rank in ranks]
        if any(codes):
            raise SystemExit(f"{chosen['design']} on {layout}: exit codes {codes}")
        return json.loads((folder / "found.json").read_text()) | {"loss": last_loss(folder / "run")}


def alone(chosen: dict[str, Any], size: int) -> dict[str, Any]:
    """One process that accumulates the parts of a batch that `size` processes would have."""
    given = dict(chosen) | {"grad_accumulation": size}
    with tempfile.TemporaryDirectory() as name:
        summary = train(given.pop("design"), Path(name) / "run", **given)
        return {"bytes": 0, "memory": summary.peak_memory_bytes, "loss": last_loss(Path(name) / "run")}


def main() -> int:
    """Prints the table; returns 1 where a loss is off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--designs", default=",".join(DESIGNS))
    parser.add_argument("--sizes", default="2,4", help="numbers of processes")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        worker(given.worker)
        return 0
    torch.set_num_threads(1)
    rows = []
    print("| design | replicate × shard | loss | minus one process's | MB sent a step | peak MB |")
    print("|---|---|---|---|---|---|")
    for design in given.designs.split(","):
        chosen = options(design, given.steps, given.device, given.preset)
        for size in map(int, given.sizes.split(",")):
            one = alone(chosen, size)
            shards = [n for n in range(1, size + 1) if size % n == 0]
            for shard in shards:
                layout = {"replicate": size // shard, "shard": shard}
                found = measure(chosen, layout, size)
                row = {"design": design, **layout, **found, "difference": found["loss"] - one["loss"]}
                rows.append(row)
                print(
                    f"| {design} | {size // shard} × {shard} | {found['loss']:.4f} | {row['difference']:+.1e} "
                    f"| {found['bytes'] / 1e6:.1f} | {found['memory'] / 1e6:.0f} |",
                    flush=True,
                )
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2))
    return int(any(abs(row["difference"]) > TOLERANCE for row in rows))


if __name__ == "__main__":
    sys.exit(main())
