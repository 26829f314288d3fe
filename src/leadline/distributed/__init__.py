"""Training on several processes: who takes part, how a model is spread over them, and how they are started."""

from leadline.distributed.launch import launch
from leadline.distributed.sharding import shard
from leadline.distributed.world import ALONE, World, joined, ranks

__all__ = ["ALONE", "World", "joined", "launch", "ranks", "shard"]
