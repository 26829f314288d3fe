"""A decoder spread over processes by FSDP2: data parallel, sharded, or both (`fully_shard` on a mesh of two axes)."""

from __future__ import annotations

import warnings

from torch import nn

from leadline.distributed.world import World
from leadline.models import Decoder


def shard(model: Decoder, world: World) -> None:
    """Shards a model's parameters over the world's mesh, block by block; gradients are means over all processes.

    Every process holds the whole model when it calls this, with the same values. Afterwards each keeps its part, and a
    block is gathered for the time of its forward and of its backward pass. Where blocks repeat, which have parameters
    in common, the model is gathered as a whole. Source: the engine is PyTorch's FSDP2.
    """
    if world.mesh is None:
        return
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    # A state's tensors may be views of what a block returns. Nothing writes to them in place, of which it warns.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    parts: list[nn.Module] = [] if model.config.repeat is not None else list(model.blocks)
    for part in (*parts, model):
        fully_shard(part, mesh=world.mesh)
    for name in ("hidden", "exits"):
        register_fsdp_forward_method(model, name)
