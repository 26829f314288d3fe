"""Tensors that lie in parts on several ranks (DTensor: FSDP2, tensor parallelism), beside ordinary ones."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor. Where nothing has imported that class, none is."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor, gathered on every rank; any other tensor as it is."""
    sharded: Any = tensor
    return sharded.full_tensor() if is_sharded(tensor) else tensor


def whole_tensors(tensors: Mapping[str, Tensor], *, keep: bool = True) -> dict[str, Tensor]:
    """Tensors for a file: sharded ones gathered one after the other, on the CPU; others as they are, contiguous.

    Args:
        keep: whether this rank wants them; every rank has to call this all the same.
    """
    found = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if keep:
            found[name] = (full.cpu() if is_sharded(tensor) else full).contiguous()
        del full  # before the next is gathered
    return found


def local(tensor: Tensor) -> Tensor:
    """This rank's part."""
    sharded: Any = tensor
    return sharded.to_local() if is_sharded(tensor) else tensor


def laid_out(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, the same on every rank, in parts as `like` is; nothing is sent."""
    if not is_sharded(like):
        return value
    from torch.distributed.tensor import distribute_tensor

    target: Any = like
    found: Tensor = distribute_tensor(value.to(like.device), target.device_mesh, target.placements, src_data_rank=None)
    return found


@contextlib.contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """While the context lasts, the parameters of a module that FSDP2 shards are whole."""
    fsdp: Any = module if hasattr(module, "unshard") else None
    if fsdp is not None:
        fsdp.unshard()
    try:
        yield
    finally:
        if fsdp is not None:
            fsdp.reshard()
