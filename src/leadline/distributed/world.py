"""The processes of a run: torchrun's, or those of `leadline train --nproc N`.

Every one reads the same configuration and the same files, and sees its own part of each batch. The first, the main one,
writes.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from leadline.errors import LeadlineError, UsageError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

STORE = "LEADLINE_STORE"
"""The file in which processes meet that Leadline started itself."""
PATIENCE = datetime.timedelta(minutes=30)
"""How long a process waits for the others: the main one may write a large checkpoint meanwhile."""
CPU = torch.device("cpu")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class World:
    """Who takes part in a run.

    Attributes:
        rank: from 0, which is the main process.
        size: how many there are.
        device: where this one computes.
        mesh: of `replicate` × `shard` processes; None for one process.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = CPU
    mesh: DeviceMesh | None = None

    @property
    def main(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """The sums over all processes."""
        if self.size > 1:
            values = values.clone()
            torch.distributed.all_reduce(values)
        return values

    def gathered(self, value: T) -> list[T]:
        """What every process has, in the order of the ranks."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, value)
        return found

    def wait(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            self.gathered(None)  # unlike a barrier it needs no device

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """What the main process does before the others go on; where it fails they end too.

        Raises:
            LeadlineError: on the others, where the main one raised something.
        """
        try:
            yield
        except BaseException:
            self.gathered(True)
            raise
        if any(self.gathered(False)):
            raise LeadlineError("the first process could not begin, and has said why")

    def dealt(self, items: Sequence[T]) -> Iterator[tuple[int, T]]:
        """This process's share of some items, each with its number; every process gets as many.

        At the end some get the last item once more, because all must take part in each pass of a sharded model.
        """
        for turn in range(-(-len(items) // self.size)):
            number = min(turn * self.size + self.rank, len(items) - 1)
            yield number, items[number]


ALONE = World()
"""One process."""


def ranks() -> tuple[int, int, int]:
    """Rank, rank on this machine, and number of processes, as torchrun says them; 0, 0 and 1 without it."""
    rank, local, size = (os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    if rank is None or size is None:
        return 0, 0, 1
    return int(rank), int(local or rank), int(size)


def layout(replicate: int | None, shard: int | None, size: int) -> tuple[int, int]:
    """How many copies of a model there are, and over how many processes each is spread.

    Args:
        replicate, shard: what was asked for; what is open takes what is left of `size`, sharding before copies.

    Raises:
        UsageError: they don't make `size` together; says what does.
    """
    if shard is None and replicate is not None:
        shard = size // replicate if size % replicate == 0 else 1
    if replicate is None:
        replicate = 1 if shard is None else size // shard if size % shard == 0 else 1
    shard = size if shard is None else shard
    if replicate * shard != size:
        fits = ", ".join(f"{size // n} × {n}" for n in range(1, size + 1) if size % n == 0)
        raise UsageError(
            f"--replicate {replicate} × --shard {shard} is {replicate * shard} processes, and there "
            f"{'is 1' if size == 1 else f'are {size}'}; {fits} work{'s' if size == 1 else ''}"
        )
    return replicate, shard


@contextlib.contextmanager
def joined(device: torch.device, replicate: int | None = None, shard: int | None = None) -> Iterator[World]:
    """Joins the other processes of the run, where there are any, and leaves them at the end.

    Args:
        device: of this process; of several GPUs in a machine each process takes the one of its number.

    Raises:
        UsageError: the layout does not fit the number of processes, or a machine has too few GPUs.
    """
    rank, place, size = ranks()
    copies, parts = layout(replicate, shard, size)
    if size == 1:
        yield World(device=device)
        return
    from torch.distributed.device_mesh import init_device_mesh

    if str(device) == "cuda":
        if place >= torch.cuda.device_count():
            raise UsageError(
                f"process {place} of this machine has no GPU: there are {torch.cuda.device_count()}; start as many "
                "processes, or use --device cpu"
            )
        device = torch.device("cuda", place)
        torch.cuda.set_device(device)
    store = os.environ.get(STORE)
    torch.distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{store}" if store else "env://",
        rank=rank,
        world_size=size,
        timeout=PATIENCE,
    )
    mesh = init_device_mesh(device.type, (copies, parts), mesh_dim_names=("replicate", "shard"))
    try:
        yield World(rank=rank, size=size, device=device, mesh=mesh)
        torch.distributed.barrier()  # nobody leaves while another still waits for it
    finally:
        torch.distributed.destroy_process_group()
